//! Step time and host time in the allocator, round by round.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::allocators::{Clock, DeviceAllocator};
use super::requests::Requests;

/// Median, least and most of a figure over the rounds, in microseconds per step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle one; the upper of two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of at least one figure; zeros without.
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(0.0);
        let last = figures.len().saturating_sub(1);
        Self { median: at(figures.len() / 2), min: at(0), max: at(last) }
    }
}

/// An allocator's figures.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// The allocator.
    pub name: &'static str,
    /// Time of a step, from its first request until the device has done it.
    pub step: Spread,
    /// Host time inside the allocator's calls, without the clock's own.
    pub allocator: Spread,
}

/// What timing one call takes when the call does nothing.
fn cost_of_the_clock() -> Duration {
    const CALLS: u32 = 10_000;
    let mut spent = Duration::ZERO;
    for _ in 0..CALLS {
        let start = Instant::now();
        spent += std::hint::black_box(start.elapsed());
    }
    spent / CALLS
}

/// Runs `steps` steps with each allocator, twice in each of `rounds` rounds: once for the time of a
/// step, and once with a clock around each of the allocator's calls. The allocators take turns, so that
/// a drift of the machine's speed is everybody's.
///
/// # Errors
///
/// The first refusal.
pub fn measure(
    allocators: &mut [Box<dyn DeviceAllocator>],
    requests: &Requests,
    rounds: u32,
    steps: u32,
) -> Result<Vec<Figures>> {
    // Every buffer is asked for and goes; the scope of a step is opened and closed.
    let timed_calls = 2.0 * requests.buffers as f64 + 2.0;
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let clock_micros = micros(cost_of_the_clock()) * timed_calls;
    let mut times = vec![(Vec::new(), Vec::new()); allocators.len()];
    for allocator in &mut *allocators {
        run(allocator.as_mut(), requests, steps.min(20), false)?;
    }
    for _ in 0..rounds {
        for (allocator, (step, inside)) in allocators.iter_mut().zip(&mut times) {
            let per_step = |duration: Duration| micros(duration) / f64::from(steps);
            let (elapsed, _) = run(allocator.as_mut(), requests, steps, false)?;
            let (_, spent) = run(allocator.as_mut(), requests, steps, true)?;
            step.push(per_step(elapsed));
            inside.push((per_step(spent) - clock_micros).max(0.0));
        }
    }
    let names = allocators.iter().map(|allocator| allocator.name());
    let figures = names.zip(times).map(|(name, (step, inside))| Figures {
        name,
        step: Spread::of(step),
        allocator: Spread::of(inside),
    });
    Ok(figures.collect())
}

/// The time of so many steps, and what of it was spent in the allocator.
fn run(
    allocator: &mut dyn DeviceAllocator,
    requests: &Requests,
    steps: u32,
    timed: bool,
) -> Result<(Duration, Duration)> {
    let mut clock = Clock::new(timed);
    let start = Instant::now();
    for _ in 0..steps {
        allocator.step(requests, &mut clock)?;
    }
    Ok((start.elapsed(), clock.spent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 9.0, 2.0, 4.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 9.0 });
        assert_eq!(Spread::of(Vec::new()), Spread { median: 0.0, min: 0.0, max: 0.0 });
    }
}
