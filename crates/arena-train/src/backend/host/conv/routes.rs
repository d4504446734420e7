//! The open routes of a pooled gradient, as lists that the gradient kernels walk over.

use bytemuck::{Pod, Zeroable};

use super::CLOSED;
use crate::backend::host::shape::ConvShape;

/// One element of the gradient before the pool that ReLU and the pool let through.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct OpenRoute {
    /// The gradient there.
    pub(super) value: f32,
    /// Where to read, in elements; what it counts from is up to the list.
    pub(super) offset: u32,
}

/// `f32` elements of workspace that one list entry takes.
pub(super) const ENTRY_LEN: usize = 2;

/// Lists the open routes of one output channel of one image, each with the offset of its receptive
/// field in the image. Returns how many there are. `list` needs room for one entry more than there
/// are windows.
#[inline(always)]
pub(super) fn list_channel(
    shape: &ConvShape,
    channel: usize,
    routes: &[u8],
    gradient: &[f32],
    list: &mut [OpenRoute],
) -> usize {
    let (pixel, row) = (shape.in_channels, shape.row_len());
    let shifts = [0, pixel, row, row + pixel].map(|shift| shift as u32);
    let channels = shape.out_channels;
    let mut windows = routes.chunks_exact(channels).zip(gradient.chunks_exact(channels));
    let mut open = 0;
    for window_row in 0..shape.out_rows() {
        // `ConvShape::check` holds every offset below 2^32.
        let mut origin = (2 * window_row * row) as u32;
        for (routes, gradient) in windows.by_ref().take(shape.out_cols()) {
            let route = routes[channel];
            // Always written, kept only if open: a branch here would be mispredicted half the time.
            let offset = origin + shifts[usize::from(route & 3)];
            list[open] = OpenRoute { value: gradient[channel], offset };
            open += usize::from(route != CLOSED);
            origin += 2 * pixel as u32;
        }
    }
    open
}

/// Adds to `sums` the gradients that the open routes of one image pass, for the channels from
/// `first` on: the bias's gradient.
#[inline(always)]
pub(super) fn add_open(
    shape: &ConvShape,
    first: usize,
    routes: &[u8],
    gradient: &[f32],
    partial: &mut [f32],
    sums: &mut [f32],
) {
    let channels = shape.out_channels;
    // Image by image, so that the rounding errors of a long sum do not pile up.
    partial.fill(0.0);
    for (routes, gradient) in routes.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
        let gradient = gradient[first..].iter().zip(&routes[first..]);
        for (sum, (value, route)) in partial.iter_mut().zip(gradient) {
            *sum += if *route == CLOSED { 0.0 } else { *value };
        }
    }
    for (sum, partial) in sums.iter_mut().zip(partial) {
        *sum += *partial;
    }
}
