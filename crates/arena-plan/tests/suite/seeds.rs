//! The numbers of a seed are for ever: an instance that was reported can be made again.

use arena_plan::generate::Guillotine;

#[test]
fn an_instance_is_that_of_its_seed() {
    let instance = Guillotine { buffers: 1000, shortened_percent: 30, seed: 5 }.generate();
    let numbers = instance.buffers().iter().flat_map(|b| [b.birth, b.death, b.size_bytes]);
    // One number for all, in their order (FNV-1a).
    let folded = numbers.fold(0xCBF2_9CE4_8422_2325_u64, |hash, number| {
        (hash ^ number).wrapping_mul(0x0100_0000_01B3)
    });
    assert_eq!(folded, 7_460_343_056_650_126_213);
}
