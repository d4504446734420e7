//! What a declaration lets be: of a persistent buffer on another stream, the step's plan.

use crate::cuda::arena_of;
use arena_scope::cuda::Blas;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{Alignment, Arena, ByteSize, Cuda, Error, StepKey};
use cuda_standin::Standin;
use rstest::rstest;

const STEP: StepKey = StepKey::named("step");

/// A handle whose workspace is used on another stream than the arena's, or was.
#[rstest]
#[case::lives(false)]
#[case::lived(true)]
fn a_persistent_buffer_on_another_stream_leaves_a_plan_as_it_is(#[case] is_dropped: bool) {
    let _standin = Standin::load().unwrap();
    let mut arena: Arena<Cuda> = arena_of(ByteSize::mib(8));
    let side = arena.device().new_stream().unwrap();
    let mut blas = Blas::on(&side).unwrap();
    blas.set_workspace(arena.persistent(4 << 20).unwrap()).unwrap();
    let kept = (!is_dropped).then_some(blas);
    let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    arena.install_plan(STEP, SlotTable::new(&[slot, slot]).unwrap()).unwrap();
    for _ in 0..3 {
        let step = arena.scope_with(STEP, |scope| {
            drop(scope.alloc::<u8>(256)?);
            scope.alloc::<u8>(256).map(drop)
        });
        step.map_err(|error: Error| error.to_string()).unwrap();
    }
    let deviations = arena.plan_deviations(STEP).unwrap();
    assert_eq!((deviations.total(), deviations.unfreed), (0, 0));
    drop(kept);
}
