//! Requests whose buffers lie outside the zones, for hunting bugs. The zones still say the offset.

use super::Steps;
use crate::POISON_BYTE;
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::Error;
use crate::hunting::Separate;

impl<D: Device> Steps<D> {
    /// The address and the offset of a request that is placed outside the zones.
    pub(super) fn place_alone(
        &self,
        separate: &Separate<D>,
        bytes: u64,
        alignment: Alignment,
    ) -> Result<(u64, u64), Error> {
        let before_bytes = self.zones.cursor_bytes();
        let span = self.bump_grown(bytes, alignment)?;
        let contents = if self.poisoned_to.get().is_some() { POISON_BYTE } else { 0 };
        let address = if span.is_empty() {
            self.address_of(span)
        } else {
            separate.place(span, alignment, contents).inspect_err(|_| {
                self.zones.take_back(before_bytes, span);
            })?
        };
        separate.count_request();
        Ok((address, span.start_bytes))
    }

    /// Takes the buffer of the request made last back, as if it had not been made.
    pub(super) fn take_back_alone(&self, address: u64) {
        let Some(separate) = &self.separate else { return };
        // SAFETY: the buffer was never handed out.
        if let Err(error) = unsafe { separate.take_back(address) } {
            self.region.keep_failure(error);
            self.choose_mode();
        }
    }
}
