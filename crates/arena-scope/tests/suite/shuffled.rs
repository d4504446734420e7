//! Placement `Shuffled`: buffers lie anywhere, never two of them in one place, and nobody can tell.

use std::ops::Range;

use arena_scope::device::{Call, Counting};
use arena_scope::{Alignment, Arena, ByteSize, Error, ErrorKind, Host, Placement, Scope};
use proptest::prelude::*;

use crate::common::{KIB, Outcome, builder, counting, failing};

fn shuffled(capacity: ByteSize, seed: u64) -> Result<Arena<Host>, Error> {
    Arena::builder(Host::new()).capacity(capacity).placement(Placement::Shuffled { seed }).build()
}

/// Where the buffers of a few steps lie, from the first one on.
fn places(seed: u64) -> Result<Vec<Vec<i64>>, Error> {
    let mut arena = shuffled(ByteSize::kib(64), seed)?;
    let mut steps = Vec::new();
    let mut first = None;
    for _ in 0..3 {
        steps.push(arena.scope(|step| {
            let mut addresses = Vec::new();
            for len in 1..10 {
                addresses.push(step.alloc::<u8>(100 * len)?.address());
            }
            let first = *first.get_or_insert(addresses[0]);
            arena_scope::Ok(addresses.iter().map(|a| a.wrapping_sub(first).cast_signed()).collect())
        })?);
    }
    Ok(steps)
}

/// Which of them is the lowest, the next, and so on.
fn order(places: &[i64]) -> Vec<usize> {
    let mut order: Vec<_> = (0..places.len()).collect();
    order.sort_by_key(|n| places[*n]);
    order
}

#[test]
fn a_seed_draws_the_same_places_again_and_another_seed_other_ones() -> Outcome {
    let (one, again, other) = (places(1)?, places(1)?, places(2)?);
    assert_eq!(one, again);
    assert_ne!(order(&one[0]), order(&other[0]));
    assert_ne!(order(&one[0]), order(&one[1]), "each step draws anew");
    assert_ne!(order(&one[0]), (0..9).collect::<Vec<_>>(), "not the bump's order");
    Ok(())
}

#[test]
fn the_second_allocation_is_twice_the_region_and_goes_with_the_arena() -> Outcome {
    let (device, counts) = counting();
    let mut arena = builder(device, KIB).placement(Placement::Shuffled { seed: 1 }).build()?;
    arena.scope(|step| step.upload(&[1_u8; 100]).map(drop))?;
    assert_eq!((counts.calls(Call::Obtain), counts.bytes(Call::Obtain)), (2, 3 * KIB));
    assert_eq!((arena.stats().driver_allocations, counts.calls(Call::Release)), (2, 0));
    drop(arena);
    assert_eq!((counts.calls(Call::Release), counts.bytes(Call::Release)), (2, 3 * KIB));
    Ok(())
}

#[test]
fn a_device_without_room_for_it_refuses_the_arena_and_keeps_nothing() {
    let (device, switch) = failing();
    let device = Counting::new(device);
    let counts = device.counts();
    switch.fail_nth(Call::Obtain, 2);
    let refused = builder(device, KIB).placement(Placement::Shuffled { seed: 1 }).build();
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Device(_)));
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (2, 1));
}

/// Where the bump would put the buffers.
fn region(arena: &Arena<Host>) -> Range<u64> {
    let base = arena.base_address();
    base..base + arena.stats().capacity_bytes
}

#[test]
fn a_place_is_free_again_when_its_scope_has_closed() -> Outcome {
    let mut arena = shuffled(ByteSize::kib(1), 1)?;
    let region = region(&arena);
    arena.scope(|step| {
        let outer = step.upload(&[7_u8; 256])?;
        for n in 0..100_u8 {
            step.scope(|inner| {
                let buffer = inner.upload(&[n; 256])?;
                assert!(!region.contains(&buffer.address()), "time {n}");
                arena_scope::Ok(())
            })?;
        }
        assert_eq!(outer.as_slice(), [7; 256]);
        Ok(())
    })
}

// Two small buffers may leave no hole for a large one that the bump serves.
#[test]
fn what_fits_the_bump_fits_whatever_is_drawn() -> Outcome {
    const LARGE: usize = (64 << 10) - 3 * 256;
    let mut in_the_region = 0;
    for seed in 0..50 {
        let mut arena = shuffled(ByteSize::kib(64), seed)?;
        let weights = arena.persistent_from(&[5_u8; 256])?;
        let region = region(&arena);
        arena.scope(|step| {
            let small = [step.upload(&[1_u8; 256])?, step.upload(&[2_u8; 256])?];
            step.scope(|inner| {
                let large = inner.upload(&[3_u8; LARGE])?;
                assert!(inner.alloc::<u8>(1).unwrap_err().is_exhausted());
                in_the_region += u64::from(region.contains(&large.address()));
                assert_eq!(small[0].as_slice(), [1; 256]);
                assert_eq!(small[1].as_slice(), [2; 256]);
                assert_eq!(large.as_slice(), [3; LARGE]);
                assert_eq!(large.offset_bytes(), 3 * 256);
                arena_scope::Ok(())
            })
        })?;
        assert_eq!(weights.as_slice(), [5; 256]);
    }
    assert!((1..50).contains(&in_the_region), "{in_the_region} of 50");
    Ok(())
}

#[derive(Debug, Clone)]
enum Op {
    Alloc { bytes: usize, log: u32 },
    Scope { forgotten: bool, ops: Vec<Op> },
}

fn op() -> impl Strategy<Value = Op> {
    let leaf = (0..700_usize, 0..=10_u32).prop_map(|(bytes, log)| Op::Alloc { bytes, log });
    leaf.prop_recursive(4, 40, 10, |inner| {
        (any::<bool>(), prop::collection::vec(inner, 0..10))
            .prop_map(|(forgotten, ops)| Op::Scope { forgotten, ops })
    })
}

/// What two runs of a program can compare, and what is alive in this one.
#[derive(Default)]
struct Run {
    live: Vec<(u64, u64)>,
    offsets: Vec<Option<u64>>,
}

impl Run {
    fn add(&mut self, start: u64, bytes: usize) {
        let end = start + bytes as u64;
        let apart = |(from, to): &(u64, u64)| end <= *from || *to <= start;
        assert!(self.live.iter().all(apart), "{start}..{end} is in {:?}", self.live);
        self.live.push((start, end));
    }

    fn scope(&mut self, scope: &mut Scope<'_, '_, Host>, ops: &[Op]) -> Outcome {
        for op in ops {
            match op {
                Op::Alloc { bytes, log } => {
                    let alignment = Alignment::new(1 << log)?;
                    let made = scope.alloc_aligned::<u8>(*bytes, alignment);
                    self.offsets.push(made.as_ref().ok().map(|buffer| buffer.offset_bytes()));
                    let Ok(buffer) = made else { continue };
                    assert!(buffer.is_empty() || alignment.divides(buffer.address()));
                    if !buffer.is_empty() {
                        self.add(buffer.address(), *bytes);
                    }
                    // Its handle goes here, and its bytes when its scope closes.
                }
                Op::Scope { forgotten: true, ops } => {
                    let mut guard = scope.enter()?;
                    self.scope(&mut guard.scope(), ops)?;
                    std::mem::forget(guard);
                }
                Op::Scope { forgotten: false, ops } => {
                    let outside = self.live.len();
                    scope.scope(|inner| self.scope(inner, ops))?;
                    self.live.truncate(outside);
                }
            }
        }
        Ok(())
    }

    fn on(mut arena: Arena<Host>, steps: &[Vec<Op>]) -> Result<Vec<Option<u64>>, Error> {
        let mut run = Self::default();
        let weights = arena.persistent::<u8>(100);
        if let Ok(weights) = &weights {
            run.add(weights.address(), 100);
        }
        let outside = run.live.len();
        for ops in steps {
            arena.scope(|step| run.scope(step, ops))?;
            run.live.truncate(outside);
        }
        Ok(run.offsets)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_live_buffers_overlap_and_the_bump_serves_the_same_requests(
        capacity in 0_u64..10_000,
        seed in any::<u64>(),
        steps in prop::collection::vec(prop::collection::vec(op(), 0..10), 1..4),
    ) {
        let capacity = ByteSize::bytes_exact(capacity);
        let bumped = Arena::builder(Host::new()).capacity(capacity).build().unwrap();
        let shuffled = Run::on(shuffled(capacity, seed).unwrap(), &steps).unwrap();
        prop_assert_eq!(shuffled, Run::on(bumped, &steps).unwrap());
    }
}
