//! What a module is loaded from: PTX text, or machine code, of which the header is read and no more.

use crate::abi::{Code, CuResult, In, Text};

/// An image that a caller passes: PTX text up to a NUL, or the start of a CUBIN.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Image(In<u8>);

const ELF: [u8; 4] = *b"\x7FELF";
/// Bytes of the header of a 64-bit ELF file.
const HEADER_BYTES: usize = 64;
/// The machine that ELF files for CUDA name.
const CUDA_MACHINE: u16 = 190;

impl Image {
    /// The header of an ELF file; `None` when it is something else.
    pub(crate) fn elf_header(self) -> CuResult<Option<[u8; HEADER_BYTES]>> {
        // One by one: a text may end sooner, and what is no ELF file before its end.
        for (i, byte) in ELF.into_iter().enumerate() {
            if self.0.at(i).get()? != byte {
                return Ok(None);
            }
        }
        let mut header = [0; HEADER_BYTES];
        for (i, byte) in header.iter_mut().enumerate() {
            *byte = self.0.at(i).get()?;
        }
        Ok(Some(header))
    }

    /// The same image as a text.
    pub(crate) fn text(self) -> Text {
        Text::new(self.0)
    }
}

/// What the header of a CUBIN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cubin {
    /// Ten times the major and once the minor number: 90 for `sm_90`.
    architecture: i32,
    /// The toolkit's version, where the header has it: 12 and 9.
    toolkit: Option<(i32, i32)>,
}

impl Cubin {
    /// Reads a header; an ELF file for another machine is `CUDA_ERROR_INVALID_IMAGE`.
    pub(crate) fn read(header: &[u8; HEADER_BYTES]) -> CuResult<Self> {
        let machine = u16::from_le_bytes([header[18], header[19]]);
        if machine != CUDA_MACHINE {
            return Err(Code::INVALID_IMAGE);
        }
        let version = i32::from(header[20]);
        match header[8] {
            // Since CUDA 12.9 for compute capability 10.0 and above, since 13.0 for all.
            8.. => Ok(Self { architecture: i32::from(header[49]), toolkit: None }),
            _ => Ok(Self {
                architecture: i32::from(header[48]),
                toolkit: Some((version / 10, version % 10)),
            }),
        }
    }

    /// Why a device with this driver does not take it; `None` when it would.
    pub(crate) fn refusal(self, capability: (i32, i32), driver_version: i32) -> Option<String> {
        let (major, minor) = (self.architecture / 10, self.architecture % 10);
        // Machine code runs within one major number, on devices that are not older.
        if major != capability.0 || minor > capability.1 {
            let (have, had) = capability;
            return Some(format!(
                "the CUBIN is for compute capability {major}.{minor}, the device has {have}.{had}"
            ));
        }
        match self.toolkit {
            Some((major, minor)) if major > driver_version / 1000 => Some(format!(
                "the CUBIN is of CUDA {major}.{minor}, which is newer than the driver"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 52 bytes of what NVRTC writes, in hexadecimal digits.
    fn header(digits: &str) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        for (i, byte) in header.iter_mut().take(digits.len() / 2).enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
        }
        header
    }

    const SM_75: &str = "7f454c460201013307000000000000000200be00810000000000000000000000800900000000000080060000000000004b054b00";
    const SM_90_OF_12_0: &str = "7f454c460201013307000000000000000200be00780000000000000000000000401700000000000040140000000000005a055a00";
    const SM_120: &str = "7f454c460201014108000000000000000200be00010000000000000000000000d012000000000000500d00000000000002780006";

    #[test]
    fn the_header_says_what_a_cubin_is_for() {
        let read = |digits| Cubin::read(&header(digits));
        assert_eq!(read(SM_75), Ok(Cubin { architecture: 75, toolkit: Some((12, 9)) }));
        assert_eq!(read(SM_90_OF_12_0), Ok(Cubin { architecture: 90, toolkit: Some((12, 0)) }));
        assert_eq!(read(SM_120), Ok(Cubin { architecture: 120, toolkit: None }));
        let x86 = SM_75.replacen("be00", "3e00", 1);
        assert_eq!(read(&x86), Err(Code::INVALID_IMAGE));
    }

    #[test]
    fn a_cubin_is_for_its_own_major_number_and_for_drivers_of_its_toolkit() {
        let cubin = Cubin { architecture: 80, toolkit: Some((12, 9)) };
        assert_eq!(cubin.refusal((8, 0), 12_000), None);
        assert_eq!(cubin.refusal((8, 6), 13_000), None);
        for (capability, driver) in [((9, 0), 12_090), ((7, 5), 12_090), ((8, 0), 11_080)] {
            assert!(cubin.refusal(capability, driver).is_some(), "{capability:?} {driver}");
        }
    }
}
