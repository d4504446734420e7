//! The CUDA device of a program that was built without it.

use std::convert::Infallible;

use crate::bytes::Alignment;
use crate::device::{Captures, Device, Obtained, Pattern};
use crate::error::{DeviceError, DeviceErrorKind, Error};

/// A device of which there is no value, because the program was built without a feature such as `cuda`.
#[derive(Debug)]
pub struct Cuda(Infallible);

impl Cuda {
    /// Says that the feature is missing.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        Err(missing(format!("cuda:{ordinal}")).into())
    }

    /// Says that the feature is missing.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn device_count() -> Result<usize, Error> {
        Err(missing("cuda".to_owned()).into())
    }

    /// Cannot be called: there is no value of this type.
    ///
    /// # Errors
    ///
    /// There is no such device.
    pub fn with_ranges(self) -> Result<Self, Error> {
        match self.0 {}
    }
}

fn missing(device: String) -> DeviceError {
    DeviceError {
        device,
        call: "new",
        reason: "this program was built without the feature `cuda`".to_owned(),
        kind: DeviceErrorKind::Unavailable,
    }
}

// SAFETY: there is no value of this type, so none of its methods is ever called, and no duty can be broken.
unsafe impl Device for Cuda {
    type Memory = Infallible;
    type Stream = ();
    type Event = ();

    fn name(&self) -> String {
        match self.0 {}
    }

    fn base_alignment(&self) -> Alignment {
        match self.0 {}
    }

    fn obtain(&self, _bytes: u64) -> Result<Obtained<Infallible>, DeviceError> {
        match self.0 {}
    }

    unsafe fn release(
        &self,
        _memory: Obtained<Infallible>,
        _bytes: u64,
    ) -> Result<(), DeviceError> {
        match self.0 {}
    }

    unsafe fn give_back(&self, _address: u64, _bytes: u64) -> Result<u64, DeviceError> {
        match self.0 {}
    }

    unsafe fn fill(
        &self,
        _address: u64,
        _bytes: u64,
        _pattern: Pattern,
    ) -> Result<(), DeviceError> {
        match self.0 {}
    }

    unsafe fn copy_in(&self, _to_address: u64, _from: &[u8]) -> Result<(), DeviceError> {
        match self.0 {}
    }

    unsafe fn copy_out(&self, _to: &mut [u8], _from_address: u64) -> Result<(), DeviceError> {
        match self.0 {}
    }

    unsafe fn copy_within(
        &self,
        _to_address: u64,
        _from_address: u64,
        _bytes: u64,
    ) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn stream(&self) -> &() {
        match self.0 {}
    }

    fn owns_stream(&self, _stream: &()) -> bool {
        match self.0 {}
    }

    fn new_event(&self) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn record(&self, _event: &(), _stream: &()) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn wait(&self, _stream: &(), _event: &()) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn synchronise_stream(&self, _stream: &()) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

// SAFETY: as above.
unsafe impl Captures for Cuda {
    type Graph = Infallible;

    fn begin_capture(&self) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn end_capture(&self) -> Result<Infallible, DeviceError> {
        match self.0 {}
    }

    fn abandon_capture(&self) {
        match self.0 {}
    }

    unsafe fn launch(&self, _graph: &Infallible) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_the_feature_says_so() {
        let refused = Cuda::new(0).unwrap_err().to_string();
        assert!(refused.contains("cuda:0") && refused.contains("feature `cuda`"), "{refused}");
        let refused = Cuda::device_count().unwrap_err().to_string();
        assert!(refused.contains("feature `cuda`"), "{refused}");
    }
}
