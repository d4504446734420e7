//! In a loop that sends its input ahead and reads its results behind, a step allocates nothing on the
//! host's heap.

use crate::heap;

use crate::cuda::arena_with;
use arena_scope::cuda::InputSlots;
use arena_scope::{Error, Reset};
use cuda_standin::Standin;

/// Ten steps, each with a batch that was sent ahead and a result that `read` takes two steps later; what
/// the last seven allocated.
fn steps(read: fn(&mut arena_scope::cuda::ResultQueue<u32>) -> u32) -> u64 {
    let mut arena = arena_with(Reset::Zero);
    let mut slots: InputSlots<u32> = arena.input_slots(2, 16).unwrap();
    let mut results = arena.result_queue::<u32>(3, 16).unwrap();
    slots.fill(|host| host.fill(0)).unwrap();
    let mut before = 0;
    for n in 0..10 {
        if n == 3 {
            before = heap::allocations();
        }
        slots.fill(|host| host.fill(n + 1)).unwrap();
        let batch = slots.next().unwrap();
        let step = arena.scope(|step| {
            let mut result = step.alloc::<u32>(16)?;
            result.view_mut().copy_from(batch)?;
            results.push(result.view())
        });
        step.unwrap_or_else(|error: Error| panic!("{error}"));
        if n >= 2 {
            assert_eq!(read(&mut results), 16 * (n - 2));
        }
    }
    heap::allocations() - before
}

#[test]
fn input_and_results_cost_no_heap_allocation() {
    let standin = Standin::load().unwrap();
    let shown = |results: &mut arena_scope::cuda::ResultQueue<u32>| {
        results.pop_with(|result| result.iter().sum()).unwrap().unwrap()
    };
    assert_eq!(steps(shown), 0);
    standin.reset(1);
    let asked = |results: &mut arena_scope::cuda::ResultQueue<u32>| {
        std::iter::repeat_with(|| results.try_pop_with(|result| result.iter().sum()).unwrap())
            .find_map(|sum| sum)
            .unwrap()
    };
    assert_eq!(steps(asked), 0);
    // Which is told from a vector for each.
    standin.reset(2);
    assert_eq!(steps(|results| results.pop().unwrap().unwrap().iter().sum()), 7);
}
