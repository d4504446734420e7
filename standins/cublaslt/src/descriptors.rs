//! Handles, and what a caller describes before a product: the product, the matrices, and a preference.

use cublas_standin::for_lt::{
    Element, Matrix, Out, Outcome, Status, code, count_handle, framed, note, scalar_of, transposes,
};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// One product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description {
    /// Of the scalars.
    pub(crate) scalar: Element,
    pub(crate) device_scalars: bool,
    pub(crate) transposed: [bool; 2],
    pub(crate) epilogue: u32,
    pub(crate) bias: u64,
    pub(crate) bias_stride: i64,
}

/// A matrix whose address is not known yet, and how many of it there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) matrix: Matrix,
    pub(crate) batch: c_int,
}

/// What an algorithm may need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preference {
    pub(crate) workspace_bytes: u64,
}

/// What exists of one kind, by its handle.
pub(crate) struct Table<T>(Mutex<(u64, BTreeMap<u64, T>)>);

/// Handles of the library.
static HANDLES: Table<()> = Table::new(0x17B1_A500_0000);
pub(crate) static DESCRIPTIONS: Table<Description> = Table::new(0x17B1_A600_0000);
pub(crate) static LAYOUTS: Table<Layout> = Table::new(0x17B1_A700_0000);
pub(crate) static PREFERENCES: Table<Preference> = Table::new(0x17B1_A800_0000);

impl<T: Copy> Table<T> {
    /// With handles that no other table gives out.
    const fn new(first: u64) -> Self {
        Self(Mutex::new((first, BTreeMap::new())))
    }

    fn with<R>(&self, body: impl FnOnce(&mut u64, &mut BTreeMap<u64, T>) -> R) -> R {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, entries) = &mut *table;
        body(next, entries)
    }

    pub(crate) fn get(&self, handle: u64) -> Result<T, Status> {
        self.with(|_, entries| entries.get(&handle).copied()).ok_or(Status::INVALID_VALUE)
    }

    fn change(&self, handle: u64, change: impl FnOnce(&mut T) -> Outcome) -> Outcome {
        self.with(|_, entries| change(entries.get_mut(&handle).ok_or(Status::INVALID_VALUE)?))
    }

    fn add(&self, out: Out<u64>, entry: T) -> Outcome {
        self.with(|next, entries| {
            *next += 16;
            out.set(*next)?;
            entries.insert(*next, entry);
            Ok(())
        })
    }

    fn remove(&self, handle: u64) -> Outcome {
        self.with(|_, entries| entries.remove(&handle)).map(drop).ok_or(Status::INVALID_VALUE)
    }
}

/// That a handle is live.
pub(crate) fn check_handle(handle: u64) -> Outcome {
    HANDLES.get(handle).map_err(|_| Status::NOT_INITIALIZED)
}

/// The frame of a function that needs no device: counted, and failed if a test asked for that.
fn on_the_host(name: &str, body: impl FnOnce() -> Outcome) -> u32 {
    code(note(name).and_then(|_| body()))
}

/// The value of an attribute: null, or valid for a read of as many bytes as the caller says. Only foreign callers make
/// one.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Value(*const u8);

impl Value {
    fn bytes<const N: usize>(self, len: usize) -> Result<[u8; N], Status> {
        if self.0.is_null() || len != N {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer to `len` readable bytes.
        Ok(unsafe { self.0.cast::<[u8; N]>().read_unaligned() })
    }

    fn number(self, len: usize) -> Result<u32, Status> {
        self.bytes(len).map(u32::from_ne_bytes)
    }

    fn long(self, len: usize) -> Result<u64, Status> {
        self.bytes(len).map(u64::from_ne_bytes)
    }
}

// --- the library --------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cublasLtCreate(handle: Out<u64>) -> u32 {
    framed("cublasLtCreate", || {
        HANDLES.add(handle, ())?;
        count_handle(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(handle: u64) -> u32 {
    // As for cuBLAS: it goes also when the call is told to fail, and in a broken context.
    let removed = HANDLES.remove(handle).map_err(|_| Status::NOT_INITIALIZED);
    code(note("cublasLtDestroy").and(removed.and_then(|()| count_handle(-1))))
}

// --- the product --------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescCreate(out: Out<u64>, compute: u32, scale: u32) -> u32 {
    on_the_host("cublasLtMatmulDescCreate", || {
        scalar_of(compute)?;
        let description = Description {
            scalar: Element::from_raw(scale)?,
            device_scalars: false,
            transposed: [false; 2],
            epilogue: 1,
            bias: 0,
            bias_stride: 0,
        };
        DESCRIPTIONS.add(out, description)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescSetAttribute(
    description: u64,
    attribute: u32,
    value: Value,
    len: usize,
) -> u32 {
    on_the_host("cublasLtMatmulDescSetAttribute", || {
        DESCRIPTIONS.change(description, |description| {
            match attribute {
                2 => match value.number(len)? {
                    mode @ (0 | 1) => description.device_scalars = mode == 1,
                    _ => return Err(Status::NOT_SUPPORTED),
                },
                3 => description.transposed[0] = transposes(value.number(len)?)?,
                4 => description.transposed[1] = transposes(value.number(len)?)?,
                // The documentation has C as it is.
                5 if value.number(len)? == 0 => {}
                7 => description.epilogue = value.number(len)?,
                8 => description.bias = value.long(len)?,
                10 => description.bias_stride = value.long(len)?.cast_signed(),
                _ => return Err(Status::NOT_SUPPORTED),
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescDestroy(description: u64) -> u32 {
    on_the_host("cublasLtMatmulDescDestroy", || DESCRIPTIONS.remove(description))
}

// --- matrices -----------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutCreate(
    out: Out<u64>,
    kind: u32,
    rows: u64,
    cols: u64,
    leading: i64,
) -> u32 {
    on_the_host("cublasLtMatrixLayoutCreate", || {
        let leading = u64::try_from(leading).map_err(|_| Status::INVALID_VALUE)?;
        let element = Element::from_raw(kind)?;
        let matrix = Matrix { base: 0, element, rows, cols, leading, stride: 0 };
        LAYOUTS.add(out, Layout { matrix, batch: 1 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: u64,
    attribute: u32,
    value: Value,
    len: usize,
) -> u32 {
    on_the_host("cublasLtMatrixLayoutSetAttribute", || {
        LAYOUTS.change(layout, |layout| {
            match attribute {
                5 => layout.batch = value.number(len)?.cast_signed(),
                6 => layout.matrix.stride = value.long(len)?.cast_signed(),
                _ => return Err(Status::NOT_SUPPORTED),
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutDestroy(layout: u64) -> u32 {
    on_the_host("cublasLtMatrixLayoutDestroy", || LAYOUTS.remove(layout))
}

// --- preferences --------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceCreate(out: Out<u64>) -> u32 {
    on_the_host("cublasLtMatmulPreferenceCreate", || PREFERENCES.add(out, Preference::default()))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: u64,
    attribute: u32,
    value: Value,
    len: usize,
) -> u32 {
    on_the_host("cublasLtMatmulPreferenceSetAttribute", || {
        PREFERENCES.change(preference, |preference| match attribute {
            1 => {
                preference.workspace_bytes = value.long(len)?;
                Ok(())
            }
            _ => Err(Status::NOT_SUPPORTED),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceDestroy(preference: u64) -> u32 {
    on_the_host("cublasLtMatmulPreferenceDestroy", || PREFERENCES.remove(preference))
}
