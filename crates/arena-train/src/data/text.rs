//! Text as sequences of bytes, each with the byte that follows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use arena_plan::files::{self, FileError};

use super::{Examples, Split};

/// A whole text has so many parts; the last one is for testing.
const PARTS: usize = 10;

/// Lengths of ragged sequences are multiples of this, or that of the longest.
const STRIDE: usize = 16;

/// Why there is no text to learn from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// It could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A folder could not be listed.
    #[error("cannot list {}: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// A folder without a document.
    #[error("there is no .md file in {}: --data names a text, or a folder of documents", path.display())]
    NoDocument {
        /// The folder.
        path: PathBuf,
    },
    /// A part of it is shorter than one sequence and the byte behind it.
    #[error(
        "a text of {bytes} bytes is too short: its last tenth holds no sequence of {context} bytes, and one more"
    )]
    TooShort {
        /// Bytes of the whole text.
        bytes: usize,
        /// Bytes of a sequence.
        context: usize,
    },
}

/// A part of a text, cut into sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    bytes: Arc<[u8]>,
    /// Where each sequence begins, in groups of equal length.
    starts: Vec<u32>,
    /// The length of each group's sequences, and how many they are.
    groups: Vec<(usize, usize)>,
}

impl Text {
    /// Sequences of `context` bytes, one behind the other. What is left at the end is shorter, and left out.
    #[must_use]
    pub fn new(bytes: &[u8], context: usize) -> Self {
        // The last one has a byte behind it, too.
        let count = bytes.len().saturating_sub(1) / context.max(1);
        let starts = (0..).step_by(context.max(1)).take(count).collect();
        Self { bytes: bytes.into(), starts, groups: vec![(context, count)] }
    }

    /// A sequence for each paragraph, of its length rounded up to a multiple of 16 bytes, so that it may reach into the
    /// next one. A paragraph that is longer than `context` bytes becomes several.
    #[must_use]
    pub fn ragged(bytes: &[u8], context: usize) -> Self {
        let mut of_length = vec![Vec::new(); context + 1];
        let mut start = 0;
        while start < bytes.len() {
            let rest = &bytes[start..];
            let gap = rest.windows(2).position(|pair| pair == b"\n\n");
            let paragraph = gap.map_or(rest.len(), |gap| gap + 2);
            let length = paragraph.next_multiple_of(STRIDE).min(context);
            if length < rest.len() {
                of_length[length].push(u32::try_from(start).unwrap_or(u32::MAX));
            }
            start += paragraph.min(length);
        }
        let groups = of_length.iter().enumerate().map(|(length, starts)| (length, starts.len()));
        let groups = groups.filter(|(_, count)| *count > 0).collect();
        Self { bytes: bytes.into(), starts: of_length.concat(), groups }
    }

    /// The text of a file, or of all documents (`.md`) below a folder in the order of their paths; and its sequences of
    /// at most `context` bytes. The last tenth is for testing, in sequences of equal length.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no regular file, is larger than 2 GiB, or too short.
    pub fn load(path: &Path, context: usize, is_ragged: bool) -> Result<Split<Self>, TextError> {
        let bytes = if path.is_dir() {
            let mut paths = Vec::new();
            documents(path, &mut paths)?;
            paths.sort();
            if paths.is_empty() {
                return Err(TextError::NoDocument { path: path.to_owned() });
            }
            let texts: Result<Vec<_>, _> = paths.iter().map(|path| files::read(path)).collect();
            texts?.concat()
        } else {
            files::read(path)?
        };
        Self::split(&bytes, context, is_ragged)
    }

    /// The sequences of a text: see [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// When it is too short.
    pub fn split(bytes: &[u8], context: usize, is_ragged: bool) -> Result<Split<Self>, TextError> {
        let (train, test) = bytes.split_at(bytes.len() - bytes.len() / PARTS);
        let cut = if is_ragged { Self::ragged } else { Self::new };
        let split = Split { train: cut(train, context), test: Self::new(test, context) };
        if split.train.is_empty() || split.test.is_empty() {
            return Err(TextError::TooShort { bytes: bytes.len(), context });
        }
        Ok(split)
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of a sequence in bytes.
    ///
    /// # Panics
    ///
    /// When there are not so many sequences.
    #[must_use]
    pub fn length(&self, sequence: u32) -> usize {
        let mut number = sequence as usize;
        for (length, count) in &self.groups {
            match number.checked_sub(*count) {
                None => return *length,
                Some(rest) => number = rest,
            }
        }
        panic!("there are {} sequences, and none has number {sequence}", self.starts.len())
    }

    /// The bytes of a sequence, and the one behind it.
    ///
    /// # Panics
    ///
    /// When there are not so many sequences.
    #[must_use]
    pub fn sequence(&self, sequence: u32) -> &[u8] {
        &self.bytes[self.starts[sequence as usize] as usize..][..=self.length(sequence)]
    }
}

impl Examples for Text {
    fn groups(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().map(|(_, count)| *count)
    }

    fn identity(&self, what: &str) -> String {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.bytes);
        let (bytes, sequences, checksum) = (self.bytes.len(), self.len(), hasher.finalize());
        let longest = self.groups.last().map_or(0, |(length, _)| *length);
        let lengths = self.groups.len();
        format!(
            "{sequences} {what} sequences of {lengths} lengths up to {longest} in {bytes} bytes ({checksum:08x})"
        )
    }
}

/// Adds the paths of the documents in a folder and below it.
fn documents(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), TextError> {
    let failed = |reason| TextError::Folder { path: folder.to_owned(), reason };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        // A link to a folder is not followed: it may lead back here.
        if entry.file_type().map_err(failed)?.is_dir() {
            documents(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Text, TextError};
    use crate::data::Examples;

    #[rstest]
    #[case(10, 4, &[0, 4])]
    // The byte behind the last sequence is missing.
    #[case(8, 4, &[0])]
    #[case(9, 4, &[0, 4])]
    #[case(4, 4, &[])]
    #[case(0, 4, &[])]
    fn equal_sequences_lie_one_behind_the_other_each_with_the_byte_that_follows(
        #[case] bytes: u8,
        #[case] context: usize,
        #[case] starts: &[u8],
    ) {
        let bytes: Vec<u8> = (0..bytes).collect();
        let text = Text::new(&bytes, context);
        assert_eq!(text.len(), starts.len());
        for (number, start) in (0..).zip(starts) {
            let expected: Vec<u8> = (*start..).take(context + 1).collect();
            assert_eq!(text.sequence(number), expected);
        }
    }

    #[test]
    fn a_ragged_sequence_begins_at_a_paragraph_and_none_is_longer_than_the_context() {
        let paragraphs = ["a".repeat(20), "b".repeat(3), "c".repeat(100), "d".repeat(40)];
        let text = Text::ragged(paragraphs.join("\n\n").as_bytes(), 48);
        let sequences: Vec<(usize, char)> = (0..text.len() as u32)
            .map(|number| (text.length(number), char::from(text.sequence(number)[0])))
            .collect();
        // 22 bytes, 5, 102 in three parts of 48, 48 and 6, and 40, behind which no byte follows the rounded length.
        assert_eq!(sequences, [(16, 'b'), (16, 'c'), (32, 'a'), (48, 'c'), (48, 'c')]);
        assert_eq!(text.groups().collect::<Vec<_>>(), [2, 1, 2]);
        assert!((0..5).all(|number| text.sequence(number).len() == text.length(number) + 1));
    }

    #[test]
    fn the_last_tenth_is_for_testing_and_too_short_a_text_is_refused() {
        let bytes: Vec<u8> = (0..200).collect();
        let split = Text::split(&bytes, 8, true).unwrap();
        assert_eq!(split.test.bytes(), &bytes[180..]);
        assert_eq!(split.train.bytes(), &bytes[..180]);
        assert_eq!(split.test.groups().collect::<Vec<_>>(), [2]);
        for (bytes, context) in [(0, 1), (19, 1), (200, 20), (160, 16)] {
            let refused = Text::split(&vec![0; bytes], context, false);
            let expected = matches!(refused, Err(TextError::TooShort { .. }));
            assert!(expected, "{bytes} {context}: {refused:?}");
        }
    }

    #[test]
    fn an_identity_tells_texts_and_their_sequences_apart() {
        let texts = [
            Text::new(&[1; 100], 16),
            Text::new(&[2; 100], 16),
            Text::new(&[1; 101], 16),
            Text::new(&[1; 100], 8),
        ];
        let mut identities: Vec<_> = texts.iter().map(|text| text.identity("test")).collect();
        identities.dedup();
        assert_eq!(identities.len(), texts.len(), "{identities:?}");
    }
}
