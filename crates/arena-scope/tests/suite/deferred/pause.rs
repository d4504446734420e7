//! An arena that is paused between steps, with its plans and graphs, on a device whose work runs late.

use arena_scope::device::{Call, Deferred, Failing};
use arena_scope::errors::DeviceErrorKind;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, ErrorKind, Keep, Persistent, RegionKind, Reset,
    Scope, StepGraph, StepKey,
};
use rstest::rstest;

use super::SEEDS;
use crate::common::{KIB, Outcome};

const TRAIN: StepKey = StepKey::named("train");

fn virtual_arena<D: Device>(device: D, reset: Reset) -> Result<Arena<D>, Error> {
    let builder = Arena::builder(device).capacity(ByteSize::mib(1)).reset(reset);
    builder.region(RegionKind::Virtual).commit_ahead(ByteSize::kib(2)).build()
}

/// A step that adds the input to the weights by way of two buffers of its own.
fn train<D: Device>(
    step: &Scope<'_, '_, D>,
    weights: &mut Persistent<u8, D>,
    input: u8,
) -> Result<Vec<u8>, Error> {
    let x = step.upload(&[input; 3000])?;
    let mut y = step.alloc_zeroed::<u8>(3000)?;
    y.view_mut().range(..1500)?.copy_from(x.view().range(..1500)?)?;
    y.view_mut().range(1500..)?.copy_from(weights.view().range(..1500)?)?;
    drop(x);
    weights.view_mut().copy_from(y.view())?;
    step.read(weights.view())
}

/// The losses of a short training, paused after every `pause_every` steps.
fn training(
    seed: u64,
    reset: Reset,
    plan: bool,
    pause_every: usize,
) -> Result<Vec<Vec<u8>>, Error> {
    let device = Deferred::new(seed);
    let stream = device.stream().clone();
    let mut arena = virtual_arena(device, reset)?;
    let mut weights = arena.persistent_from(&[0_u8; 3000])?;
    if plan {
        let slot =
            |offset_bytes| PlannedSlot { offset_bytes, bytes: 3000, alignment: Alignment::DEFAULT };
        arena.install_plan(TRAIN, SlotTable::new(&[slot(3072), slot(0)])?)?;
    }
    let mut losses = Vec::new();
    for n in 0..12_u8 {
        losses.push(arena.scope_with(TRAIN, |step| train(step, &mut weights, n))?);
        if (usize::from(n) + 1).is_multiple_of(pause_every) {
            let before = stream.physical_bytes();
            arena.pause(Keep::Persistent)?;
            assert!(before > 0 && stream.physical_bytes() == 0);
            arena.resume()?;
            assert_eq!(stream.physical_bytes(), before);
        }
    }
    assert_eq!(stream.fault(), None);
    assert!(!plan || arena.plan_deviations(TRAIN).is_some_and(|seen| seen.steps == 0));
    Ok(losses)
}

#[rstest]
fn a_training_that_is_paused_again_and_again_computes_the_same(
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
    #[values(false, true)] plan: bool,
) -> Outcome {
    for seed in 0..SEEDS / 10 {
        let whole = training(seed, reset, plan, 100)?;
        assert_eq!(training(seed, reset, plan, 5)?, whole);
        assert_eq!(training(seed, reset, plan, 1)?, whole);
    }
    Ok(())
}

// --- graphs -----------------------------------------------------------------------------------

struct Captured {
    arena: Arena<Deferred>,
    source: Persistent<u8, Deferred>,
    out: Persistent<u8, Deferred>,
    graph: StepGraph<Deferred>,
}

impl Captured {
    fn new(seed: u64, reset: Reset) -> Result<Self, Error> {
        let mut arena = virtual_arena(Deferred::new(seed), reset)?;
        let source = arena.persistent_from(&[0_u8; 2000])?;
        let mut out = arena.persistent_from(&[0_u8; 2000])?;
        let copying = |step: &Scope<'_, '_, Deferred>, out: &mut Persistent<u8, Deferred>| {
            let mut scratch = step.alloc_zeroed::<u8>(2000)?;
            scratch.view_mut().copy_from(source.view())?;
            out.view_mut().copy_from(scratch.view())
        };
        arena.scope_with(TRAIN, |step| copying(step, &mut out))?;
        let graph = arena.capture(TRAIN, |step| copying(step, &mut out))?;
        Ok(Self { arena, source, out, graph })
    }

    fn replayed(&mut self, input: u8) -> Result<Vec<u8>, Error> {
        self.source.view_mut().write(&[input; 2000])?;
        self.graph.replay(&mut self.arena)?;
        self.out.view().to_vec()
    }
}

#[test]
fn a_graph_goes_on_while_the_region_grows_and_after_a_pause() -> Outcome {
    for seed in 0..SEEDS {
        let mut captured = Captured::new(seed, Reset::Keep)?;
        for n in 1..5_u8 {
            assert_eq!(captured.replayed(n)?, [n; 2000]);
            let (before, len) = (captured.arena.stats().committed_bytes, usize::from(n) * 20_000);
            captured.arena.scope_named("larger", |step| step.alloc_zeroed::<u8>(len).map(drop))?;
            assert!(captured.arena.stats().committed_bytes > before);
            if n % 2 == 0 {
                captured.arena.pause(Keep::Persistent)?;
                captured.arena.resume()?;
            }
        }
        assert_eq!(captured.arena.device().stream().fault(), None);
    }
    Ok(())
}

#[test]
fn a_graph_is_refused_while_the_arena_is_paused_and_trim_while_there_is_a_graph() -> Outcome {
    let mut captured = Captured::new(0, Reset::Keep)?;
    let refused = captured.arena.trim().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InUse { .. }), "{refused}");
    captured.arena.pause(Keep::Persistent)?;
    let Captured { arena, graph, .. } = &mut captured;
    for refused in [
        graph.replay(arena),
        arena.scope(|_| arena_scope::Ok(())),
        arena.capture(TRAIN, |_| arena_scope::Ok(())).map(drop),
        arena.fit().map(drop),
        arena.check(),
    ] {
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Paused));
    }
    arena.resume()?;
    assert_eq!(captured.replayed(9)?, [9; 2000]);
    assert_eq!(captured.arena.device().stream().fault(), None);
    Ok(())
}

#[test]
fn a_graph_is_stale_for_ever_once_its_buffers_were_not_kept() -> Outcome {
    let Captured { mut arena, source, out, graph } = Captured::new(0, Reset::Keep)?;
    let refused = arena.pause(Keep::Nothing).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WouldBeLost { persistent: 2 }), "{refused}");
    drop((source, out));
    arena.pause(Keep::Nothing)?;
    arena.resume()?;
    for _ in 0..2 {
        let refused = graph.replay(&mut arena).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::StaleGraph { .. }), "{refused}");
        assert!(refused.to_string().contains("paused"), "{refused}");
        // As the step was: the signature is the same again.
        arena.scope_with(TRAIN, |step| step.alloc_zeroed::<u8>(2000).map(drop))?;
    }
    Ok(())
}

// --- every call fails once --------------------------------------------------------------------

/// Grows, keeps, trims, fits, pauses and resumes; a failure ends it.
fn everything<D: Device>(
    arena: &mut Arena<D>,
    weights: &mut Persistent<u8, D>,
) -> Result<(), Error> {
    for n in 1..4_usize {
        arena.scope_with(TRAIN, |step| step.alloc_zeroed::<u8>(n * 3000).map(drop))?;
    }
    let kept = arena.scope(|step| step.promote(step.upload(&[3_u8; 2500])?.view()))?;
    weights.view_mut().range(..2500)?.copy_from(kept.view())?;
    drop(kept);
    arena.trim_to(6000)?;
    arena.scope_with(TRAIN, |step| step.alloc_zeroed::<u8>(9000).map(drop))?;
    arena.fit()?;
    arena.pause(Keep::Persistent)?;
    arena.resume()?;
    arena.trim().map(drop)
}

#[rstest]
fn whichever_call_fails_nothing_is_lost_and_the_arena_goes_on(
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) -> Outcome {
    for n in 1.. {
        let device = Failing::new(Deferred::new(n));
        let (switch, stream) = (device.switch(), device.stream().another());
        let mut arena = virtual_arena(device, reset)?;
        let mut weights = arena.persistent_from(&[1_u8; 3000])?;
        arena.observe(None);
        switch.fail_nth_of_any(n);
        let outcome = everything(&mut arena, &mut weights);
        let failed = switch.fail_nth_of_any(0) == 0;
        assert!(!failed || outcome.is_err() || n > 1, "number {n}");
        if let Err(error) = outcome
            && arena.is_paused()
        {
            assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
            arena.resume()?;
        }
        arena.check()?;
        let seen = weights.view().to_vec()?;
        assert!(seen[2500..].iter().all(|byte| *byte == 1), "number {n}");
        assert!(seen[..2500].iter().all(|byte| *byte == seen[0]), "number {n}");
        everything(&mut arena, &mut weights)?;
        assert_eq!(weights.view().to_vec()?, [&[3_u8; 2500][..], &[1; 500]].concat());
        assert_eq!(stream.physical_bytes(), arena.stats().committed_bytes);
        drop((arena, weights));
        assert_eq!((stream.fault(), stream.physical_bytes()), (None, 0));
        if !failed {
            assert!(n > 20, "{n}");
            break;
        }
    }
    Ok(())
}

#[test]
fn without_memory_the_arena_stays_paused_until_there_is_some() -> Outcome {
    let device = Failing::new(Deferred::new(0));
    let (switch, stream) = (device.switch(), device.stream().another());
    let mut arena = virtual_arena(device, Reset::Keep)?;
    let weights = arena.persistent_from(&[1_u8; 3000])?;
    arena.pause(Keep::Persistent)?;
    switch.fail_nth(Call::Commit, 1);
    let refused = arena.resume().unwrap_err();
    let ErrorKind::Device(error) = refused.kind() else { panic!("{refused}") };
    assert_eq!((error.call, error.kind), ("commit", DeviceErrorKind::Refused));
    assert!(arena.is_paused());
    assert_eq!(stream.physical_bytes(), 0);
    arena.resume()?;
    assert_eq!(weights.view().to_vec()?, [1; 3000]);
    assert!(stream.physical_bytes() < 8 * KIB);
    Ok(())
}
