//! Programs of random requests and scopes, run on the arena and on the model of it.
//!
//! After each operation every figure agrees, and every live buffer holds what was written to it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use arena_scope::device::{Call, FailSwitch, Failing};
use arena_scope::record::StepSignature;
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, ErrorKind, Host, Persistent, Probe, RegionKind,
    Reset, Scope, ScopeOptions, Transient, View,
};
use proptest::prelude::*;

use crate::model::{Held, Model};

#[derive(Debug, Clone)]
enum Op {
    Alloc {
        bytes: usize,
        alignment: Alignment,
        zeroed: bool,
    },
    /// Drops one of the scope's buffers; the number picks it.
    DropBuffer(usize),
    /// A persistent buffer: below the mark before the first scope, kept afterwards.
    Persistent {
        bytes: usize,
        zeroed: bool,
    },
    DropPersistent(usize),
    /// The next fill is refused.
    FailFill,
    Scope {
        reset: Reset,
        end: End,
        ops: Vec<Op>,
    },
}

/// How a scope ends. The first three are guards, the others closures.
#[derive(Debug, Clone, Copy)]
enum End {
    Close,
    Drop,
    Forget,
    Return,
    Panic,
}

fn op(fails: bool) -> impl Strategy<Value = Op> {
    let bytes =
        prop_oneof![1 => Just(0_usize), 3 => 1_usize..40, 3 => 200_usize..300, 3 => 1_usize..3000];
    let alignment = (0_u32..=10).prop_map(|log| Alignment::new(1 << log).expect("a power of two"));
    let leaf = prop_oneof![
        8 => (bytes.clone(), alignment, any::<bool>())
            .prop_map(|(bytes, alignment, zeroed)| Op::Alloc { bytes, alignment, zeroed }),
        2 => any::<usize>().prop_map(Op::DropBuffer),
        3 => (bytes, any::<bool>()).prop_map(|(bytes, zeroed)| Op::Persistent { bytes, zeroed }),
        2 => any::<usize>().prop_map(Op::DropPersistent),
        u32::from(fails) => Just(Op::FailFill),
    ];
    let reset = prop_oneof![Just(Reset::Keep), Just(Reset::Zero), Just(Reset::Poison)];
    let end = prop_oneof![
        3 => Just(End::Close),
        2 => Just(End::Drop),
        2 => Just(End::Forget),
        3 => Just(End::Return),
        1 => Just(End::Panic),
    ];
    leaf.prop_recursive(4, 60, 12, move |inner| {
        (reset.clone(), end.clone(), prop::collection::vec(inner, 0..12))
            .prop_map(|(reset, end, ops)| Op::Scope { reset, end, ops })
    })
}

fn program(fails: bool) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(fails), 1..16)
}

/// The panic that a program asks for.
struct Asked;

struct Run<D: Device> {
    model: Model,
    switch: Option<FailSwitch>,
    persistent: Vec<(Persistent<u8, D>, Held)>,
    /// What a second run must repeat.
    offsets: Vec<u64>,
    signatures: Vec<Option<StepSignature>>,
    exhausted: u64,
}

/// Whether a clearing failed; nothing else may fail.
fn is_refused_fill(outcome: Result<(), Error>) -> bool {
    let Err(error) = outcome else { return false };
    assert!(error.to_string().contains("fill"), "{error}");
    true
}

/// Runs a scope of `$owner`, which is an arena or a scope.
macro_rules! run_scope {
    ($run:ident, $owner:ident, $reset:expr, $end:expr, $ops:expr) => {{
        let options = ScopeOptions::default().reset($reset);
        while $run.model.open_fails() {
            let refused = $owner.enter_with(options).map(drop);
            assert!(is_refused_fill(refused), "no scope opens on memory that should be clear");
        }
        $run.model.open($reset);
        match $end {
            End::Close | End::Drop | End::Forget => {
                let mut guard = $owner.enter_with(options).expect("nothing fails");
                $run.scope(&mut guard.scope(), $ops);
                match $end {
                    End::Forget => {
                        std::mem::forget(guard);
                        $run.model.forget();
                    }
                    End::Drop => {
                        drop(guard);
                        $run.model.deferred |= $run.model.close();
                    }
                    _ => assert_eq!(is_refused_fill(guard.close()), $run.model.close()),
                }
            }
            End::Return => {
                let outcome = $owner.scope_with(options, |scope| {
                    $run.scope(scope, $ops);
                    arena_scope::Ok(())
                });
                assert_eq!(is_refused_fill(outcome), $run.model.close());
            }
            End::Panic => {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    $owner.scope_with(options, |scope| -> Result<(), Error> {
                        $run.scope(scope, $ops);
                        resume_unwind(Box::new(Asked))
                    })
                }));
                match caught {
                    Err(payload) if payload.is::<Asked>() => {}
                    Err(payload) => resume_unwind(payload),
                    Ok(outcome) => panic!("{outcome:?} instead of a panic"),
                }
                $run.model.deferred |= $run.model.close();
            }
        }
    }};
}

impl<D: Device> Run<D> {
    fn new(arena: &Arena<D>, switch: Option<FailSwitch>) -> Self {
        Self {
            model: Model::new(arena),
            switch,
            persistent: Vec::new(),
            offsets: Vec::new(),
            signatures: Vec::new(),
            exhausted: 0,
        }
    }

    /// Runs a program from its first to its last operation.
    fn arena(&mut self, arena: &mut Arena<D>, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Alloc { .. } | Op::DropBuffer(_) => {}
                Op::Persistent { bytes, zeroed } => {
                    let asked = if *zeroed { Arena::persistent_zeroed } else { Arena::persistent };
                    let made = asked(&*arena, *bytes);
                    self.persistent(made, *bytes as u64, *zeroed);
                }
                Op::DropPersistent(pick) => self.drop_persistent(*pick),
                Op::FailFill => self.fail_fill(),
                Op::Scope { reset, end, ops } => {
                    run_scope!(self, arena, *reset, *end, ops);
                    self.signatures.push(arena.last_step_signature());
                    assert_eq!(arena.resets(), self.model.resets);
                    assert_eq!(arena.last_step_high_water_bytes(), self.model.last_high);
                }
            }
            self.model.check(arena.stats());
            self.verify_persistent();
        }
    }

    fn scope(&mut self, scope: &mut Scope<'_, '_, D>, ops: &[Op]) {
        let mut mine = Vec::new();
        for op in ops {
            match op {
                Op::Alloc { bytes, alignment, zeroed } => {
                    mine.extend(self.alloc(scope, *bytes, *alignment, *zeroed));
                }
                Op::DropBuffer(_) if mine.is_empty() => {}
                // The model keeps its bytes: nobody else gets them before the scope closes.
                Op::DropBuffer(pick) => drop(mine.swap_remove(pick % mine.len())),
                Op::Persistent { bytes, .. } => {
                    let made = scope.persistent(*bytes);
                    self.persistent(made, *bytes as u64, false);
                }
                Op::DropPersistent(pick) => self.drop_persistent(*pick),
                Op::FailFill => self.fail_fill(),
                Op::Scope { reset, end, ops } => run_scope!(self, scope, *reset, *end, ops),
            }
            self.model.check(scope.stats());
            for (buffer, place) in &mine {
                let found = self.read(buffer.view());
                self.model.verify(*place, &found);
            }
        }
        self.verify_persistent();
    }

    fn alloc<'s>(
        &mut self,
        scope: &Scope<'s, '_, D>,
        len: usize,
        alignment: Alignment,
        zeroed: bool,
    ) -> Option<(Transient<'s, u8, D>, Held)> {
        let alignment = if zeroed { Alignment::DEFAULT } else { alignment };
        let made = match zeroed {
            true => scope.alloc_zeroed::<u8>(len),
            false => scope.alloc_aligned::<u8>(len, alignment),
        };
        let place = self.outcome(&made, len as u64, alignment, zeroed)?;
        let mut buffer = made.expect("it was served");
        assert_eq!((buffer.offset_bytes(), buffer.len()), (place.start, len));
        assert!(alignment.divides(buffer.address()));
        self.model.add_transient(place);
        self.offsets.push(place.start);
        let found = self.read(buffer.view());
        self.model.verify(place, &found);
        buffer.view_mut().write(&self.model.pattern(place)).expect("no copy fails");
        Some((buffer, place))
    }

    /// Where a request above the cursor must have been served, or `None` if it must have failed.
    fn outcome<B>(
        &mut self,
        made: &Result<B, Error>,
        bytes: u64,
        alignment: Alignment,
        zeroed: bool,
    ) -> Option<Held> {
        if self.model.call_fails() {
            assert!(made.as_ref().is_err_and(|error| !error.is_exhausted()));
            return None;
        }
        let Some(place) = self.model.place(bytes, alignment) else {
            self.refused(made, bytes);
            return None;
        };
        if zeroed && self.model.fill_refused(place, 0) {
            assert!(made.as_ref().is_err_and(|error| !error.is_exhausted()));
            self.model.owe(place);
            return None;
        }
        assert!(made.is_ok(), "there was room at {place:?}");
        Some(place)
    }

    fn refused<B>(&mut self, made: &Result<B, Error>, bytes: u64) {
        let Err(error) = made else { panic!("there was no room") };
        self.model.check_exhausted(error.as_exhausted().expect("no room"), bytes);
        self.exhausted += 1;
    }

    fn persistent(&mut self, made: Result<Persistent<u8, D>, Error>, bytes: u64, zeroed: bool) {
        let alignment = Alignment::DEFAULT;
        let keeps = self.model.is_marked() && bytes > 0;
        let place = if !keeps {
            self.outcome(&made, bytes, alignment, zeroed)
        } else if self.model.call_fails() {
            assert!(made.as_ref().is_err_and(|error| !error.is_exhausted()));
            None
        } else if !self.model.can_keep(bytes, alignment) {
            self.refused(&made, bytes);
            None
        } else if zeroed && self.model.fill_fails {
            self.model.fill_fails = false;
            self.model.refuse_kept();
            assert!(made.as_ref().is_err_and(|error| !error.is_exhausted()));
            None
        } else {
            let start = made.as_ref().expect("there was room").offset_bytes();
            Some(Held { start, end: start + bytes })
        };
        let Some(place) = place else { return };
        let mut buffer = made.expect("it was served");
        assert_eq!((buffer.offset_bytes(), buffer.len() as u64), (place.start, bytes));
        assert_eq!(buffer.is_kept(), keeps);
        if keeps {
            self.model.add_kept(place, alignment);
            if zeroed {
                assert!(!self.model.fill_refused(place, 0));
            }
        } else {
            self.model.add_below(place);
        }
        self.offsets.push(place.start);
        let found = self.read(buffer.view());
        self.model.verify(place, &found);
        buffer.view_mut().write(&self.model.pattern(place)).expect("no copy fails");
        self.persistent.push((buffer, place));
    }

    fn drop_persistent(&mut self, pick: usize) {
        if self.persistent.is_empty() {
            return;
        }
        let (buffer, place) = self.persistent.swap_remove(pick % self.persistent.len());
        if buffer.is_kept() {
            self.model.drop_kept(place);
        }
    }

    fn fail_fill(&mut self) {
        if let Some(switch) = &self.switch {
            switch.fail_nth(Call::Fill, 1);
            self.model.fill_fails = true;
        }
    }

    fn verify_persistent(&mut self) {
        for (buffer, place) in std::mem::take(&mut self.persistent) {
            let found = self.read(buffer.view());
            self.model.verify(place, &found);
            self.persistent.push((buffer, place));
        }
    }

    /// Reads a buffer. A read tells of an earlier failure, once, but does not try to mend it.
    fn read(&mut self, view: View<'_, u8, D>) -> Vec<u8> {
        if std::mem::take(&mut self.model.deferred) {
            assert!(matches!(view.to_vec().unwrap_err().kind(), ErrorKind::ClosingFailed { .. }));
        }
        view.to_vec().expect("no read fails")
    }
}

fn on_the_host(capacity: u64, kind: RegionKind, ops: &[Op]) -> Run<Failing<Host>> {
    let device = Failing::new(Host::new());
    let switch = device.switch();
    let mut arena = arena_on(device, capacity, kind);
    let mut run = Run::new(&arena, Some(switch));
    run.arena(&mut arena, ops);
    run
}

fn arena_on<D: Device>(device: D, capacity: u64, kind: RegionKind) -> Arena<D> {
    let builder = Arena::builder(device).capacity(ByteSize::bytes_exact(capacity));
    let builder = builder.region(kind).commit_ahead(ByteSize::bytes_exact(0));
    let mut arena = builder.build().expect("a small region");
    arena.observe(None);
    arena
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_arena_agrees_with_the_model(capacity in 0_u64..20_000, ops in program(true)) {
        on_the_host(capacity, RegionKind::Fixed, &ops);
        on_the_host(capacity, RegionKind::Virtual, &ops);
    }

    #[test]
    fn the_same_program_gets_the_same_offsets_and_signatures_in_either_kind_of_region(
        capacity in 0_u64..20_000,
        ops in program(true),
    ) {
        let [first, second] = [RegionKind::Fixed, RegionKind::Virtual]
            .map(|kind| on_the_host(capacity, kind, &ops));
        prop_assert_eq!(first.offsets, second.offsets);
        prop_assert_eq!(first.signatures, second.signatures);
    }

    #[test]
    fn a_probe_tells_the_smallest_capacity_to_the_byte(ops in program(false)) {
        let mut arena = arena_on(Probe::like(&Host::new()), 1 << 40, RegionKind::Fixed);
        let mut probed = Run::new(&arena, None);
        probed.arena(&mut arena, &ops);
        prop_assert_eq!(probed.exhausted, 0);
        let smallest = arena.smallest_capacity_bytes();
        let on_the_host = |capacity| on_the_host(capacity, RegionKind::Fixed, &ops);
        prop_assert_eq!(on_the_host(smallest).exhausted, 0, "it fits into {}", smallest);
        if let Some(less) = smallest.checked_sub(1) {
            prop_assert!(on_the_host(less).exhausted > 0, "it fits into {} too", less);
        }
    }
}
