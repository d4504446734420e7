//! The C side of the driver's interface: result codes, handles, structures, and checked pointers.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A `CUresult` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What every driver function computes inside.
pub(crate) type CuResult<T> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal),* $(,)?) => {
        impl Code { $(pub(crate) const $name: Code = Code($value);)* }
    };
}

codes! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_LIMIT = 215,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
}

impl Code {
    /// Whether a device that met this error is lost until its context is destroyed.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719)
    }
}

/// An opaque handle: a number that was never an address, so a stale one is always recognised.
pub(crate) type Handle = u64;
/// A device address.
pub(crate) type Address = u64;

/// Where a driver function writes a result.
///
/// Only a foreign caller makes one, by passing a pointer; C's rule for it is "null, or valid for one write of `T`".
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes `value`; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn set(self, value: T) -> CuResult<()> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer that is valid for this write.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes `value` unless the caller passed null, where the interface calls the result optional.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // A null pointer was the only way to fail.
            let _ = self.set(value);
        }
    }

    /// The value that the caller put there, for parameters that are read and then written.
    pub(crate) fn read(&self) -> CuResult<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// A result or an argument whose type another argument decides.
///
/// Only a foreign caller makes one; the pointer is null, or valid for one read and write of the type that the interface
/// documents for that other argument.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct AnyOut(*mut c_void);

impl AnyOut {
    /// The pointer as the documented type `T`.
    pub(crate) fn of<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

/// A structure that a driver function reads; null, or valid for one read of `T`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn get(self) -> CuResult<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer that is valid for this read.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The `count` values from here on.
    pub(crate) fn list(self, count: usize) -> CuResult<Vec<T>> {
        (0..count).map(|i| self.at(i).get()).collect()
    }

    /// The pointer to the `index`-th value.
    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Whether the caller passed no pointer.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A text of the caller: null, or NUL-terminated and valid for reads up to there.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// A text behind a pointer whose caller says that it is one.
    pub(crate) fn new(start: In<u8>) -> Self {
        Self(start.0.cast())
    }

    /// The text's bytes; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn bytes(&self) -> CuResult<&[u8]> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule NUL-terminated; the borrow ends before the foreign call returns.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text as UTF-8.
    pub(crate) fn str(&self) -> CuResult<&str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Code::INVALID_VALUE)
    }
}

/// A buffer of `len` characters that takes a NUL-terminated text.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes as much of `text` as fits before the closing NUL.
    pub(crate) fn set(self, len: c_int, text: &str) -> CuResult<()> {
        let room = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
        if self.0.is_null() || room == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let kept = text.len().min(room - 1);
        let bytes = text.as_bytes()[..kept].iter().copied().chain([0]);
        for (i, byte) in bytes.enumerate() {
            Out(self.0.wrapping_add(i)).set(byte as c_char)?;
        }
        Ok(())
    }
}

/// A host function to be run in stream order.
pub(crate) type HostFunction = Option<extern "C" fn(*mut c_void)>;

/// `CUmemLocation`: kind 1 is a device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: MemLocation,
    pub(crate) win32: u64,
    pub(crate) flags: u64,
}

/// `CUmemAccessDesc`; flags 0 none, 1 read, 3 read and write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: u32,
}

/// The head of `CUmemPoolProps`; what follows is not looked at.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: MemLocation,
}

/// `CUuuid`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) stream: Handle,
    pub(crate) attributes: u64,
    pub(crate) attribute_count: u32,
}
