//! The four files of MNIST as two datasets.

use std::iter;
use std::path::{Path, PathBuf};

use super::examples::{Examples, Split};
use super::idx::{IdxError, read_images, read_labels};

/// Images and their labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Pixels, one byte each, `[len, rows, cols]`.
    pub images: Vec<u8>,
    /// One label from 0 to 9 for each image.
    pub labels: Vec<u8>,
    /// Rows of an image.
    pub rows: usize,
    /// Columns of an image.
    pub cols: usize,
}

impl Dataset {
    /// Pixels of one image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.rows * self.cols
    }
}

impl Examples for Dataset {
    fn groups(&self) -> impl Iterator<Item = usize> {
        iter::once(self.labels.len())
    }

    fn identity(&self, what: &str) -> String {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.images);
        hasher.update(&self.labels);
        let (len, rows, cols) = (self.len(), self.rows, self.cols);
        format!("{len} {what} images of {rows} x {cols} ({:08x})", hasher.finalize())
    }
}

/// MNIST: 60,000 images to train on and 10,000 to test with, of 28x28 pixels.
pub type Mnist = Split<Dataset>;

/// Rows, and columns, of an image.
pub const IMAGE_SIDE: usize = 28;

impl Mnist {
    /// Loads the four files from a directory under their usual names, each with or without `.gz`.
    ///
    /// # Errors
    ///
    /// [`IdxError`], which names the file: see [`load_dataset`].
    pub fn load(directory: &Path) -> Result<Self, IdxError> {
        let file = |name: &str| find(directory, name);
        let set = |name: &str| {
            let images = file(&format!("{name}-images-idx3-ubyte"))?;
            let set = load_dataset(&images, &file(&format!("{name}-labels-idx1-ubyte"))?)?;
            if set.is_empty() {
                return Err(IdxError::Empty { path: images });
            }
            if (set.rows, set.cols) != (IMAGE_SIDE, IMAGE_SIDE) {
                let (path, rows, cols) = (images, set.rows, set.cols);
                return Err(IdxError::ImageSize { path, rows, cols, reason: "28 x 28 are wanted" });
            }
            Ok(set)
        };
        let (train, test) = (set("train")?, set("t10k")?);
        Ok(Self { train, test })
    }
}

/// Loads images and their labels, and checks that there are as many of one as of the other.
///
/// # Errors
///
/// [`IdxError::CountMismatch`] where the counts differ, and all that [`read_images`] and
/// [`read_labels`] return.
pub fn load_dataset(images_path: &Path, labels_path: &Path) -> Result<Dataset, IdxError> {
    // The labels first: they are small, so a wrong pair is found before the images are read.
    let labels = read_labels(labels_path)?;
    let images = read_images(images_path)?;
    if images.count != labels.len() {
        return Err(IdxError::CountMismatch {
            images_path: images_path.to_owned(),
            labels_path: labels_path.to_owned(),
            images: images.count,
            labels: labels.len(),
        });
    }
    Ok(Dataset { images: images.pixels, labels, rows: images.rows, cols: images.cols })
}

/// The file of this name, or else the one with `.gz` behind it.
fn find(directory: &Path, name: &str) -> Result<PathBuf, IdxError> {
    let plain = directory.join(name);
    let packed = directory.join(format!("{name}.gz"));
    if plain.exists() {
        Ok(plain)
    } else if packed.exists() {
        Ok(packed)
    } else {
        Err(IdxError::Missing { directory: directory.to_owned(), name: name.to_owned() })
    }
}
