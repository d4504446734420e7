//! MNIST: files, images, batches.

mod batches;
mod idx;
mod mnist;

pub use batches::{BatchError, PIXEL_MEAN, PIXEL_STD, fill_batch, gather_batch, shuffled_order};
pub use idx::{IdxError, IdxImages, MAX_DATA_BYTES, read_images, read_labels};
pub use mnist::{DataIdentity, Dataset, IMAGE_SIDE, Mnist, load_dataset};
