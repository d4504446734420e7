//! Buffers that another stream uses.

#![forbid(unsafe_code)]

use bytemuck::Pod;

use super::{Persistent, Transient, View, ViewMut};
use crate::device::Device;
use crate::error::Error;
use crate::fence::{FOR_GOOD, UNTIL_THE_ROOT_CLOSES};

macro_rules! declare_stream {
    ($buffer:ty, $until:expr, $summary:literal) => {
        impl<T: Pod, D: Device> $buffer {
            #[doc = $summary]
            ///
            /// `stream` waits, on the device, for what is queued on the arena's stream now; what it
            /// does with the buffer later than the next close is the caller's to declare again.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) when the stream is of another
            /// device; [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the wait.
            #[track_caller]
            pub fn declare_stream(&self, stream: &D::Stream) -> Result<(), Error> {
                let _ = self.address(); // A recording sees a use.
                self.region().declare(stream, $until)
            }
        }
    };
}

declare_stream!(
    Transient<'_, T, D>,
    UNTIL_THE_ROOT_CLOSES,
    "Declares that `stream` uses this buffer: nothing of the step is reused before what was queued on \
     it, at this close or an earlier one."
);
declare_stream!(
    View<'_, T, D>,
    UNTIL_THE_ROOT_CLOSES,
    "Declares that `stream` uses this buffer, until the root scope closes; see \
     [`Transient::declare_stream`]."
);
declare_stream!(
    ViewMut<'_, T, D>,
    UNTIL_THE_ROOT_CLOSES,
    "Declares that `stream` uses this buffer, until the root scope closes; see \
     [`Transient::declare_stream`]."
);
declare_stream!(
    Persistent<T, D>,
    FOR_GOOD,
    "Declares that `stream` uses this buffer, for good: every close waits for what is queued on it, \
     and so does the region's end."
);
