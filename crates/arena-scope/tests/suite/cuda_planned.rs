//! Under a plan the drop of a buffer makes room within the step. Where another stream may use the buffer
//! it does not: its bytes are used again after the wait alone.

use std::sync::Arc;

use crate::cuda::{Seen, arena, settle, side_stream};
use arena_scope::cudarc::driver::CudaStream;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{Alignment, Arena, Cuda, StepKey};
use cuda_standin::Standin;
use rstest::rstest;

const STEP: StepKey = StepKey::named("step");
const X: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// Two buffers one after the other on the same bytes.
fn planned() -> Arena<Cuda> {
    let slot = PlannedSlot { offset_bytes: 0, bytes: 16, alignment: Alignment::DEFAULT };
    let mut arena = arena();
    arena.install_plan(STEP, SlotTable::new(&[slot, slot]).unwrap()).unwrap();
    arena
}

/// Whether the side stream, which copies `x` out, is declared.
fn step(arena: &mut Arena<Cuda>, side: Option<(&Arc<CudaStream>, &mut Seen)>) -> bool {
    let moved = arena.scope_with(STEP, |scope| {
        let x = scope.upload(&X)?;
        let first = x.address();
        if let Some((side, seen)) = side {
            settle(scope);
            x.declare_stream(side)?;
            seen.copy_raw(side, first);
        }
        drop(x);
        let y = scope.upload(&[9.0_f32; 4])?;
        arena_scope::Ok(y.address() != first)
    });
    moved.unwrap()
}

#[rstest]
#[case::counted(0)]
#[case::compared_with_a_step_before(3)]
fn what_another_stream_reads_is_not_reused_before_the_join(#[case] steps_before: usize) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = planned();
        let side = side_stream(&arena);
        for _ in 0..steps_before {
            assert!(!step(&mut arena, None), "as planned");
        }
        let mut seen = Seen::new(side.context());
        assert!(step(&mut arena, Some((&side, &mut seen))), "the second buffer is bumped");
        assert_eq!(seen.after(&side), X, "seed {seed}");
        assert_eq!(arena.plan_deviations(STEP).unwrap().late, 1);
        assert!(!step(&mut arena, None), "as planned again");
        assert_eq!(arena.plan_deviations(STEP).unwrap().late, 1);
    }
}
