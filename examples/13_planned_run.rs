//! A program that is planned as a whole: run on a probe, solved, and built in just the bytes that it needs.

use std::error::Error as AnyError;

use arena_plan::{Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Persistent, Scope};

const WIDTH: usize = 256;
const LAYERS: usize = 6;

/// A network of square layers. It is generic over the device; where a kernel would run, the shapes are enough.
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
        for _ in &self.weights {
            let scratch = step.alloc::<f32>(2 * batch * WIDTH)?;
            activations.push(step.alloc_zeroed(batch * WIDTH)?);
            drop(scratch);
        }
        let mut gradient = step.alloc_zeroed::<f32>(batch * WIDTH)?;
        for _ in self.weights.iter().rev() {
            let weights_gradient = step.alloc_zeroed::<f32>(WIDTH * WIDTH)?;
            drop(activations.pop());
            gradient = step.alloc_zeroed(batch * WIDTH)?;
            drop(weights_gradient); // after it was added to the weights
        }
        drop(gradient);
        Ok(())
    }

    fn evaluate(&self, step: &mut Scope<'_, '_, D>, batch: usize) -> Result<(), Error> {
        let mut x = step.alloc_zeroed::<f32>(batch * WIDTH)?;
        for _ in &self.weights {
            x = step.alloc_zeroed(batch * WIDTH)?; // the one before is dropped here
        }
        drop(x);
        Ok(())
    }
}

/// One step of each kind is what a probe has to see.
fn epoch<D: Device>(arena: &mut Arena<D>, network: &mut Network<D>) -> Result<(), Error> {
    for _ in 0..3 {
        arena.scope_named("train", |step| network.train(step, 64))?;
    }
    arena.scope_named("evaluate", |step| network.evaluate(step, 128))
}

fn main() -> Result<(), Box<dyn AnyError>> {
    let run = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
        let mut network = Network::new(arena)?;
        epoch(arena, &mut network)
    })?;
    print!("{run}");
    let (planned, bumped) = (run.capacity(), run.bumped_capacity());
    assert!(planned.bytes() * 100 < bumped.bytes() * 68, "{planned} of {bumped}");

    let mut arena = run.build(Host::new())?;
    let mut network = Network::new(&arena)?;
    for _ in 0..5 {
        epoch(&mut arena, &mut network)?;
    }
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
