//! A program that is planned as a whole: run on a probe, solved, and built in just the bytes that it needs.

use std::error::Error as AnyError;

use arena_plan::{Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Persistent, Scope, View, ViewMut};

const WIDTH: usize = 256;
const LAYERS: usize = 6;

/// `to = to + from`, as far as both go. The host computes it where it can use the device's memory. On the probe `host` is
/// `None`: there is nothing to add, and the sizes are all that is wanted.
fn add<D: Device>(mut to: ViewMut<'_, f32, D>, from: View<'_, f32, D>) {
    if let (Some(to), Some(from)) = (to.host_mut(), from.host()) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    }
}

/// A network of layers that add their weights, generic over the device.
struct Network<D: Device> {
    weights: Vec<Persistent<f32, D>>,
}

impl<D: Device> Network<D> {
    fn new(arena: &Arena<D>) -> Result<Self, Error> {
        let layer = |_| arena.persistent_zeroed(WIDTH * WIDTH);
        Ok(Self { weights: (0..LAYERS).map(layer).collect::<Result<_, _>>()? })
    }

    /// The backward pass drops each activation as soon as it was used.
    fn train(&mut self, step: &mut Scope<'_, '_, D>, batch: usize) -> Result<(), Error> {
        let mut activations = vec![step.alloc_zeroed::<f32>(batch * WIDTH)?];
        for weights in &self.weights {
            let scratch = step.alloc::<f32>(2 * batch * WIDTH)?;
            let mut y = step.alloc_zeroed(batch * WIDTH)?;
            activations.iter().rev().take(1).for_each(|x| add(y.view_mut(), x.view()));
            add(y.view_mut(), weights.view());
            activations.push(y);
            drop(scratch);
        }
        let mut gradient = step.alloc::<f32>(batch * WIDTH)?;
        gradient.view_mut().fill(0.5)?;
        for weights in self.weights.iter_mut().rev() {
            let mut weights_gradient = step.alloc_zeroed::<f32>(WIDTH * WIDTH)?;
            add(weights_gradient.view_mut(), gradient.view());
            drop(activations.pop());
            let mut next = step.alloc_zeroed(batch * WIDTH)?;
            add(next.view_mut(), gradient.view());
            gradient = next; // the one before is dropped here
            add(weights.view_mut(), weights_gradient.view());
        }
        drop(gradient);
        Ok(())
    }

    fn evaluate(&self, step: &mut Scope<'_, '_, D>, batch: usize) -> Result<f32, Error> {
        let mut x = step.alloc_zeroed::<f32>(batch * WIDTH)?;
        for weights in &self.weights {
            let mut y = step.alloc_zeroed(batch * WIDTH)?;
            add(y.view_mut(), x.view());
            add(y.view_mut(), weights.view());
            x = y;
        }
        step.read_one(x.view().range(..1)?)
    }
}

/// One step of each kind is what a probe has to see.
fn epoch<D: Device>(arena: &mut Arena<D>, network: &mut Network<D>) -> Result<f32, Error> {
    for _ in 0..3 {
        arena.scope_named("train", |step| network.train(step, 64))?;
    }
    arena.scope_named("evaluate", |step| network.evaluate(step, 128))
}

fn main() -> Result<(), Box<dyn AnyError>> {
    let run = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
        let mut network = Network::new(arena)?;
        epoch(arena, &mut network).map(drop)
    })?;
    print!("{run}");
    let (planned, bumped) = (run.capacity(), run.bumped_capacity());
    assert!(planned.bytes() * 100 < bumped.bytes() * 68, "{planned} of {bumped}");

    let mut arena = run.build(Host::new())?;
    let mut network = Network::new(&arena)?;
    let mut output = 0.0;
    for _ in 0..5 {
        output = epoch(&mut arena, &mut network)?;
    }
    assert_eq!(output, 45.0, "six layers learnt a half in each of fifteen steps");
    assert_eq!(arena.stats().peak_bytes, planned.bytes());
    for key in ["train", "evaluate"] {
        assert_eq!(arena.plan_deviations(key).map(|seen| seen.unplanned()), Some(0));
    }
    arena.observed().ok_or("planned steps are observed")?.check()?;

    let one_less = ByteSize::bytes_exact(planned.bytes() - 1);
    let mut short = Arena::builder(Host::new()).capacity(one_less).build()?;
    run.follow(&mut short);
    let mut network = Network::new(&short)?;
    assert!(epoch(&mut short, &mut network).is_err_and(|error| error.is_exhausted()));
    Ok(())
}
