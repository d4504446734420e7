//! The reader trusts nothing: B081, B082, B083, and what else a file may get wrong.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use arena_train::data::{
    Dataset, Examples, IdxError, Mnist, load_dataset, read_images, read_labels,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use rstest::rstest;
use tempfile::TempDir;

fn images(count: u32, rows: u32, cols: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [2051, count, rows, cols] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

fn labels(count: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [2049_u32, count] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[track_caller]
fn assert_names(error: &IdxError, path: &Path) {
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text} does not name {}", path.display());
}

/// B082: raw, gzip, gzip without `.gz` and raw with `.gz` all load the same two images.
#[rstest]
#[case("images", false)]
#[case("images.gz", true)]
#[case("images", true)]
#[case("images.gz", false)]
fn gzip_is_told_by_content_not_by_name(#[case] name: &str, #[case] packed: bool) {
    let files = Files::new();
    let bytes = images(2, 2, 3, &[0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255]);
    let path = files.write(name, &if packed { gzip(&bytes) } else { bytes });
    let found = read_images(&path).unwrap();
    assert_eq!((found.count, found.rows, found.cols), (2, 2, 3));
    assert_eq!(found.pixels, [0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255]);
}

#[test]
fn labels_are_read_plain_and_packed() {
    let files = Files::new();
    let bytes = labels(3, &[0, 9, 5]);
    assert_eq!(read_labels(&files.write("plain", &bytes)).unwrap(), [0, 9, 5]);
    assert_eq!(read_labels(&files.write("packed", &gzip(&bytes))).unwrap(), [0, 9, 5]);
}

/// B081: a header that asks for terabytes, plain, packed, and packed with much behind it.
#[rstest]
#[case::plain(images(u32::MAX, 28, 28, &[0; 4096]))]
#[case::gzip(gzip(&images(u32::MAX, 28, 28, &[0; 4096])))]
#[case::expanding(gzip(&images(u32::MAX, 28, 28, &vec![0; 64 << 20])))]
#[case::widest(images(u32::MAX, u32::MAX, u32::MAX, &[]))]
fn a_header_that_asks_for_terabytes_is_refused_from_its_numbers_alone(#[case] bytes: Vec<u8>) {
    let files = Files::new();
    let path = files.write("images", &bytes);
    let error = read_images(&path).unwrap_err();
    assert!(matches!(error, IdxError::TooManyItems { count: u32::MAX, .. }), "{error}");
    assert_names(&error, &path);
}

/// B081 below the limit: the announced gigabyte is in no relation to the file.
#[rstest]
#[case::plain(false)]
#[case::gzip(true)]
fn a_file_that_cannot_hold_what_it_announces_is_refused(#[case] packed: bool) {
    let files = Files::new();
    let bytes = images(1_000_000, 28, 28, &[0; 4096]);
    let path = files.write("images", &if packed { gzip(&bytes) } else { bytes });
    let error = read_images(&path).unwrap_err();
    let IdxError::LengthMismatch { expected_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(expected_bytes, 784_000_000);
    assert_names(&error, &path);
}

#[rstest]
#[case::one_byte_short(11, 11, false)]
#[case::one_byte_long(13, 13, false)]
#[case::packed_short(11, 11, true)]
#[case::packed_long(13, 13, true)]
#[case::packed_very_long(1 << 24, 13, true)]
fn a_file_must_hold_just_what_it_announces(
    #[case] bytes: usize,
    #[case] found: u64,
    #[case] packed: bool,
) {
    let files = Files::new();
    let bytes = images(2, 2, 3, &vec![0; bytes]);
    let path = files.write("images", &if packed { gzip(&bytes) } else { bytes });
    let error = read_images(&path).unwrap_err();
    let IdxError::LengthMismatch { expected_bytes, found_bytes, .. } = error else {
        panic!("{error}")
    };
    // Of a stream that goes on, one byte too many is all that is read.
    assert_eq!((expected_bytes, found_bytes), (12, found));
    assert_names(&error, &path);
}

#[test]
fn a_header_cut_anywhere_is_refused() {
    let files = Files::new();
    let whole = images(1, 1, 1, &[7]);
    for len in 0..16 {
        let path = files.write("images", &whole[..len]);
        let error = read_images(&path).unwrap_err();
        assert!(matches!(error, IdxError::ShortHeader { .. }), "{len}: {error}");
        assert_names(&error, &path);
        let path = files.write("packed", &gzip(&whole[..len]));
        let error = read_images(&path).unwrap_err();
        assert!(matches!(error, IdxError::ShortHeader { .. }), "{len}: {error}");
    }
}

#[test]
fn a_gzip_stream_cut_anywhere_is_refused() {
    let files = Files::new();
    let whole = gzip(&images(2, 2, 3, &[0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255]));
    for len in 2..whole.len() {
        let path = files.write("images.gz", &whole[..len]);
        let error = read_images(&path).unwrap_err();
        assert!(
            matches!(error, IdxError::Gzip { .. } | IdxError::ShortHeader { .. }),
            "{len}: {error}"
        );
        assert_names(&error, &path);
    }
}

#[test]
fn a_damaged_gzip_stream_is_refused() {
    let files = Files::new();
    let mut bytes = gzip(&images(2, 2, 3, &[7; 12]));
    // The first byte of the checksum.
    let at = bytes.len() - 8;
    bytes[at] ^= 1;
    let path = files.write("images.gz", &bytes);
    let error = read_images(&path).unwrap_err();
    assert!(matches!(error, IdxError::Gzip { .. }), "{error}");
    assert!(error.to_string().contains("gzip"));
    assert_names(&error, &path);
}

#[rstest]
#[case::element_type(2051 + 0x100)]
#[case::little_endian(0x0308_0000)]
#[case::zero(0)]
fn another_magic_number_is_refused(#[case] magic: u32) {
    let files = Files::new();
    let mut bytes = images(1, 1, 1, &[7]);
    bytes[..4].copy_from_slice(&magic.to_be_bytes());
    let path = files.write("images", &bytes);
    let error = read_images(&path).unwrap_err();
    assert!(
        matches!(error, IdxError::BadMagic { expected: 2051, found, .. } if found == magic),
        "{error}"
    );
    assert_names(&error, &path);
}

/// B082: the bytes 1F 8B 08 08 read as a number say gzip in the error.
#[test]
fn gzip_within_gzip_is_refused_and_named() {
    let files = Files::new();
    let path = files.write("images.gz", &gzip(&gzip(&images(1, 1, 1, &[7]))));
    let error = read_images(&path).unwrap_err();
    assert!(matches!(error, IdxError::BadMagic { .. }), "{error}");
    assert!(error.to_string().contains("gzip within gzip"), "{error}");
}

#[rstest]
#[case(0, 28)]
#[case(28, 0)]
fn images_without_pixels_are_refused(#[case] rows: u32, #[case] cols: u32) {
    let files = Files::new();
    let path = files.write("images", &images(3, rows, cols, &[]));
    let error = read_images(&path).unwrap_err();
    assert!(matches!(error, IdxError::ImageSize { .. }), "{error}");
    assert_names(&error, &path);
}

/// B083: three images and two labels.
#[test]
fn images_and_labels_that_differ_in_number_are_refused() {
    let files = Files::new();
    let images_path = files.write("images", &images(3, 1, 2, &[0; 6]));
    let labels_path = files.write("labels", &labels(2, &[1, 2]));
    let error = load_dataset(&images_path, &labels_path).unwrap_err();
    assert!(matches!(error, IdxError::CountMismatch { images: 3, labels: 2, .. }), "{error}");
    assert_names(&error, &images_path);
    assert_names(&error, &labels_path);
}

/// B083: the two files swapped.
#[test]
fn swapped_files_are_refused_and_the_error_says_so() {
    let files = Files::new();
    let images_path = files.write("images", &images(2, 1, 2, &[0; 4]));
    let labels_path = files.write("labels", &labels(2, &[1, 2]));
    let error = load_dataset(&labels_path, &images_path).unwrap_err();
    assert!(matches!(error, IdxError::BadMagic { .. }), "{error}");
    assert!(error.to_string().contains("swapped"), "{error}");
}

/// B083: a label that is no digit.
#[test]
fn a_label_that_is_no_digit_is_refused_with_its_place() {
    let files = Files::new();
    let path = files.write("labels", &labels(3, &[0, 9, 10]));
    let error = read_labels(&path).unwrap_err();
    assert!(matches!(error, IdxError::BadLabel { index: 2, label: 10, .. }), "{error}");
    assert_names(&error, &path);
}

#[test]
fn a_missing_file_is_named() {
    let files = Files::new();
    let path = files.0.path().join("absent");
    let error = read_images(&path).unwrap_err();
    assert!(matches!(error, IdxError::Io { .. }), "{error}");
    assert_names(&error, &path);
    let error = Mnist::load(files.0.path()).unwrap_err();
    assert!(error.to_string().contains("train-images-idx3-ubyte.gz"), "{error}");
}

#[test]
fn a_directory_in_the_place_of_a_file_is_an_error() {
    let files = Files::new();
    assert!(matches!(read_images(files.0.path()), Err(IdxError::Io { .. })));
}

/// B083, and files as they lie on a disk.
#[test]
fn a_directory_of_mnist_loads_packed_or_plain() {
    let files = Files::new();
    let pixels = |len: usize| (0..len).map(|n| (n % 251) as u8).collect::<Vec<u8>>();
    let three = pixels(3 * 784);
    files.write("train-images-idx3-ubyte.gz", &gzip(&images(3, 28, 28, &three)));
    files.write("train-labels-idx1-ubyte", &labels(3, &[3, 2, 1]));
    files.write("t10k-images-idx3-ubyte", &images(1, 28, 28, &pixels(784)));
    files.write("t10k-labels-idx1-ubyte.gz", &gzip(&labels(1, &[0])));
    let mnist = Mnist::load(files.0.path()).unwrap();
    assert_eq!((mnist.train.len(), mnist.test.len()), (3, 1));
    assert_eq!(mnist.train.images, three);
    assert_eq!(mnist.train.labels, [3, 2, 1]);
    assert_eq!((mnist.test.rows, mnist.test.cols), (28, 28));

    // Training images with test labels; test images of another size; none.
    let at = |name| files.0.path().join(name);
    let error = load_dataset(&at("train-images-idx3-ubyte.gz"), &at("t10k-labels-idx1-ubyte.gz"))
        .unwrap_err();
    assert!(matches!(error, IdxError::CountMismatch { images: 3, labels: 1, .. }), "{error}");
    files.write("t10k-images-idx3-ubyte", &images(1, 28, 27, &pixels(28 * 27)));
    let error = Mnist::load(files.0.path()).unwrap_err();
    assert!(matches!(error, IdxError::ImageSize { rows: 28, cols: 27, .. }), "{error}");
    assert_names(&error, &at("t10k-images-idx3-ubyte"));
    assert!(error.to_string().contains("28 x 28 are wanted"), "{error}");
    files.write("t10k-images-idx3-ubyte", &images(0, 28, 28, &[]));
    files.write("t10k-labels-idx1-ubyte.gz", &gzip(&labels(0, &[])));
    let error = Mnist::load(files.0.path()).unwrap_err();
    assert!(matches!(error, IdxError::Empty { .. }), "{error}");
    assert_names(&error, &at("t10k-images-idx3-ubyte"));
}

#[test]
fn one_pixel_or_label_more_or_another_makes_other_data() {
    let data = |labels: &[u8]| {
        let set = Dataset { images: vec![1; 8], labels: labels.to_vec(), rows: 2, cols: 2 };
        Mnist { train: set.clone(), test: set }.identity()
    };
    assert_eq!(data(&[1, 2]), data(&[1, 2]));
    assert_ne!(data(&[1, 2]), data(&[1, 3]));
    assert!(data(&[1, 2]).starts_with("2 training images of 2 x 2 ("), "{}", data(&[1, 2]));
}

#[test]
fn the_real_mnist_loads() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let mnist = Mnist::load(&directory).unwrap();
    assert_eq!((mnist.train.len(), mnist.test.len()), (60_000, 10_000));
    assert_eq!((mnist.train.rows, mnist.train.cols), (28, 28));
    // The first labels, as every book on MNIST shows them.
    assert_eq!(mnist.train.labels[..5], [5, 0, 4, 1, 9]);
    assert_eq!(mnist.test.labels[..5], [7, 2, 1, 0, 4]);
    // The mean pixel is what the normalisation takes out.
    let sum: u64 = mnist.train.images.iter().map(|pixel| u64::from(*pixel)).sum();
    let mean = sum as f64 / (60_000.0 * 784.0 * 255.0);
    assert!((mean - 0.1307).abs() < 1e-4, "{mean}");
}
