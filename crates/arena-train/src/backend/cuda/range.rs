//! Device memory as a kernel sees it: an address and a number of elements.

use std::marker::PhantomData;

/// Elements of `T` in device memory that kernels read.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a, T> {
    address: u64,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// Elements of `T` in device memory that kernels write, and read back.
#[derive(Debug)]
pub struct Output<'a, T> {
    address: u64,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> Input<'_, T> {
    /// `len` elements from a device address on.
    ///
    /// # Safety
    ///
    /// 1. The elements lie in memory of the context that the kernels are launched in, aligned for
    ///    `T`; or `len` is zero.
    /// 2. Until the stream has passed all work that was queued with this value, the memory stays
    ///    allocated, and nobody writes to it but work queued on the same stream.
    #[must_use]
    pub const unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, elements: PhantomData }
    }

    /// The device address of the first element.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Output<'_, T> {
    /// `len` elements from a device address on.
    ///
    /// # Safety
    ///
    /// 1. As for [`Input::new`].
    /// 2. As for [`Input::new`], and nobody else reads the memory either.
    #[must_use]
    pub const unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len, elements: PhantomData }
    }

    /// The device address of the first element.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same elements, for a shorter time.
    pub const fn reborrow(&mut self) -> Output<'_, T> {
        Output { address: self.address, len: self.len, elements: PhantomData }
    }

    /// The same elements, to be read by work that is queued later on the same stream.
    #[must_use]
    pub const fn as_input(&self) -> Input<'_, T> {
        Input { address: self.address, len: self.len, elements: PhantomData }
    }

    /// The first `len` elements and the rest from `start` on; `None` where that is not `len <= start
    /// <= self.len()`.
    pub(super) fn split(self, len: usize, start: usize) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(start)?;
        let skipped = start.checked_sub(len).map(|_| start * size_of::<T>())?;
        let second =
            Self { address: self.address + skipped as u64, len: rest, elements: PhantomData };
        Some((Self { len, ..self }, second))
    }
}
