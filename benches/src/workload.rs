//! The same work for each allocator: a step's requests, alone or with its drops, from one region
//! that is large enough, then a reset.

use std::alloc::Layout;
use std::hint::black_box;
use std::mem::forget;
use std::ptr::NonNull;

use arena_scope::{Arena, ByteSize, Host};
use bump_scope::Bump as BumpScope;
use bump_scope::alloc::Allocator as _;
use bump_scope::traits::BumpAllocatorTyped;
use bumpalo::Bump as Bumpalo;

use crate::trace::{Op, Step};

/// The alignment that GPU buffers need.
const ALIGNMENT: usize = 256;

/// An allocator with room for a whole step.
pub trait Allocator {
    /// Its name in reports.
    const NAME: &'static str;

    /// One with room for `bytes` bytes.
    fn presized(bytes: usize) -> Self;

    /// Asks for every size, forgets the handles, and resets.
    fn allocate(&mut self, sizes: &[usize]);

    /// Asks and drops as the step did, and resets. `slots` is as long as the step needs.
    fn step(&mut self, step: &Step);
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("sizes of a trace are small")
}

/// This project's arena, unobserved.
#[derive(Debug)]
pub struct Watermark(Arena<Host>);

impl Watermark {
    /// The same, and each step is observed.
    #[must_use]
    pub fn observed(bytes: usize) -> Self {
        let mut observed = Self::presized(bytes);
        observed.0.observe(None);
        observed
    }
}

impl Allocator for Watermark {
    const NAME: &'static str = "watermark";

    fn presized(bytes: usize) -> Self {
        let capacity = ByteSize::bytes_exact(bytes as u64);
        Self(Arena::builder(Host::new()).capacity(capacity).build().expect("the host has room"))
    }

    fn allocate(&mut self, sizes: &[usize]) {
        let done = self.0.scope(|scope| {
            for &bytes in sizes {
                let buffer = scope.alloc::<u8>(bytes)?;
                black_box(buffer.bare_address());
                forget(buffer);
            }
            arena_scope::Ok(())
        });
        done.expect("the arena was sized for it");
    }

    fn step(&mut self, step: &Step) {
        let done = self.0.scope(|scope| {
            let mut slots = Vec::with_capacity(step.slots);
            slots.resize_with(step.slots, || None);
            for op in &step.ops {
                match *op {
                    Op::Alloc { slot, bytes } => {
                        let buffer = scope.alloc::<u8>(bytes)?;
                        black_box(buffer.bare_address());
                        slots[slot] = Some(buffer);
                    }
                    Op::Drop { slot } => slots[slot] = None,
                }
            }
            arena_scope::Ok(())
        });
        done.expect("the arena was sized for it");
    }
}

/// Asks and drops as the step did, where a drop frees nothing. The handles are plain pointers.
fn step_with(step: &Step, alloc: impl Fn(Layout) -> NonNull<u8>) {
    let mut slots: Vec<Option<NonNull<u8>>> = vec![None; step.slots];
    for op in &step.ops {
        match *op {
            Op::Alloc { slot, bytes } => slots[slot] = Some(black_box(alloc(layout(bytes)))),
            Op::Drop { slot } => slots[slot] = None,
        }
    }
    black_box(slots);
}

impl Allocator for Bumpalo {
    const NAME: &'static str = "bumpalo";

    fn presized(bytes: usize) -> Self {
        // The slack keeps its chunk's own footer and first padding from forcing a second chunk.
        Self::with_capacity(bytes + 4096)
    }

    fn allocate(&mut self, sizes: &[usize]) {
        for &bytes in sizes {
            black_box(self.try_alloc_layout(layout(bytes)).expect("sized for it"));
        }
        self.reset();
    }

    fn step(&mut self, step: &Step) {
        step_with(step, |layout| self.try_alloc_layout(layout).expect("sized for it"));
        self.reset();
    }
}

impl Allocator for BumpScope {
    const NAME: &'static str = "bump-scope";

    fn presized(bytes: usize) -> Self {
        Self::try_with_size(bytes + 4096).expect("the host has room")
    }

    fn allocate(&mut self, sizes: &[usize]) {
        for &bytes in sizes {
            black_box(self.try_allocate_layout(layout(bytes)).expect("sized for it"));
        }
        self.reset();
    }

    fn step(&mut self, step: &Step) {
        step_with(step, |layout| self.try_allocate_layout(layout).expect("sized for it"));
        self.reset();
    }
}

/// [`BumpScope`] that takes the last block back when it is freed, as its `deallocate` does.
#[derive(Debug)]
pub struct FreeingBumpScope(BumpScope);

impl Allocator for FreeingBumpScope {
    const NAME: &'static str = "bump-scope, freeing";

    fn presized(bytes: usize) -> Self {
        Self(BumpScope::presized(bytes))
    }

    fn allocate(&mut self, sizes: &[usize]) {
        Allocator::allocate(&mut self.0, sizes);
    }

    fn step(&mut self, step: &Step) {
        let mut slots: Vec<Option<(NonNull<u8>, Layout)>> = vec![None; step.slots];
        for op in &step.ops {
            match *op {
                Op::Alloc { slot, bytes } => {
                    let layout = layout(bytes);
                    let block = self.0.try_allocate_layout(layout).expect("sized for it");
                    slots[slot] = Some((black_box(block), layout));
                }
                Op::Drop { slot } => {
                    if let Some((block, layout)) = slots[slot].take() {
                        // SAFETY: the block is this allocator's, of this layout, and is not used again.
                        unsafe { self.0.deallocate(block, layout) };
                    }
                }
            }
        }
        black_box(slots);
        self.0.reset();
    }
}
