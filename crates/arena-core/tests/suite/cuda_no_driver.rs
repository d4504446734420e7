//! A machine without a driver: the test has a process of its own, for the others load the stand-in.

use arena_core::{Cuda, DeviceErrorKind, ErrorKind};
use arena_testing::{alone, skip};

#[test]
fn without_a_driver_a_plain_error_says_so() {
    alone(|| {
        // SAFETY: loading a driver, if there is one, runs its initialisers, as any program may.
        if unsafe { arena_core::cudarc::driver::sys::is_culib_present() } {
            return skip("there is a CUDA driver");
        }
        let errors =
            [Cuda::new(0).map(drop), Cuda::new(7).map(drop), Cuda::device_count().map(drop)];
        for error in errors.map(Result::unwrap_err) {
            let ErrorKind::Device(device_error) = error.kind() else { panic!("{error:?}") };
            assert_eq!(device_error.kind, DeviceErrorKind::Unavailable);
            assert!(error.to_string().contains("no CUDA driver"), "{error}");
            assert!(!format!("{error:?}").is_empty(), "formatting calls no driver either");
        }
    });
}
