//! The four files of MNIST as two datasets.

use std::path::{Path, PathBuf};

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
    /// Number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Pixels of one image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.rows * self.cols
    }
}

/// MNIST: 60,000 images to train on and 10,000 to test with, of 28x28 pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mnist {
    /// Images to train on.
    pub train: Dataset,
    /// Images to test with.
    pub test: Dataset,
}

/// What tells data from other data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataIdentity {
    /// Counts, sizes, and a checksum of all bytes.
    pub text: String,
    /// Images to train on.
    pub train_images: usize,
}

/// Rows, and columns, of an image.
pub const IMAGE_SIDE: usize = 28;

impl Mnist {
    /// What tells this data from other data. All bytes are read for it.
    #[must_use]
    pub fn identity(&self) -> DataIdentity {
        let identity = |what: &str, set: &Dataset| {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&set.images);
            hasher.update(&set.labels);
            let (len, rows, cols) = (set.len(), set.rows, set.cols);
            format!("{len} {what} images of {rows} x {cols} ({:08x})", hasher.finalize())
        };
        let text =
            format!("{}, {}", identity("training", &self.train), identity("test", &self.test));
        DataIdentity { text, train_images: self.train.len() }
    }

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
