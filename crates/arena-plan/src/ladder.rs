//! Where the search aims when no capacity says so.

use std::collections::HashMap;

/// Divides the work between the target and an easier aim, an eighth of the way from the peak to the target.
///
/// Most instances that can be planned at the target are so soon, so the target goes first. After that most of
/// the work goes to the easier aim. It falls as soon as it is reached, and is the easiest that is worth having:
/// while it is not reached, no lower one is likelier to be.
#[derive(Default)]
pub(crate) struct Ladder {
    /// The rounds that each aim has had, the target among them.
    rounds: HashMap<u64, u32>,
    target_work: u64,
    other_work: u64,
}

impl Ladder {
    /// The work that the target has before any other aim: some tenths of a second.
    const TARGET_FIRST: u64 = 300_000_000;
    /// The work of the easier aims as a multiple of the target's.
    const OTHERS_SHARE: u64 = 4;
    /// The part of the way to the target that is aimed at.
    const STEP: u64 = 8;

    /// The next aim, for a peak above the target.
    pub(crate) fn next(&self, target: u64, peak: u64) -> u64 {
        let target_is_next = self.target_work < Self::TARGET_FIRST
            || self.target_work <= self.other_work / Self::OTHERS_SHARE;
        if target_is_next { target } else { peak - (peak - target).div_ceil(Self::STEP) }
    }

    /// Counts a round for this aim, and returns how many it had before.
    pub(crate) fn begin(&mut self, aim: u64) -> u32 {
        let rounds = self.rounds.entry(aim).or_default();
        *rounds += 1;
        *rounds - 1
    }

    /// Counts what a round has cost.
    pub(crate) fn end(&mut self, is_target: bool, work: u64) {
        if is_target {
            self.target_work += work;
        } else {
            self.other_work += work;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_has_a_share_first_and_then_a_quarter_of_the_work_of_the_easier_aims() {
        let mut ladder = Ladder::default();
        let mut next = |peak: u64, work: u64| {
            let aim = ladder.next(963, peak);
            ladder.end(aim == 963, work);
            aim
        };
        let first = Ladder::TARGET_FIRST;
        assert_eq!([next(1080, first / 2), next(1080, first / 2)], [963, 963]);
        let aims: Vec<u64> = (0..10).map(|_| next(1080, first)).collect();
        assert_eq!(aims, [1065, 1065, 1065, 1065, 963, 1065, 1065, 1065, 1065, 963]);
    }

    #[test]
    fn the_easier_aim_is_an_eighth_of_the_way_down_and_at_last_the_target() {
        let mut ladder = Ladder::default();
        ladder.end(true, Ladder::TARGET_FIRST);
        assert_eq!(
            [1080, 1065, 971, 970, 965].map(|peak| ladder.next(963, peak)),
            [1065, 1052, 970, 969, 964]
        );
        assert_eq!(ladder.next(963, 964), 963);
    }

    #[test]
    fn each_aim_has_rounds_of_its_own() {
        let mut ladder = Ladder::default();
        assert_eq!([7, 7, 8, 7].map(|aim| ladder.begin(aim)), [0, 1, 0, 2]);
    }
}
