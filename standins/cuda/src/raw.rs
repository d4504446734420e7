//! The few functions that touch memory by address. Callers have checked the range against the map of live memory, or
//! have it from a foreign caller who vouches for it.

use crate::abi::Address;

fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Repeats `pattern` over `len` bytes.
pub(crate) fn fill(address: Address, len: u64, pattern: &[u8]) {
    if let [byte] = pattern {
        // SAFETY: the range is live (module rule).
        unsafe { pointer(address).write_bytes(*byte, len as usize) };
        return;
    }
    for at in (0..len).step_by(pattern.len()) {
        let part = pattern.len().min((len - at) as usize);
        // SAFETY: the range is live (module rule), and `pattern` is a Rust slice elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), pointer(address + at), part) };
    }
}

/// Copies `len` bytes; the ranges may overlap.
pub(crate) fn copy(from: Address, to: Address, len: u64) {
    // SAFETY: both ranges are live (module rule).
    unsafe { std::ptr::copy(pointer(from), pointer(to), len as usize) };
}

/// Writes the bytes.
pub(crate) fn write(to: Address, bytes: &[u8]) {
    // SAFETY: the range is live (module rule), and `bytes` is a Rust slice elsewhere.
    unsafe { std::ptr::copy(bytes.as_ptr(), pointer(to), bytes.len()) };
}

/// Reads `len` bytes.
pub(crate) fn read(from: Address, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    // SAFETY: the range is live (module rule), and `bytes` was just allocated with this length.
    unsafe { std::ptr::copy_nonoverlapping(pointer(from), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// Reads a value of 1, 2, 4 or 8 bytes, aligned or not.
#[inline]
pub(crate) fn load(from: Address, bytes: u8) -> u64 {
    let from = pointer(from);
    match bytes {
        // SAFETY: the byte is live (module rule).
        1 => u64::from(unsafe { from.read() }),
        // SAFETY: the two bytes are live (module rule).
        2 => u64::from(unsafe { from.cast::<u16>().read_unaligned() }),
        // SAFETY: the four bytes are live (module rule).
        4 => u64::from(unsafe { from.cast::<u32>().read_unaligned() }),
        // SAFETY: the eight bytes are live (module rule).
        _ => unsafe { from.cast::<u64>().read_unaligned() },
    }
}

/// Writes the low 1, 2, 4 or 8 bytes of a value, aligned or not.
#[inline]
pub(crate) fn store(to: Address, bytes: u8, value: u64) {
    let to = pointer(to);
    match bytes {
        // SAFETY: the byte is live (module rule).
        1 => unsafe { to.write(value as u8) },
        // SAFETY: the two bytes are live (module rule).
        2 => unsafe { to.cast::<u16>().write_unaligned(value as u16) },
        // SAFETY: the four bytes are live (module rule).
        4 => unsafe { to.cast::<u32>().write_unaligned(value as u32) },
        // SAFETY: the eight bytes are live (module rule).
        _ => unsafe { to.cast::<u64>().write_unaligned(value) },
    }
}
