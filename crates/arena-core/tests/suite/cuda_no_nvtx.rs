//! A machine with a driver and without NVTX: this program never loads the stand-in for NVTX.

use arena_core::{Cuda, Device, DeviceErrorKind, ErrorKind};
use arena_testing::skip;
use cuda_standin::Standin;

#[test]
fn without_nvtx_a_plain_error_says_so_and_the_device_is_gone() {
    let standin = Standin::load().unwrap();
    // SAFETY: loading NVTX, if it is there, runs its initialisers, as any program may.
    if unsafe { arena_core::cudarc::nvtx::sys::is_culib_present() } {
        // Then at least the real one is called.
        let device = Cuda::new(0).unwrap().with_ranges().unwrap();
        device.end_range(device.begin_range("train").unwrap());
        return skip("NVTX is installed");
    }
    let error = Cuda::new(0).unwrap().with_ranges().unwrap_err();
    let ErrorKind::Device(device_error) = error.kind() else { panic!("{error:?}") };
    assert_eq!(device_error.kind, DeviceErrorKind::Unavailable);
    let told = "cuda:0: load failed: no NVTX: the loader finds no libnvToolsExt.so";
    assert_eq!(error.to_string(), told);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}
