//! Addresses without memory, and memory that is mapped to them piece by piece.
//!
//! A piece is one allocation of the driver's, which lives as long as it is mapped: its handle is given up at once.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::code::{Failure, done};
use crate::bytes::Alignment;

/// What every piece is: memory of one device, locked there.
fn properties(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    // SAFETY: a structure of C whose fields are all valid as zeros.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

/// A device as a place of memory. The field of its number has another name in the bindings of CUDA 13.2 and later.
fn location(device: sys::CUdevice) -> sys::CUmemLocation {
    const { assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>()) };
    // SAFETY: as above.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let number = (&raw mut location).cast::<c_int>().wrapping_add(1);
    // SAFETY: the structure is two of C's `int`s in all versions, the second of which is the device's number.
    unsafe { number.write(device) };
    location
}

/// Whether the device maps memory to addresses, and then in multiples of how many bytes.
pub(super) fn granularity(device: sys::CUdevice) -> Result<Option<Alignment>, Failure> {
    let mut maps = 0;
    let attribute =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    // SAFETY: the answer goes into a live variable.
    let code = unsafe { sys::cuDeviceGetAttribute(&raw mut maps, attribute, device) };
    done("cuDeviceGetAttribute", code)?;
    if maps == 0 {
        return Ok(None);
    }
    let (mut bytes, properties) = (0, properties(device));
    let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: as above, and the properties are alive.
    let code =
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, least) };
    done("cuMemGetAllocationGranularity", code)?;
    // What is no power of two cannot be kept to.
    Ok(Alignment::new(bytes as u64).ok())
}

/// Reserves addresses.
pub(super) fn reserve(bytes: usize, alignment: Alignment) -> Result<u64, Failure> {
    let (mut base, alignment) = (0, alignment.bytes() as usize);
    // SAFETY: the address goes into a live variable.
    let code = unsafe { sys::cuMemAddressReserve(&raw mut base, bytes, alignment, 0, 0) };
    done("cuMemAddressReserve", code).map(|()| base)
}

/// Gives reserved addresses back.
///
/// # Safety
///
/// They came from [`reserve`] with these `bytes`, and nothing is mapped to them any more.
pub(super) unsafe fn unreserve(base: u64, bytes: usize) -> Result<(), Failure> {
    // SAFETY: by what the caller promises.
    done("cuMemAddressFree", unsafe { sys::cuMemAddressFree(base, bytes) })
}

/// Puts memory of `device` behind a range of reserved addresses; nothing is there after a failure.
///
/// # Safety
///
/// The range lies in reserved addresses, nothing is mapped to it, and its ends are multiples of the granularity.
pub(super) unsafe fn map(device: sys::CUdevice, address: u64, bytes: usize) -> Result<(), Failure> {
    let (mut handle, properties) = (0, properties(device));
    // SAFETY: the handle goes into a live variable, and the properties are alive.
    let code = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) };
    done("cuMemCreate", code)?;
    // SAFETY: the caller gives the range; the memory has as many bytes.
    let mapped = done("cuMemMap", unsafe { sys::cuMemMap(address, bytes, 0, handle, 0) });
    // SAFETY: the handle is that of the memory above, and is not used again: what is mapped stays until it is not.
    let released = done("cuMemRelease", unsafe { sys::cuMemRelease(handle) });
    mapped?;
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(device), flags };
    let open = || {
        // SAFETY: the range was mapped just now, and the one description is alive.
        done("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) })
    };
    let opened = released.and_then(|()| open());
    if opened.is_err() {
        // SAFETY: the range was mapped just now, and nobody knows of it.
        let _ = unsafe { unmap(address, bytes) };
    }
    opened
}

/// Takes the memory from a range of addresses, which goes back to the system with that.
///
/// A driver may report an error of earlier work by this call, and have done what was asked for. So after an error it is
/// asked again: a range without memory is an invalid value to it.
///
/// # Safety
///
/// The range is one that was [mapped](map) in one call. What used it has ended.
pub(super) unsafe fn unmap(address: u64, bytes: usize) -> Result<(), Failure> {
    // SAFETY: by what the caller promises; where nothing is mapped any more the driver does nothing.
    let unmap = || done("cuMemUnmap", unsafe { sys::cuMemUnmap(address, bytes) });
    unmap().or_else(|first| match unmap() {
        Ok(()) | Err(Failure::Driver { code: sys::CUresult::CUDA_ERROR_INVALID_VALUE, .. }) => {
            Ok(())
        }
        Err(_) => Err(first),
    })
}
