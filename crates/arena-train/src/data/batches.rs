//! From a dataset to a batch, without an allocation.

use thiserror::Error;

use super::examples::Examples;
use super::mnist::Dataset;

/// Mean of the MNIST training pixels, on a scale where white is 1.
pub const PIXEL_MEAN: f32 = 0.1307;

/// Standard deviation of the MNIST training pixels on the same scale.
pub const PIXEL_STD: f32 = 0.3081;

/// Why a batch could not be filled. Nothing has been written when one is returned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A slice does not have the length that the number of indices asks for.
    #[error("{operand} has a length of {found}, but the batch needs {expected}")]
    Length {
        /// Which argument.
        operand: &'static str,
        /// Elements that the batch asks for.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// A dataset whose images are not as many pixels as its labels and its image size come to.
    #[error(
        "the dataset does not hold one image for each label: pixels {pixels}, labels {labels}, image size {rows} x {cols}"
    )]
    Dataset {
        /// Pixels of all images.
        pixels: usize,
        /// Number of labels.
        labels: usize,
        /// Rows of an image.
        rows: usize,
        /// Columns of an image.
        cols: usize,
    },
    /// An index beyond the dataset's end.
    #[error("there is no image {index}: the indices of this dataset are below {count}")]
    Index {
        /// The index found.
        index: u32,
        /// Images in the dataset.
        count: usize,
    },
}

/// Writes the bytes of the images at `indices`, in their order, and behind them their labels: a
/// batch as it goes to a device that normalises the pixels itself.
///
/// `bytes` is `[indices.len(), rows, cols]` pixels and `[indices.len()]` labels.
///
/// # Errors
///
/// [`BatchError`] when `bytes` does not fit or an index is beyond the end; nothing is written.
pub fn gather_batch(
    dataset: &Dataset,
    indices: &[u32],
    bytes: &mut [u8],
) -> Result<(), BatchError> {
    let image_len = checked_image_len(dataset)?;
    check_len("bytes", bytes.len(), indices.len() * (image_len + 1))?;
    check_indices(dataset, indices)?;
    let (pixels, labels) = bytes.split_at_mut(indices.len() * image_len);
    let slots = pixels.chunks_exact_mut(image_len.max(1)).zip(labels);
    for ((pixels, label), index) in slots.zip(indices) {
        let index = *index as usize;
        pixels.copy_from_slice(&dataset.images[index * image_len..][..image_len]);
        *label = dataset.labels[index];
    }
    Ok(())
}

/// Pixels of one image, where the dataset holds as many as it says.
fn checked_image_len(dataset: &Dataset) -> Result<usize, BatchError> {
    let Dataset { rows, cols, .. } = *dataset;
    let (pixels, labels) = (dataset.images.len(), dataset.len());
    rows.checked_mul(cols)
        .filter(|image_len| image_len.checked_mul(labels) == Some(pixels))
        .ok_or(BatchError::Dataset { pixels, labels, rows, cols })
}

fn check_len(operand: &'static str, found: usize, expected: usize) -> Result<(), BatchError> {
    if found == expected { Ok(()) } else { Err(BatchError::Length { operand, expected, found }) }
}

fn check_indices(dataset: &Dataset, indices: &[u32]) -> Result<(), BatchError> {
    let count = dataset.len();
    match indices.iter().find(|index| **index as usize >= count) {
        Some(index) => Err(BatchError::Index { index: *index, count }),
        None => Ok(()),
    }
}

/// Writes the normalised pixels and the labels of the images at `indices`, in their order.
///
/// `pixels` is `[indices.len(), rows, cols]`, `labels` `[indices.len()]`.
///
/// # Errors
///
/// [`BatchError`] when a slice does not fit or an index is beyond the end; nothing is written.
pub fn fill_batch(
    dataset: &Dataset,
    indices: &[u32],
    pixels: &mut [f32],
    labels: &mut [u32],
) -> Result<(), BatchError> {
    let image_len = checked_image_len(dataset)?;
    check_len("pixels", pixels.len(), indices.len() * image_len)?;
    check_len("labels", labels.len(), indices.len())?;
    check_indices(dataset, indices)?;
    // (p / 255 - mean) / std as one multiplication and one addition.
    let (scale, shift) = (1.0 / (255.0 * PIXEL_STD), -PIXEL_MEAN / PIXEL_STD);
    let slots = pixels.chunks_exact_mut(image_len.max(1)).zip(labels);
    for ((pixels, label), index) in slots.zip(indices) {
        let index = *index as usize;
        let image = &dataset.images[index * image_len..][..image_len];
        for (pixel, byte) in pixels.iter_mut().zip(image) {
            *pixel = f32::from(*byte) * scale + shift;
        }
        *label = u32::from(dataset.labels[index]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BatchError, fill_batch, gather_batch};
    use crate::data::Dataset;

    fn three_images() -> Dataset {
        Dataset {
            images: vec![0, 255, 51, 0, 1, 2, 255, 255],
            labels: vec![7, 0, 9, 3],
            rows: 1,
            cols: 2,
        }
    }

    #[test]
    fn a_batch_holds_normalised_pixels_and_labels_in_index_order() {
        let (mut pixels, mut labels) = ([f32::NAN; 4], [u32::MAX; 2]);
        fill_batch(&three_images(), &[3, 0], &mut pixels, &mut labels).unwrap();
        assert_eq!(labels, [3, 7]);
        let expected = [255.0, 255.0, 0.0, 255.0].map(|p: f64| (p / 255.0 - 0.1307) / 0.3081);
        for (pixel, expected) in pixels.iter().zip(expected) {
            assert!((f64::from(*pixel) - expected).abs() < 1e-6, "{pixel} {expected}");
        }
    }

    #[test]
    fn a_batch_of_bytes_holds_pixels_and_then_labels_in_index_order() {
        let mut bytes = [99; 6];
        gather_batch(&three_images(), &[3, 0], &mut bytes).unwrap();
        assert_eq!(bytes, [255, 255, 0, 255, 3, 7]);

        let mut untouched = [99; 6];
        assert_eq!(
            gather_batch(&three_images(), &[0, 4], &mut untouched),
            Err(BatchError::Index { index: 4, count: 4 })
        );
        assert_eq!(
            gather_batch(&three_images(), &[0], &mut untouched),
            Err(BatchError::Length { operand: "bytes", expected: 3, found: 6 })
        );
        assert_eq!(untouched, [99; 6]);
    }

    #[test]
    fn a_wrong_index_or_length_is_refused_before_anything_is_written() {
        let dataset = three_images();
        let (mut pixels, mut labels) = ([5.0; 4], [5; 2]);
        assert_eq!(
            fill_batch(&dataset, &[0, 4], &mut pixels, &mut labels),
            Err(BatchError::Index { index: 4, count: 4 })
        );
        assert_eq!(
            fill_batch(&dataset, &[0], &mut pixels, &mut labels),
            Err(BatchError::Length { operand: "pixels", expected: 2, found: 4 })
        );
        assert_eq!(
            fill_batch(&dataset, &[0, 1], &mut pixels, &mut labels[..1]),
            Err(BatchError::Length { operand: "labels", expected: 2, found: 1 })
        );
        let damaged = Dataset { rows: usize::MAX, ..dataset };
        assert!(matches!(
            fill_batch(&damaged, &[0, 1], &mut pixels, &mut labels),
            Err(BatchError::Dataset { pixels: 8, labels: 4, .. })
        ));
        assert_eq!((pixels, labels), ([5.0; 4], [5; 2]));
    }
}
