//! Random programs that keep buffers without a lifetime in a list across scopes and steps, on the arena and on
//! a model: each buffer is what was written to it, or is refused, as its scope says.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, Error, ErrorKind, Host, Placement, Reset, Scope, ScopeOptions, StepBuffer,
    StepKey,
};
use proptest::prelude::*;

use crate::common::{KIB, builder};

const STEP: StepKey = StepKey::named("step");

#[derive(Debug, Clone)]
enum Op {
    /// A buffer for the list, asked for as such, or as a transient one.
    Make { len: usize, owned: bool },
    /// Drops a buffer of the list, here or on another thread.
    Drop { pick: usize, here: bool },
    /// Overwrites a buffer of the list, in place, or as a transient one that goes back to it.
    Write { pick: usize, taken: bool },
    /// A transient buffer that dies at once.
    Scratch(usize),
    /// A scope inside.
    Scope { end: End, ops: Vec<Op> },
}

#[derive(Debug, Clone, Copy)]
enum End {
    Return,
    Panic,
    Forget,
}

fn program() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![1 => Just(0_usize), 4 => 1_usize..300, 2 => 256_usize..1024];
    let leaf = prop_oneof![
        6 => (len.clone(), any::<bool>()).prop_map(|(len, owned)| Op::Make { len, owned }),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(pick, here)| Op::Drop { pick, here }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(pick, taken)| Op::Write { pick, taken }),
        2 => len.prop_map(Op::Scratch),
    ];
    let end = prop_oneof![6 => Just(End::Return), 1 => Just(End::Panic), 1 => Just(End::Forget)];
    let op = leaf.prop_recursive(3, 30, 8, move |inner| {
        (end.clone(), prop::collection::vec(inner, 0..8))
            .prop_map(|(end, ops)| Op::Scope { end, ops })
    });
    prop::collection::vec(op, 1..12)
}

/// Any table of slots at all: no plan is trusted.
fn table() -> impl Strategy<Value = SlotTable> {
    let slot = (0_u64..12, 1_u64..1100).prop_map(|(at, bytes)| PlannedSlot {
        offset_bytes: at * 256,
        bytes,
        alignment: Alignment::DEFAULT,
    });
    prop::collection::vec(slot, 1..12)
        .prop_map(|slots| SlotTable::new(&slots).expect("they are aligned"))
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![
        4 => Just(Placement::Bump),
        1 => Just(Placement::Separate),
        1 => any::<u64>().prop_map(|seed| Placement::Shuffled { seed }),
    ]
}

struct Held {
    buffer: StepBuffer<u8>,
    expected: Vec<u8>,
    /// The scope that it belongs to, by the model's count.
    scope: u64,
}

#[derive(Default)]
struct Run {
    held: Vec<Held>,
    /// The open scopes by the model's count, innermost last.
    open: Vec<u64>,
    opened: u64,
    pattern: u8,
}

struct Asked;

impl Run {
    fn enter(&mut self) {
        self.opened += 1;
        self.open.push(self.opened);
    }

    fn pattern(&mut self, len: usize) -> Vec<u8> {
        self.pattern = self.pattern % 250 + 1;
        vec![self.pattern; len]
    }

    fn ops(&mut self, step: &mut Scope<'_, '_>, ops: &[Op]) -> Result<(), Error> {
        for op in ops {
            self.op(step, op)?;
            for held in &self.held {
                match held.buffer.view(step) {
                    Ok(view) => {
                        assert!(self.open.contains(&held.scope), "{:?}", held.buffer);
                        assert_eq!(view.as_slice(), held.expected, "{:?}", held.buffer);
                    }
                    Err(told) => {
                        assert!(matches!(told.kind(), ErrorKind::StaleBuffer { .. }), "{told}");
                        assert!(!self.open.contains(&held.scope), "{told}");
                    }
                }
            }
        }
        Ok(())
    }

    fn op(&mut self, step: &mut Scope<'_, '_>, op: &Op) -> Result<(), Error> {
        match op {
            Op::Make { len, owned } => {
                let expected = self.pattern(*len);
                let buffer = if *owned {
                    let mut buffer = step.alloc_owned(*len)?;
                    buffer.view_mut(step)?.write(&expected)?;
                    buffer
                } else {
                    step.own(step.upload(&expected)?)?
                };
                let scope = *self.open.last().expect("a scope is open");
                self.held.push(Held { buffer, expected, scope });
            }
            Op::Drop { .. } | Op::Write { .. } if self.held.is_empty() => {}
            Op::Drop { pick, here } => {
                let held = self.held.swap_remove(pick % self.held.len());
                if !here {
                    std::thread::scope(|threads| threads.spawn(|| drop(held)).join()).unwrap();
                }
            }
            Op::Write { pick, taken } => {
                let mut held = self.held.swap_remove(pick % self.held.len());
                if !self.open.contains(&held.scope) {
                    return Ok(());
                }
                held.expected = self.pattern(held.expected.len());
                if *taken {
                    let mut buffer = held.buffer.take(step)?;
                    buffer.as_mut_slice().copy_from_slice(&held.expected);
                    let scope = *self.open.last().expect("a scope is open");
                    held = Held { buffer: step.own(buffer)?, scope, ..held };
                } else {
                    held.buffer.view_mut(step)?.as_mut_slice().copy_from_slice(&held.expected);
                }
                self.held.push(held);
            }
            Op::Scratch(len) => drop(step.upload(&vec![0xff_u8; *len])?),
            Op::Scope { end, ops } => {
                self.enter();
                match end {
                    End::Return => step.scope(|inner| self.ops(inner, ops))?,
                    End::Panic => {
                        let body = AssertUnwindSafe(|| {
                            step.scope(|inner| -> Result<(), Error> {
                                self.ops(inner, ops)?;
                                resume_unwind(Box::new(Asked))
                            })
                        });
                        match catch_unwind(body) {
                            Err(payload) if payload.is::<Asked>() => {}
                            Err(payload) => resume_unwind(payload),
                            Ok(outcome) => outcome?,
                        }
                    }
                    End::Forget => {
                        let mut guard = step.enter()?;
                        self.ops(&mut guard.scope(), ops)?;
                        std::mem::forget(guard);
                    }
                }
                self.open.pop();
            }
        }
        Ok(())
    }

    fn step(&mut self, arena: &mut Arena<Host>, reset: Reset, ops: &[Op]) -> Result<(), Error> {
        self.enter();
        let options = ScopeOptions::from(STEP).reset(reset);
        arena.scope_with(options, |step| self.ops(step, ops))?;
        self.open.pop();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_buffer_is_what_was_written_to_it_or_is_refused(
        placement in placement(),
        plan in prop::option::of(table()),
        (recorded, zero) in (any::<bool>(), any::<bool>()),
        (usual, unusual) in (program(), program()),
    ) {
        let mut arena = builder(Host::new(), 256 * KIB).placement(placement).build()?;
        if recorded {
            arena.record(None);
        }
        if let Some(plan) = plan {
            arena.install_plan(STEP, plan)?;
        }
        let reset = if zero { Reset::Zero } else { Reset::Keep };
        let mut run = Run::default();
        // Under a plan the first is counted, the next ones repeat it, and one differs.
        for ops in [&usual, &usual, &usual, &unusual, &usual] {
            run.step(&mut arena, reset, ops)?;
            prop_assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
            run.held.truncate(20); // Some are carried into later steps, others dropped between two.
        }
    }
}
