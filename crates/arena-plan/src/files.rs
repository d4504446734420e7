//! Files that are written whole or not at all, and read within a limit.
//!
//! [`write()`] writes a temporary file in the target's directory, flushes it to the disk, and renames it to the target.
//! Until the rename the target is what it was; after it, the target has all of the new contents. Nothing in between
//! can be seen, also after a crash.
//!
//! A temporary file is locked while its writer lives. So each call of [`write()`] first removes what killed runs left
//! in that directory: files of our name pattern without a lock.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use tempfile::{Builder, NamedTempFile};
use thiserror::Error;

/// The most bytes that [`read`] takes from a file: 1 GiB, a plan of ten million buffers.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// In place of a file's name: the standard input for [`read`], the standard output for [`write()`].
const STANDARD: &str = "-";

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;

/// A temporary file is called PREFIX, [`RANDOM_CHARACTERS`] letters and digits, SUFFIX.
const PREFIX: &str = ".arena-";
const SUFFIX: &str = ".unfinished";
const RANDOM_CHARACTERS: usize = 12;

/// What was done when a file failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It was read.
    Read,
    /// It was written.
    Write,
}

/// A file could not be read or written.
#[derive(Debug, Error)]
#[error("cannot {}: {reason}", self.attempt())]
pub struct FileError {
    /// The file; `-` is the standard input or output.
    pub path: PathBuf,
    /// What was done.
    pub access: Access,
    /// What the system said.
    pub reason: io::Error,
}

impl FileError {
    fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self { path: path.to_owned(), access: Access::Read, reason }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self { path: path.to_owned(), access: Access::Write, reason }
    }

    fn attempt(&self) -> String {
        let standard = is_standard(&self.path);
        match self.access {
            Access::Read if standard => "read the standard input".to_owned(),
            Access::Read => format!("read {}", self.path.display()),
            Access::Write if standard => "write to the standard output".to_owned(),
            Access::Write => format!("write {}", self.path.display()),
        }
    }

    /// Whether the reader of the standard output has gone, as `head` does when it has seen enough. A program ends
    /// without a message then.
    #[must_use]
    pub fn is_closed_output(&self) -> bool {
        let closed = self.reason.kind() == io::ErrorKind::BrokenPipe;
        closed && self.access == Access::Write && is_standard(&self.path)
    }
}

/// Opens a regular file for reading.
///
/// # Errors
///
/// [`FileError`] when it cannot be opened, and when it is no regular file: reading a pipe may wait for ever, and a
/// device may have no end.
pub fn open(path: &Path) -> Result<File, FileError> {
    let opened = || {
        // Before it is opened: opening a pipe waits, and opening a device may do something.
        if fs::metadata(path)?.is_file() {
            File::open(path)
        } else {
            Err(io::Error::other("it is no regular file"))
        }
    };
    opened().map_err(FileError::reading(path))
}

/// Reads a regular file, or the standard input if the path is `-`.
///
/// ```
/// use arena_plan::files;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("step.csv");
/// files::write(&path, |to| writeln!(to, "id,lower,upper,size"))?;
/// assert_eq!(files::read(&path)?, b"id,lower,upper,size\n");
/// assert!(files::read(folder.path()).is_err()); // a directory
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`open`], and when there are more than [`MAX_FILE_BYTES`] or a read fails.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let bytes = if is_standard(path) {
        within(io::stdin().lock(), MAX_FILE_BYTES)
    } else {
        let file = open(path)?;
        match file.metadata() {
            // Refused before the first byte is read.
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => Err(too_long(MAX_FILE_BYTES)),
            _ => within(file, MAX_FILE_BYTES),
        }
    };
    bytes.map_err(FileError::reading(path))
}

/// All bytes of `from`, if there are not more than `limit_bytes`.
fn within(from: impl Read, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes { Err(too_long(limit_bytes)) } else { Ok(bytes) }
}

fn too_long(limit_bytes: u64) -> io::Error {
    io::Error::other(format!("it has more than {limit_bytes} bytes, the limit"))
}

/// Writes a file whole or not at all.
///
/// - A new file has the mode that the umask gives; a file that is replaced keeps its mode.
/// - A symbolic link stays; the file that it names is written.
/// - A device, a pipe, and whatever lies in `/proc`, such as `/dev/stdout`, is written to and stays what it is. `-` is
///   the standard output. These cannot be written whole or not at all.
///
/// # Errors
///
/// [`FileError`] when `contents` or the system fails. The target is then as it was before; only where a directory
/// cannot be flushed after the rename, the target is new.
pub fn write(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FileError> {
    let written = || match Target::of(path)? {
        Target::Stream(stream) => fill(stream, contents).map(drop),
        Target::File { path, old } => replace(&path, old.as_ref(), contents),
    };
    written().map_err(FileError::writing(path))
}

/// Tries whether [`write()`] could write `bytes` bytes to `path`, and changes nothing: so a program that writes at its
/// end says at its begin that it cannot. A pipe or a device is not opened, as that may wait or do something.
///
/// ```
/// use arena_plan::files;
///
/// let folder = tempfile::tempdir()?;
/// files::check(&folder.path().join("result.json"), 1000)?;
/// assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
/// assert!(files::check(&folder.path().join("missing/result.json"), 1000).is_err());
/// assert!(files::check(folder.path(), 1000).is_err()); // a directory
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`FileError`] with what the system says: no such directory, no permission, a directory, no space.
pub fn check(path: &Path, bytes: u64) -> Result<(), FileError> {
    let check = || match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        _ => match Target::of(path)? {
            Target::Stream(_) => Ok(()),
            Target::File { path, old } => {
                check_replaceable(&path, old.as_ref())?;
                let folder = folder_of(&path);
                remove_leftovers(folder);
                let unfinished = unfinished_file(folder, 0o600)?;
                fill(unfinished.as_file(), |to| {
                    io::copy(&mut io::repeat(0).take(bytes), to).map(drop)
                })?
                .sync_all()
            }
        },
    };
    check().map_err(FileError::writing(path))
}

/// A file that we may not write to is not to be replaced either.
fn check_replaceable(path: &Path, old: Option<&Metadata>) -> io::Result<()> {
    if old.is_some() {
        OpenOptions::new().write(true).open(path)?;
    }
    Ok(())
}

/// Writes to the standard output, to its last byte.
///
/// # Errors
///
/// [`FileError`] when it is closed ([`is_closed_output`](FileError::is_closed_output)) or full. `println!` would panic.
pub fn print(text: &str) -> Result<(), FileError> {
    write(Path::new(STANDARD), |to| to.write_all(text.as_bytes()))
}

/// Writes a line to the standard error, in one piece, for other processes may write there too. If it is closed, the
/// program goes on, where `eprintln!` would panic.
pub fn tell(line: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A text from a file, for an error message: without its middle if it is long.
#[must_use]
pub fn shortened(text: &str) -> Cow<'_, str> {
    const KEPT_BYTES: usize = 100;
    if text.len() <= 3 * KEPT_BYTES {
        return Cow::Borrowed(text);
    }
    let begin = &text[..text.floor_char_boundary(KEPT_BYTES)];
    let end = &text[text.ceil_char_boundary(text.len() - KEPT_BYTES)..];
    let left_out = text.len() - begin.len() - end.len();
    Cow::Owned(format!("{begin} ... ({left_out} bytes) ... {end}"))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == STANDARD
}

/// What a path stands for, when it is written to.
enum Target {
    /// It cannot be replaced, only written to.
    Stream(Box<dyn Write>),
    /// A regular file, or nothing yet.
    File { path: PathBuf, old: Option<Metadata> },
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        if is_standard(path) {
            return Ok(Self::Stream(Box::new(io::stdout())));
        }
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let folder = fs::canonicalize(folder_of(&path))?;
            if folder.starts_with("/proc") {
                return stream_in_proc(&folder, &path).map(Self::Stream);
            }
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => {
                    path = folder_of(&path).join(fs::read_link(&path)?);
                }
                Ok(found) if found.is_file() => return Ok(Self::File { path, old: Some(found) }),
                // Here a directory is refused.
                Ok(_) => {
                    let stream = OpenOptions::new().write(true).open(&path)?;
                    return Ok(Self::Stream(Box::new(stream)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Self::File { path, old: None });
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("too many symbolic links"))
    }
}

/// The directory of a file; `.` for a name alone.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a path in `/proc`. The links in `/proc/self/fd`, where `/dev/stdout` leads, name open files: a file behind
/// one must not be replaced, for who opened it would then write to a file without a name.
fn stream_in_proc(folder: &Path, path: &Path) -> io::Result<Box<dyn Write>> {
    let ours = folder == Path::new(&format!("/proc/{}/fd", process::id()));
    match path.file_name().and_then(OsStr::to_str) {
        // Opened anew, a regular file would be written from its begin, over what we have written so far.
        Some("1") if ours => Ok(Box::new(io::stdout())),
        Some("2") if ours => Ok(Box::new(io::stderr())),
        _ => Ok(Box::new(OpenOptions::new().append(true).open(path)?)),
    }
}

/// Writes the contents through a buffer, to the last byte.
fn fill<W: Write>(to: W, contents: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<W> {
    let mut to = BufWriter::new(to);
    contents(&mut to)?;
    let mut to = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    to.flush()?;
    Ok(to)
}

fn replace(
    path: &Path,
    old: Option<&Metadata>,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    check_replaceable(path, old)?;
    let folder = folder_of(path);
    remove_leftovers(folder);
    // What replaces a private file is private from the start.
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let unfinished = unfinished_file(folder, mode)?;
    let file = fill(unfinished.as_file(), contents)?;
    if let Some(old) = old {
        // Without the bits that let a program run as its owner: the owner may be another one now.
        file.set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
    }
    file.sync_all()?;
    unfinished.persist(path)?;
    // The new name is in the directory.
    File::open(folder)?.sync_all()
}

/// A new temporary file. Its lock tells other programs that it is in use. It is removed when dropped.
fn unfinished_file(folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
    loop {
        let file = Builder::new()
            .prefix(PREFIX)
            .suffix(SUFFIX)
            .rand_bytes(RANDOM_CHARACTERS)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        // A file system without locks refuses this, and then refuses it to those who look for leftovers, too.
        let _ = file.as_file().lock();
        // Between the creation and the lock, another process may have removed it as a leftover.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes temporary files whose writers are gone. What cannot be removed stays: it does no harm.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !regular || !is_our_name(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        // Locked until it is removed: its writer may be just between its creation and its lock.
        let _ = OpenOptions::new().write(true).open(&path).map(|file| {
            if file.try_lock().is_ok() {
                let _ = fs::remove_file(&path);
            }
        });
    }
}

fn is_our_name(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM_CHARACTERS
            && random.bytes().all(|character| character.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_as_the_limit_are_read_and_not_one_more() {
        assert_eq!(within(&b"12345"[..], 5).unwrap(), b"12345");
        let refused = within(&b"12345"[..], 4).unwrap_err();
        assert_eq!(refused.to_string(), "it has more than 4 bytes, the limit");
        assert!(within(io::repeat(0), 1000).is_err(), "an input without an end");
    }
}
