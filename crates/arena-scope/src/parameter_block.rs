//! Many tensors in one persistent buffer: the values of a model, their gradients, an optimizer's state.

use std::borrow::Cow;
use std::fmt;

use arena_core::layout::elements_per;
use arena_core::{
    Alignment, Device, Error, ErrorKind, Host, MAX_BYTES, Persistent, Pod, View, ViewMut,
};

use crate::arena::Arena;

/// A part of a [`BlockLayout`], and of every [`ParameterBlock`] of that layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PartId {
    index: usize,
    /// In elements from the block's begin.
    start: usize,
    len: usize,
}

impl PartId {
    /// Elements of the part, without the padding behind it.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there is no element in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    const fn end(self) -> usize {
        self.start + self.len
    }
}

/// Where the parts of a block lie: named, of any lengths, in the order in which they were added. Each begins at a
/// multiple of the alignment; between one part and the next there is less padding than that.
///
/// Values, gradients and optimizer state have the same layout, so one [`PartId`] names a tensor in all of them:
/// see [`ParameterBlock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    parts: Vec<(PartId, Cow<'static, str>)>,
    element_bytes: u64,
    alignment: Alignment,
}

impl BlockLayout {
    /// A layout without parts, for elements of `T`; the parts will be aligned to 256 bytes.
    #[must_use]
    pub const fn new<T>() -> Self {
        Self::aligned::<T>(Alignment::DEFAULT)
    }

    /// [`new`](Self::new) with another alignment.
    #[must_use]
    pub const fn aligned<T>(alignment: Alignment) -> Self {
        Self { parts: Vec::new(), element_bytes: size_of::<T>() as u64, alignment }
    }

    /// Adds a part of `len` elements behind the others. Names are for people and for checkpoints; they are not
    /// compared.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooBig`] when the whole would be larger than any memory.
    ///
    /// ```
    /// use arena_scope::{Alignment, BlockLayout};
    ///
    /// let mut layout = BlockLayout::aligned::<f32>(Alignment::new(64)?);
    /// let weight = layout.add("weight", 20)?;
    /// let bias = layout.add("bias", 4)?;
    /// assert_eq!((weight.len(), bias.len()), (20, 4));
    /// assert_eq!(layout.len(), 32 + 4); // the bias begins at a multiple of 64 bytes
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, name: impl Into<Cow<'static, str>>, len: usize) -> Result<PartId, Error> {
        let too_big = || ErrorKind::TooBig {
            elements: (self.len() as u64).saturating_add(len as u64),
            element_bytes: self.element_bytes,
        };
        let step = elements_per(self.alignment, self.element_bytes);
        let begin = usize::try_from(step).ok().and_then(|n| self.len().checked_next_multiple_of(n));
        let start = begin.ok_or_else(too_big)?;
        let end = start.checked_add(len).ok_or_else(too_big)?;
        match (end as u64).checked_mul(self.element_bytes) {
            Some(bytes) if bytes <= MAX_BYTES => {}
            _ => return Err(too_big().into()),
        }
        let part = PartId { index: self.parts.len(), start, len };
        self.parts.push((part, name.into()));
        Ok(part)
    }

    /// Elements of a block: of all parts, and the padding between them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |(part, _)| part.end())
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts and their names, in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (PartId, &str)> {
        self.parts.iter().map(|(part, name)| (*part, name.as_ref()))
    }

    /// An id of another layout would name another tensor, or none.
    fn check(&self, part: PartId) -> Result<(), Error> {
        match self.parts.get(part.index) {
            Some((ours, _)) if *ours == part => Ok(()),
            _ => {
                let (start, len) = (part.start as u64, part.len as u64);
                Err(ErrorKind::OtherLayout { start, len }.into())
            }
        }
    }
}

/// Tensors that belong together, one behind the other in one persistent buffer: all values of a model, or all their
/// gradients, or a state of the optimizer. A layer keeps the [`PartId`]s of its tensors and asks for their views.
///
/// What concerns all tensors is then one call over [`whole`](Self::whole): the update of an optimizer, which cannot
/// fail halfway; the norm of a gradient; a copy; a reduction between devices. The padding between the parts is zero
/// at first, and stays zero under whatever treats each element alike and maps zeros to zeros, as optimizers do. So
/// such a call needs no list of the parts.
///
/// Values, gradients and state are separate blocks, so that some can be read while others are written:
///
/// ```
/// use arena_scope::{Arena, BlockLayout, ByteSize, Error, Host, ParameterBlock};
///
/// let mut layout = BlockLayout::new::<f32>();
/// let weight = layout.add("weight", 3)?;
/// let bias = layout.add("bias", 1)?;
///
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// let mut values = ParameterBlock::zeroed(&arena, &layout)?;
/// let mut gradients = ParameterBlock::zeroed(&arena, &layout)?;
/// values.view_mut(weight)?.write(&[1.0_f32, 2.0, 3.0])?;
/// arena.mark()?;
///
/// let loss = arena.scope(|step| {
///     let x = step.upload(&[1.0_f32, 0.0, 2.0])?;
///     let (w, b) = (values.view(weight)?.as_slice(), values.view(bias)?.as_slice());
///     let y = x.as_slice().iter().zip(w).map(|(x, w)| x * w).sum::<f32>() + b[0];
///     // The loss is y²: first whatever can fail, and all gradients.
///     let [mut to_weight, mut to_bias] = gradients.views_mut([weight, bias])?;
///     for (gradient, x) in to_weight.as_mut_slice().iter_mut().zip(x.as_slice()) {
///         *gradient = 2.0 * y * x;
///     }
///     to_bias.as_mut_slice()[0] = 2.0 * y;
///     // Then every parameter moves, in one pass over both blocks.
///     let moved = values.whole_mut().into_mut_slice().iter_mut();
///     for (value, gradient) in moved.zip(gradients.whole().as_slice()) {
///         *value -= 0.01 * gradient;
///     }
///     Ok::<_, Error>(y * y)
/// })?;
/// assert_eq!(loss, 49.0);
/// assert_eq!(values.view(weight)?.as_slice(), [0.86, 2.0, 2.72]);
/// # arena_scope::Ok(())
/// ```
pub struct ParameterBlock<T, D: Device = Host> {
    layout: BlockLayout,
    buffer: Persistent<T, D>,
}

impl<T: Pod, D: Device> ParameterBlock<T, D> {
    /// A block of zeros, persistent in `arena`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ElementMismatch`] when the layout is for elements of another size; as for
    /// [`Arena::persistent_zeroed`] otherwise.
    #[track_caller]
    pub fn zeroed(arena: &Arena<D>, layout: &BlockLayout) -> Result<Self, Error> {
        let (expected, given) = (layout.element_bytes, size_of::<T>() as u64);
        if expected != given {
            return Err(ErrorKind::ElementMismatch { expected, given }.into());
        }
        let buffer = arena.state.steps.persistent_zeroed(layout.len(), layout.alignment)?;
        Ok(Self { layout: layout.clone(), buffer })
    }

    /// Where the parts lie.
    #[must_use]
    pub const fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// The buffer that all parts lie in, for what a view does not do: to declare a stream, or to pass it on.
    #[must_use]
    pub const fn buffer(&self) -> &Persistent<T, D> {
        &self.buffer
    }

    /// Shared access to a part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherLayout`] when the part is of another layout.
    pub fn view(&self, part: PartId) -> Result<View<'_, T, D>, Error> {
        self.layout.check(part)?;
        self.whole().range(part.start..part.end())
    }

    /// Exclusive access to a part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherLayout`] when the part is of another layout.
    pub fn view_mut(&mut self, part: PartId) -> Result<ViewMut<'_, T, D>, Error> {
        self.layout.check(part)?;
        self.whole_mut().range(part.start..part.end())
    }

    /// Exclusive access to several parts at once, in the order of the ids.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OtherLayout`] when a part is of another layout; [`ErrorKind::OutOfBounds`] when one is named
    /// twice.
    pub fn views_mut<const N: usize>(
        &mut self,
        parts: [PartId; N],
    ) -> Result<[ViewMut<'_, T, D>; N], Error> {
        let mut in_order: [usize; N] = std::array::from_fn(|n| n);
        in_order.sort_unstable_by_key(|n| parts[*n].index);
        let mut views = [const { None }; N];
        let (mut rest, mut at) = (self.buffer.view_mut(), 0);
        for n in in_order {
            let part = parts[n];
            self.layout.check(part)?;
            // Below `at` is what was handed out.
            let skipped = part.start.checked_sub(at).ok_or_else(|| {
                let (start, end) = (part.start as u64, part.end() as u64);
                ErrorKind::OutOfBounds { start, end, len: at as u64 }
            })?;
            let (view, behind) = rest.split_at_mut(skipped)?.1.split_at_mut(part.len)?;
            views[n] = Some(view);
            (rest, at) = (behind, part.end());
        }
        // Each number below N was in `in_order`.
        Ok(views.map(|view| view.expect("each part was split off")))
    }

    /// Exclusive access to all parts at once, in their order.
    ///
    /// ```
    /// # use arena_scope::{Arena, BlockLayout, ByteSize, Host, ParameterBlock};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut layout = BlockLayout::new::<f32>();
    /// let parts = [layout.add("weight", 3)?, layout.add("bias", 1)?];
    /// let mut block = ParameterBlock::zeroed(&arena, &layout)?;
    /// for (_, mut view) in block.split_mut() {
    ///     let len = view.len() as f32;
    ///     view.fill(len)?;
    /// }
    /// assert_eq!(block.view(parts[0])?.as_slice(), [3.0; 3]);
    /// assert_eq!(block.view(parts[1])?.as_slice(), [1.0]);
    /// assert_eq!(block.whole().as_slice()[3..64], [0.0; 61]); // the padding
    /// # arena_scope::Ok(())
    /// ```
    pub fn split_mut(&mut self) -> impl Iterator<Item = (PartId, ViewMut<'_, T, D>)> {
        let (mut rest, mut at) = (Some(self.buffer.view_mut()), 0);
        // The parts lie inside the buffer, in order: no split is refused, and no part is left out.
        self.layout.parts.iter().map_while(move |(part, _)| {
            let (_, tail) = rest.take()?.split_at_mut(part.start - at).ok()?;
            let (view, behind) = tail.split_at_mut(part.len).ok()?;
            (rest, at) = (Some(behind), part.end());
            Some((*part, view))
        })
    }

    /// Shared access to all parts and the padding between them.
    #[must_use]
    pub fn whole(&self) -> View<'_, T, D> {
        self.buffer.view()
    }

    /// Exclusive access to all parts and the padding between them, which is to stay zero.
    #[must_use]
    pub fn whole_mut(&mut self) -> ViewMut<'_, T, D> {
        self.buffer.view_mut()
    }
}

impl<T, D: Device> fmt::Debug for ParameterBlock<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.layout.parts.len();
        f.debug_struct("ParameterBlock")
            .field("parts", &parts)
            .field("buffer", &self.buffer)
            .finish()
    }
}
