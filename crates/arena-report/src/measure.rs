//! What a step's buffers add up to.

use crate::model::{Buffer, Step};

/// The most that is live at once in a step, in bytes as they were requested, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivePeak {
    /// With what lives through the step.
    pub bytes: u64,
    /// The first moment with so much.
    pub moment: u32,
}

/// What is live after each moment of a step, in bytes as they were requested, with what lives through it.
#[must_use]
pub fn live_bytes(step: &Step) -> Vec<u64> {
    let mut gained = vec![0_u64; step.moments as usize + 1];
    let mut lost = gained.clone();
    for buffer in &step.buffers {
        gained[buffer.birth() as usize] += buffer.bytes();
        lost[buffer.death(step.moments) as usize] += buffer.bytes();
    }
    gained.pop();
    let mut live = step.through_bytes;
    for (total, lost) in gained.iter_mut().zip(lost) {
        live = (live + *total).saturating_sub(lost);
        *total = live;
    }
    gained
}

/// The most that is live at once.
///
/// ```
/// use arena_report::{Buffer, Step, Told, live_peak};
///
/// let buffers = vec![Buffer::new(0, 100).dropped_at(Some(2)), Buffer::new(1, 50), Buffer::new(2, 80)];
/// let step = Step::new("a step".to_owned(), Told::ByFile, 3, buffers);
/// assert_eq!((live_peak(&step).bytes, live_peak(&step).moment), (150, 1));
/// ```
#[must_use]
pub fn live_peak(step: &Step) -> LivePeak {
    let live = live_bytes(step);
    let peak = live.iter().enumerate().max_by_key(|(moment, bytes)| (**bytes, live.len() - moment));
    peak.map_or(LivePeak { bytes: step.through_bytes, moment: 0 }, |(moment, &bytes)| LivePeak {
        bytes,
        moment: moment as u32,
    })
}

/// Where a bump puts each buffer, in bytes from where it begins, and how high that reaches.
pub(crate) fn bumped(buffers: &mut dyn Iterator<Item = &Buffer>) -> (Vec<u64>, u64) {
    let mut cursor = 0_u64;
    let offsets = buffers.map(|buffer| {
        let offset = cursor.next_multiple_of(buffer.alignment_bytes());
        cursor = offset + buffer.bytes();
        offset
    });
    (offsets.collect(), cursor)
}

/// A size as people read it, in the largest unit that it reaches.
#[must_use]
pub fn readable(bytes: u64) -> String {
    in_units(bytes, f64::round)
}

/// The same, rounded up: for what must be there.
#[must_use]
pub fn readable_need(bytes: u64) -> String {
    in_units(bytes, f64::ceil)
}

fn in_units(bytes: u64, round: fn(f64) -> f64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = bytes.checked_ilog2().map(|log| log / 10).filter(|power| *power > 0) else {
        return format!("{bytes} bytes");
    };
    #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
    let size = bytes as f64 / f64::powi(1024.0, power as i32);
    format!("{:.2} {}", round(size * 100.0) / 100.0, units[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::model::Told;

    #[rstest]
    #[case(0, "0 bytes", "0 bytes")]
    #[case(1023, "1023 bytes", "1023 bytes")]
    #[case(1025, "1.00 KiB", "1.01 KiB")]
    #[case(12_992_276_071, "12.10 GiB", "12.11 GiB")]
    #[case(u64::MAX, "16.00 EiB", "16.00 EiB")]
    fn a_size_is_read_in_its_unit(#[case] bytes: u64, #[case] size: &str, #[case] need: &str) {
        assert_eq!((readable(bytes).as_str(), readable_need(bytes).as_str()), (size, need));
    }

    #[test]
    fn what_lives_through_a_step_counts_at_every_moment() {
        let buffers = vec![Buffer::new(0, 5).dropped_at(Some(1)), Buffer::new(1, 3)];
        let mut step = Step::new(String::new(), Told::ByFile, 3, buffers);
        step.through_bytes = 100;
        assert_eq!(live_bytes(&step), [105, 103, 103]);
        assert_eq!(live_peak(&step), LivePeak { bytes: 105, moment: 0 });
    }

    #[test]
    fn a_bump_starts_each_buffer_at_its_alignment() {
        let buffers = [Buffer::new(0, 5), Buffer::new(1, 8).aligned(8), Buffer::new(2, 1)];
        assert_eq!(bumped(&mut buffers.iter()), (vec![0, 8, 16], 17));
    }
}
