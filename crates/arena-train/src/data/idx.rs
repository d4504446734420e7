//! A reader of IDX files, plain or gzip, that trusts nothing it reads.
//!
//! Memory never follows a number in the file: it grows with the bytes that have really been read,
//! and the reader stops one byte after what the header announced.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use arena_plan::files;
use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

/// Most bytes of data, after decompression, that a file may announce: 1 GiB.
pub const MAX_DATA_BYTES: u64 = 1 << 30;

/// Deflate cannot expand a byte to more than this (RFC 1951: 258 bytes from two bits).
const MAX_EXPANSION: u64 = 1032;

/// The first two bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Labels are digits.
const CLASSES: u8 = 10;

/// Why a file was refused. Every variant names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdxError {
    /// No file of this name, neither plain nor with `.gz`.
    #[error("neither {name} nor {name}.gz is in {}: --data names the directory with the data",
        absolute(directory).display())]
    Missing {
        /// Where it was looked for.
        directory: PathBuf,
        /// The file's name without `.gz`.
        name: String,
    },
    /// The operating system could not open or read the file.
    #[error("cannot read {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The gzip stream is damaged or cut short.
    #[error("{} is a damaged or truncated gzip file: {reason}", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        reason: io::Error,
    },
    /// The file does not begin as an IDX file of unsigned bytes with this many dimensions.
    #[error(
        "{} begins with {found}, not with {expected}{}",
        path.display(),
        magic_hint(*found)
    )]
    BadMagic {
        /// The file.
        path: PathBuf,
        /// 2051 for images, 2049 for labels.
        expected: u32,
        /// The first four bytes, big-endian.
        found: u32,
    },
    /// The file ends before its header does.
    #[error("{} ends within its header", path.display())]
    ShortHeader {
        /// The file.
        path: PathBuf,
    },
    /// Fewer or more bytes of data than the header announces.
    #[error("{} announces {expected_bytes} bytes of data but holds {}",
        path.display(), held(*found_bytes, *at_least))]
    LengthMismatch {
        /// The file.
        path: PathBuf,
        /// Bytes that the header's counts come to.
        expected_bytes: u64,
        /// Bytes behind the header.
        found_bytes: u64,
        /// Whether reading stopped there, so that there may be more.
        at_least: bool,
    },
    /// The header announces more than [`MAX_DATA_BYTES`].
    #[error("{} announces more than {MAX_DATA_BYTES} bytes (items {count}, bytes of an item {item_bytes})", path.display())]
    TooManyItems {
        /// The file.
        path: PathBuf,
        /// Items that the header announces.
        count: u32,
        /// Bytes of one item.
        item_bytes: u64,
    },
    /// Images of no or of another size.
    #[error("{} holds images of {rows} x {cols} pixels: {reason}", path.display())]
    ImageSize {
        /// The file.
        path: PathBuf,
        /// Rows that the header announces.
        rows: usize,
        /// Columns that the header announces.
        cols: usize,
        /// What is wrong with that.
        reason: &'static str,
    },
    /// No image, where some are needed.
    #[error("{} holds no image", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A label that is no digit.
    #[error("{} holds label {label} at index {index}; labels go from 0 to 9", path.display())]
    BadLabel {
        /// The file.
        path: PathBuf,
        /// Position of the label.
        index: usize,
        /// The label.
        label: u8,
    },
    /// Images and labels that do not belong together.
    #[error(
        "each image needs one label: {} holds {images} images, {} holds {labels} labels",
        images_path.display(),
        labels_path.display()
    )]
    CountMismatch {
        /// The file of images.
        images_path: PathBuf,
        /// The file of labels.
        labels_path: PathBuf,
        /// Images found.
        images: usize,
        /// Labels found.
        labels: usize,
    },
}

/// Where a relative path leads, as long as the program knows where it runs.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn magic_hint(found: u32) -> &'static str {
    match found {
        IMAGES_MAGIC => ": it holds images, are two files swapped?",
        LABELS_MAGIC => ": it holds labels, are two files swapped?",
        _ if found >> 16 == u32::from(u16::from_be_bytes(GZIP_MAGIC)) => ": it is gzip within gzip",
        _ => ", which is unsigned bytes in that many dimensions",
    }
}

fn held(bytes: u64, at_least: bool) -> String {
    if at_least { format!("at least {bytes}") } else { bytes.to_string() }
}

/// Zero, zero, unsigned byte, three dimensions.
const IMAGES_MAGIC: u32 = 2051;

/// Zero, zero, unsigned byte, one dimension.
const LABELS_MAGIC: u32 = 2049;

/// The images of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdxImages {
    /// Pixels, `[count, rows, cols]`.
    pub pixels: Vec<u8>,
    /// Number of images.
    pub count: usize,
    /// Rows of an image.
    pub rows: usize,
    /// Columns of an image.
    pub cols: usize,
}

/// Reads a file of images. Whether it is gzip is told by its content, whatever its name.
///
/// # Errors
///
/// [`IdxError`] when the file cannot be read or is not just what its header says.
pub fn read_images(path: &Path) -> Result<IdxImages, IdxError> {
    let mut source = Source::open(path)?;
    let [count, rows, cols] = source.header(IMAGES_MAGIC)?;
    let (rows_len, cols_len) = (rows as usize, cols as usize);
    if rows == 0 || cols == 0 {
        return Err(IdxError::ImageSize {
            path: path.to_owned(),
            rows: rows_len,
            cols: cols_len,
            reason: "an image needs at least one pixel",
        });
    }
    // Two 32-bit numbers: their product fits 64 bits.
    let pixels = source.data(count, u64::from(rows) * u64::from(cols))?;
    Ok(IdxImages { pixels, count: count as usize, rows: rows_len, cols: cols_len })
}

/// Reads a file of labels. Whether it is gzip is told by its content, whatever its name.
///
/// # Errors
///
/// [`IdxError`] when the file cannot be read, is not just what its header says, or holds a label
/// that is no digit.
pub fn read_labels(path: &Path) -> Result<Vec<u8>, IdxError> {
    let mut source = Source::open(path)?;
    let [count] = source.header(LABELS_MAGIC)?;
    let labels = source.data(count, 1)?;
    match labels.iter().position(|label| *label >= CLASSES) {
        Some(index) => {
            Err(IdxError::BadLabel { path: path.to_owned(), index, label: labels[index] })
        }
        None => Ok(labels),
    }
}

/// An open file, decompressed on the way where it is gzip.
struct Source<'p> {
    path: &'p Path,
    reader: Box<dyn Read>,
    gzip: bool,
    /// Length of the file itself.
    file_bytes: u64,
    header_bytes: u64,
}

impl<'p> Source<'p> {
    fn open(path: &'p Path) -> Result<Self, IdxError> {
        let io = |reason| IdxError::Io { path: path.to_owned(), reason };
        let file = files::open(path).map_err(|error| io(error.reason))?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut file = BufReader::new(file);
        let gzip = file.fill_buf().map_err(io)?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn Read> =
            if gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        Ok(Self { path, reader, gzip, file_bytes, header_bytes: 0 })
    }

    fn read_error(&self, reason: io::Error) -> IdxError {
        let path = self.path.to_owned();
        // A read error of the disk may come through the decoder, but it has a code of the system.
        if self.gzip && reason.raw_os_error().is_none() {
            IdxError::Gzip { path, reason }
        } else {
            IdxError::Io { path, reason }
        }
    }

    /// The magic number and the sizes of the dimensions behind it.
    fn header<const DIMENSIONS: usize>(
        &mut self,
        expected: u32,
    ) -> Result<[u32; DIMENSIONS], IdxError> {
        let found = self.number()?;
        if found != expected {
            return Err(IdxError::BadMagic { path: self.path.to_owned(), expected, found });
        }
        let mut sizes = [0; DIMENSIONS];
        for size in &mut sizes {
            *size = self.number()?;
        }
        Ok(sizes)
    }

    fn number(&mut self) -> Result<u32, IdxError> {
        let mut bytes = [0; 4];
        match self.reader.read_exact(&mut bytes) {
            Ok(()) => {
                self.header_bytes += 4;
                Ok(u32::from_be_bytes(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(IdxError::ShortHeader { path: self.path.to_owned() })
            }
            Err(error) => Err(self.read_error(error)),
        }
    }

    /// The data behind the header: just `count` items of `item_bytes`.
    fn data(mut self, count: u32, item_bytes: u64) -> Result<Vec<u8>, IdxError> {
        let expected_bytes = u64::from(count)
            .checked_mul(item_bytes)
            .filter(|bytes| *bytes <= MAX_DATA_BYTES)
            .ok_or_else(|| IdxError::TooManyItems {
                path: self.path.to_owned(),
                count,
                item_bytes,
            })?;
        let mismatch = |found_bytes, at_least| IdxError::LengthMismatch {
            path: self.path.to_owned(),
            expected_bytes,
            found_bytes,
            at_least,
        };
        let mut data = Vec::new();
        if self.gzip {
            let most_bytes = self.file_bytes.saturating_mul(MAX_EXPANSION);
            if expected_bytes > most_bytes {
                return Err(mismatch(most_bytes, false));
            }
        } else {
            let found_bytes = self.file_bytes.saturating_sub(self.header_bytes);
            if found_bytes != expected_bytes {
                return Err(mismatch(found_bytes, false));
            }
            // The file itself is this long, so this is a number that was seen, not believed.
            data.reserve_exact(expected_bytes as usize);
        }
        // One byte more than expected, to notice a file that goes on; the read also makes the
        // decoder check the stream's end. `read_to_end` grows with what arrives.
        let mut limited = self.reader.by_ref().take(expected_bytes + 1);
        if let Err(reason) = limited.read_to_end(&mut data) {
            return Err(self.read_error(reason));
        }
        let found_bytes = data.len() as u64;
        if found_bytes != expected_bytes {
            return Err(mismatch(found_bytes, found_bytes > expected_bytes));
        }
        data.shrink_to_fit();
        Ok(data)
    }
}
