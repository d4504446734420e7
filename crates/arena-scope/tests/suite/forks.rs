//! An arena in a fork of the process that built it: the child takes nothing from the parent, which goes on.

use arena_scope::device::{Call, Counting, Deferred};
use arena_scope::{
    Arena, ArenaBuilder, ByteSize, Device, Error, ErrorKind, Host, Keep, RegionKind,
};
use arena_testing::{alone, in_fork};

use crate::common::MIB;

const WEIGHTS: [u8; 100] = [7; 100];

/// An arena of which just what is needed is committed.
fn exact<D: Device>(device: D) -> ArenaBuilder<D> {
    let builder = Arena::builder(device).capacity(ByteSize::mib(64)).region(RegionKind::Virtual);
    builder.commit_ahead(ByteSize::kib(0))
}

/// A step that fills so many bytes, and reads them.
fn step<D: Device>(arena: &mut Arena<D>, bytes: usize, value: u8) -> Result<(), Error> {
    arena.scope(|step| {
        let mut buffer = step.alloc::<u8>(bytes)?;
        buffer.view_mut().fill_bytes(value)?;
        assert!(step.read(buffer.view())?.iter().all(|byte| *byte == value));
        Ok(())
    })
}

fn on_the_host(kind: RegionKind) -> Result<(), Error> {
    let mut arena = exact(Host::new()).region(kind).build()?;
    let weights = arena.persistent_from(&WEIGHTS)?;
    step(&mut arena, 4 << 20, 1)?;
    let committed_bytes = arena.stats().committed_bytes;
    let (mut arena, weights) = in_fork((arena, weights), |(mut arena, mut weights)| {
        step(&mut arena, 40 << 20, 2).unwrap();
        weights.as_mut_slice().fill(8);
        assert!(arena.trim_to(0).unwrap() >= 38 * MIB);
        drop(weights);
        drop(arena);
    });
    assert_eq!(arena.stats().committed_bytes, committed_bytes);
    assert_eq!(weights.as_slice(), WEIGHTS, "what the child wrote is its own");
    step(&mut arena, 40 << 20, 3)
}

#[test]
fn on_the_host_parent_and_child_go_on_in_memory_of_their_own() {
    alone(|| {
        for kind in [RegionKind::Fixed, RegionKind::Virtual] {
            on_the_host(kind).unwrap();
        }
    });
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    let Err(error) = result else { panic!("it was not refused") };
    assert!(matches!(error.kind(), ErrorKind::Forked { .. }), "{error}");
}

fn in_memory_of_the_device(kind: RegionKind) -> Result<(), Error> {
    let device = Counting::new(Deferred::new(0));
    let counts = device.counts();
    let memory_calls = || {
        use Call::{Commit, Decommit, GiveBack, Obtain, Release, Reserve, Unreserve};
        [Obtain, Release, GiveBack, Reserve, Unreserve, Commit, Decommit].map(|c| counts.calls(c))
    };
    // Beyond the soft limit each step that closes gives back what it did not need.
    let mut arena = exact(device).region(kind).soft_limit(ByteSize::kib(8)).build()?;
    let weights = arena.persistent_from(&WEIGHTS)?;
    step(&mut arena, 40 << 10, 1)?;
    let before = memory_calls();
    let (mut arena, weights) = in_fork((arena, weights), |(mut arena, weights)| {
        step(&mut arena, 100, 2).unwrap(); // It closes, and gives nothing back.
        assert_eq!(memory_calls(), before);
        if kind == RegionKind::Virtual {
            refused(step(&mut arena, 1 << 20, 2));
            refused(arena.trim_to(0));
            refused(arena.pause(Keep::Persistent));
        }
        drop(weights);
        drop(arena);
        assert_eq!(memory_calls(), before, "what the parent holds is not the child's to give");
    });
    assert_eq!(weights.view().to_vec()?, WEIGHTS);
    step(&mut arena, 1 << 20, 3)?;
    drop((arena, weights));
    assert_ne!(memory_calls(), before, "the parent gives it back");
    Ok(())
}

#[test]
fn a_child_takes_no_memory_of_a_device_and_the_parent_goes_on() {
    alone(|| {
        for kind in [RegionKind::Fixed, RegionKind::Virtual] {
            in_memory_of_the_device(kind).unwrap();
        }
    });
}
