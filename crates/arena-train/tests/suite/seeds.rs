//! The numbers of a seed are for ever: a run can be repeated to the bit, whichever generator is linked.

use arena_train::data::{Dataset, EpochOrder};
use arena_train::init::he_uniform;
use rstest::rstest;

/// One number for many, in their order (FNV-1a).
fn fold(values: impl IntoIterator<Item = u32>) -> u64 {
    values.into_iter().fold(0xCBF2_9CE4_8422_2325, |hash, value| {
        (hash ^ u64::from(value)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[rstest]
#[case(1, 0, 242_193_033_915_915_558)]
#[case(1, 3, 5_587_179_328_809_800_318)]
#[case(u64::MAX, 1 << 40, 7_128_436_872_820_207_343)]
fn initial_values_are_those_of_the_seed(
    #[case] seed: u64,
    #[case] stream: u64,
    #[case] expected: u64,
) {
    let mut values = vec![0.0; 10_001];
    he_uniform(seed, stream, 25, 1.0, &mut values);
    assert_eq!(fold(values.iter().map(|value| value.to_bits())), expected);
}

#[rstest]
#[case(1, 0, 13_686_293_087_454_964_659)]
#[case(7, 12, 10_048_347_337_494_042_581)]
fn the_order_of_an_epoch_is_that_of_the_seed(
    #[case] seed: u64,
    #[case] epoch: u64,
    #[case] expected: u64,
) {
    let none = vec![0; 60_000];
    let data = Dataset { images: none.clone(), labels: none, rows: 1, cols: 1 };
    let mut order = EpochOrder::default();
    order.shuffle(&data, 64, seed, epoch);
    assert_eq!(fold(order.steps().flatten().copied()), expected);
}
