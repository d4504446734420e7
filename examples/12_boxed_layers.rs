//! A network of `Vec<Box<dyn Layer>>` whose layers keep their inputs in fields, as many programs do.
//!
//! A `StepBuffer` has no lifetime, so no struct here has one. The same network with `Transient`s, whose
//! late use does not compile, stands below it and gets the same losses to the bit. Both follow a plan of
//! the first step, and neither allocates on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error as AnyError;
use std::sync::atomic::{AtomicU64, Ordering};

use arena_plan::{Options, PlannedStep};
use arena_scope::{Arena, ByteSize, Error, Host, Persistent, Scope, StepBuffer, Transient};

const BATCH: usize = 32;
const WIDTHS: [usize; 4] = [2, 64, 64, 1];
const LEARNING_RATE: f32 = 0.05;
const STEPS: u16 = 400;

/// A layer with a state between forward and backward.
trait Layer {
    fn forward(
        &mut self,
        step: &Scope<'_, '_>,
        x: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error>;

    /// Takes the gradient of the output, changes the weights, and returns the gradient of the input.
    fn backward(
        &mut self,
        step: &Scope<'_, '_>,
        dy: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error>;
}

struct Linear {
    weights: Persistent<f32>,
    widths: (usize, usize),
    input: Option<StepBuffer<f32>>,
}

impl Layer for Linear {
    fn forward(
        &mut self,
        step: &Scope<'_, '_>,
        x: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error> {
        let mut y = step.alloc_owned(BATCH * self.widths.1)?;
        multiply(
            self.weights.as_slice(),
            x.view(step)?.as_slice(),
            y.view_mut(step)?.as_mut_slice(),
        );
        self.input = Some(x); // One that is left from a step that failed is dropped here.
        Ok(y)
    }

    fn backward(
        &mut self,
        step: &Scope<'_, '_>,
        dy: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error> {
        let x = self.input.take().expect("forward comes first").take(step)?;
        let mut dx = step.alloc_owned(BATCH * self.widths.0)?;
        multiply_back(
            self.weights.as_mut_slice(),
            x.as_slice(),
            dy.view(step)?.as_slice(),
            dx.view_mut(step)?.as_mut_slice(),
        );
        Ok(dx) // `x` and `dy` are dropped here: a plan uses their bytes again.
    }
}

#[derive(Default)]
struct Relu {
    input: Option<StepBuffer<f32>>,
}

impl Layer for Relu {
    fn forward(
        &mut self,
        step: &Scope<'_, '_>,
        x: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error> {
        let mut y = step.alloc_owned(x.len())?;
        relu(x.view(step)?.as_slice(), y.view_mut(step)?.as_mut_slice());
        self.input = Some(x);
        Ok(y)
    }

    fn backward(
        &mut self,
        step: &Scope<'_, '_>,
        mut dy: StepBuffer<f32>,
    ) -> Result<StepBuffer<f32>, Error> {
        let x = self.input.take().expect("forward comes first");
        relu_back(x.view(step)?.as_slice(), dy.view_mut(step)?.as_mut_slice());
        Ok(dy)
    }
}

struct Network {
    layers: Vec<Box<dyn Layer>>,
}

impl Network {
    fn train(&mut self, step: &mut Scope<'_, '_>, batch: &Batch) -> Result<f32, Error> {
        let mut x = step.own(step.upload(&batch.points)?)?;
        for layer in &mut self.layers {
            x = layer.forward(step, x)?;
        }
        let loss = loss_and_gradient(&batch.targets, x.view_mut(step)?.as_mut_slice());
        for layer in self.layers.iter_mut().rev() {
            x = layer.backward(step, x)?;
        }
        Ok(loss)
    }
}

/// The same network with `Transient`s: what lives from forward to backward lies in local variables.
fn train_with_transients(
    weights: &mut [Persistent<f32>; 3],
    step: &mut Scope<'_, '_>,
    batch: &Batch,
) -> Result<f32, Error> {
    let [first, second, third] = weights;
    let x0 = step.upload(&batch.points)?;
    let h1 = linear(step, first, &x0)?;
    let x1 = rectified(step, &h1)?;
    let h2 = linear(step, second, &x1)?;
    let x2 = rectified(step, &h2)?;
    let mut dy = linear(step, third, &x2)?;
    let loss = loss_and_gradient(&batch.targets, dy.as_mut_slice());
    let mut dx2 = linear_back(step, third, x2, dy)?;
    relu_back(h2.as_slice(), dx2.as_mut_slice());
    drop(h2);
    let mut dx1 = linear_back(step, second, x1, dx2)?;
    relu_back(h1.as_slice(), dx1.as_mut_slice());
    drop(h1);
    linear_back(step, first, x0, dx1)?;
    Ok(loss)
}

fn linear<'s>(
    step: &Scope<'s, '_>,
    weights: &Persistent<f32>,
    x: &Transient<'_, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let mut y = step.alloc(weights.len() / (x.len() / BATCH) * BATCH)?;
    multiply(weights.as_slice(), x.as_slice(), y.as_mut_slice());
    Ok(y)
}

fn rectified<'s>(
    step: &Scope<'s, '_>,
    x: &Transient<'_, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let mut y = step.alloc(x.len())?;
    relu(x.as_slice(), y.as_mut_slice());
    Ok(y)
}

/// Takes both operands: nobody needs them afterwards.
fn linear_back<'s>(
    step: &Scope<'s, '_>,
    weights: &mut Persistent<f32>,
    x: Transient<'s, f32>,
    dy: Transient<'s, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let mut dx = step.alloc(x.len())?;
    multiply_back(weights.as_mut_slice(), x.as_slice(), dy.as_slice(), dx.as_mut_slice());
    Ok(dx)
}

fn main() -> Result<(), Box<dyn AnyError>> {
    // 1. With step buffers, in fields of boxed layers.
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(256)).build()?;
    let [first, second, third] = weights(&arena)?;
    let linear =
        |weights, n: usize| Linear { weights, widths: (WIDTHS[n], WIDTHS[n + 1]), input: None };
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(linear(first, 0)),
        Box::new(Relu::default()),
        Box::new(linear(second, 1)),
        Box::new(Relu::default()),
        Box::new(linear(third, 2)),
    ];
    let mut network = Network { layers };
    let in_fields = losses(&mut arena, |step, batch| network.train(step, batch))?;

    // 2. With transients, in local variables.
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(256)).build()?;
    let mut weights = weights(&arena)?;
    let in_locals =
        losses(&mut arena, |step, batch| train_with_transients(&mut weights, step, batch))?;

    let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&in_fields), bits(&in_locals), "the same losses to the bit");
    let (first, last) = (in_fields[0], in_fields[in_fields.len() - 1]);
    assert!(last < first / 20.0, "it learns: {first} -> {last}");
    println!("{STEPS} steps, loss {first:.4} -> {last:.4}, in both forms alike");
    Ok(())
}

/// Trains: the first step is recorded, and the others follow its plan.
fn losses(
    arena: &mut Arena,
    mut train: impl FnMut(&mut Scope<'_, '_>, &Batch) -> Result<f32, Error>,
) -> Result<Vec<f32>, Box<dyn AnyError>> {
    let mut losses = Vec::with_capacity(STEPS.into());
    let mut batch = Batch { points: vec![0.0; 2 * BATCH], targets: vec![0.0; BATCH] };
    for n in 0..STEPS {
        batch.fill(n);
        if n == 0 {
            arena.record(None);
        }
        losses.push(arena.scope_named("train", |step| train(step, &batch))?);
        if n == 0 {
            let log = arena.recorded("train").expect("the step was recorded");
            let bumped_bytes = arena.stats().peak_transient_bytes();
            let planned = PlannedStep::solve(&log, &Options::default())?;
            println!("bumped {bumped_bytes} bytes, planned {}", planned.plan.peak_bytes());
            arena.install_plan("train", planned.slots()?)?;
            arena.observe(Some(|| HEAP_ALLOCATIONS.load(Ordering::Relaxed)));
        }
    }
    let seen = arena.stop_observing().expect("it was observed");
    seen.check()?;
    assert_eq!(seen.heap_allocations_per_step(), Some(0));
    assert_eq!(arena.plan_deviations("train").map(|seen| seen.unplanned()), Some(0));
    assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
    Ok(losses)
}

/// Points of the square, and the product of their coordinates.
struct Batch {
    points: Vec<f32>,
    targets: Vec<f32>,
}

impl Batch {
    fn fill(&mut self, seed: u16) {
        let mut state = u32::from(seed) * 977 + 1;
        self.points.fill_with(|| random(&mut state));
        for (target, point) in self.targets.iter_mut().zip(self.points.chunks_exact(2)) {
            *target = point[0] * point[1];
        }
    }
}

/// Numbers between -1 and 1 from a linear congruence.
fn random(state: &mut u32) -> f32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    f32::from(i16::try_from(*state >> 17).unwrap_or(0)) / 16_384.0 - 1.0
}

fn weights(arena: &Arena) -> Result<[Persistent<f32>; 3], Error> {
    let mut state = 7;
    let mut matrix = |n: usize| {
        let scale = (3.0 / f32::from(u8::try_from(WIDTHS[n]).unwrap_or(u8::MAX))).sqrt();
        let values = std::iter::repeat_with(|| scale * random(&mut state));
        arena.persistent_from(&values.take(WIDTHS[n] * WIDTHS[n + 1]).collect::<Vec<_>>())
    };
    Ok([matrix(0)?, matrix(1)?, matrix(2)?])
}

// --- the arithmetic, on slices ----------------------------------------------------------------------

/// Each row of `y` is the product of the weights, outputs by inputs, and a row of `x`.
fn multiply(weights: &[f32], x: &[f32], y: &mut [f32]) {
    let (inputs, outputs) = (x.len() / BATCH, y.len() / BATCH);
    for (y, x) in y.chunks_exact_mut(outputs).zip(x.chunks_exact(inputs)) {
        for (y, row) in y.iter_mut().zip(weights.chunks_exact(inputs)) {
            *y = row.iter().zip(x).map(|(w, x)| w * x).sum();
        }
    }
}

/// The gradient of the inputs; then the weights go against theirs.
fn multiply_back(weights: &mut [f32], x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let (inputs, outputs) = (x.len() / BATCH, dy.len() / BATCH);
    dx.fill(0.0);
    for (dx, dy) in dx.chunks_exact_mut(inputs).zip(dy.chunks_exact(outputs)) {
        for (dy, row) in dy.iter().zip(weights.chunks_exact(inputs)) {
            dx.iter_mut().zip(row).for_each(|(dx, w)| *dx += dy * w);
        }
    }
    for (x, dy) in x.chunks_exact(inputs).zip(dy.chunks_exact(outputs)) {
        for (dy, row) in dy.iter().zip(weights.chunks_exact_mut(inputs)) {
            row.iter_mut().zip(x).for_each(|(w, x)| *w -= LEARNING_RATE * dy * x);
        }
    }
}

fn relu(x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x.max(0.0));
}

fn relu_back(x: &[f32], dy: &mut [f32]) {
    dy.iter_mut().zip(x).for_each(|(dy, x)| *dy = if *x > 0.0 { *dy } else { 0.0 });
}

/// The mean squared error of outputs, which become its gradient.
fn loss_and_gradient(targets: &[f32], outputs: &mut [f32]) -> f32 {
    let rows = f32::from(u16::try_from(targets.len()).unwrap_or(u16::MAX));
    let mut loss = 0.0;
    for (output, target) in outputs.iter_mut().zip(targets) {
        let error = *output - target;
        loss += error * error / rows;
        *output = 2.0 * error / rows;
    }
    loss
}

/// The system's allocator, counted.
struct Counted;
static HEAP_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: both calls are the system allocator's, with the caller's own promises.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;
