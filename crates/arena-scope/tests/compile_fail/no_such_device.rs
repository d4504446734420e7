//! Memory that the host does not see has no slices, and what is not a device has no arena: each error says what to
//! do.

use arena_scope::{Arena, Cuda, Error, HostVisible, Persistent, Probe, Scope, View};

fn a_slice_of_memory_on_a_gpu(step: &Scope<'_, '_, Cuda>) -> Result<f32, Error> {
    let loss = step.alloc::<f32>(1)?;
    Ok(loss.as_slice()[0])
}

fn a_slice_of_a_view(x: View<'_, f32, Cuda>) -> &[f32] {
    x.as_slice()
}

fn a_slice_of_weights_that_are_only_measured(weights: &Persistent<f32, Probe>) -> f32 {
    weights.as_slice()[0]
}

fn sum<D: HostVisible>(x: View<'_, f32, D>) -> f32 {
    x.as_slice().iter().sum()
}

fn a_layer_for_the_host_on_a_gpu(x: View<'_, f32, Cuda>) -> f32 {
    sum(x)
}

fn an_arena_on_a_number_of_bytes() {
    let _ = Arena::builder(1 << 20);
}

fn main() {}
