//! What the networks learn from: MNIST's images, or a text.

mod batches;
mod examples;
mod idx;
mod mnist;
mod text;

pub use batches::{BatchError, PIXEL_MEAN, PIXEL_STD, fill_batch, gather_batch};
pub use examples::{EpochOrder, Examples, Split};
pub use idx::{IdxError, IdxImages, MAX_DATA_BYTES, read_images, read_labels};
pub use mnist::{Dataset, IMAGE_SIDE, Mnist, load_dataset};
pub use text::{Text, TextError};
