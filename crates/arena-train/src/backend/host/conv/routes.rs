//! The open routes of a pooled gradient, as lists that the gradient kernels walk over.

use bytemuck::{Pod, Zeroable};

use super::CLOSED;
use crate::backend::host::shape::ConvShape;

/// One element of the gradient before the pool that is not zero.
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
    let shifts = [0, pixel, row, row + pixel];
    let mut open = 0;
    let mut at = channel;
    for window_row in 0..shape.out_rows() {
        let mut origin = 2 * window_row * row;
        for _ in 0..shape.out_cols() {
            let (route, value) = (routes[at], gradient[at]);
            // Always written, kept only if open: a branch here would be mispredicted half the time.
            let shift = shifts[usize::from(route & 3)];
            // `ConvShape::check` holds every offset below 2^32.
            list[open] = OpenRoute { value, offset: (origin + shift) as u32 };
            open += usize::from((route != CLOSED) & (value != 0.0));
            at += shape.out_channels;
            origin += 2 * pixel;
        }
    }
    open
}
