//! Files are written whole or not at all, and read within a limit.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, exit};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, thread};

use arena_plan::files::{self, FileError, MAX_FILE_BYTES, shortened};
use rstest::rstest;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(folder).unwrap().map(name).collect()
}

fn put(path: &Path, text: &str) -> Result<(), FileError> {
    files::write(path, |to| to.write_all(text.as_bytes()))
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// More than a buffer holds, so that it is written before the writer fails.
static LONG: [u8; 1 << 16] = [b'x'; 1 << 16];

#[rstest]
fn what_is_written_is_read_and_the_old_mode_is_kept(
    #[values(0o600, 0o640, 0o666, 0o755, 0o777)] mode: u32,
) {
    let folder = folder();
    let path = folder.path().join("plan.json");
    put(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    put(&path, "new").unwrap();
    assert_eq!(files::read(&path).unwrap(), b"new");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
    assert_eq!(names(folder.path()).len(), 1);
}

#[rstest]
#[case::an_error(|| Err(io::Error::other("on purpose")))]
#[case::a_panic(|| panic!("on purpose"))]
fn a_writer_that_fails_leaves_everything_as_it_was(
    #[case] fail: fn() -> io::Result<()>,
    #[values(true, false)] is_there: bool,
) {
    let folder = folder();
    let path = folder.path().join("plan.json");
    if is_there {
        put(&path, "old").unwrap();
    }
    let before = names(folder.path());
    let write = || {
        files::write(&path, |to| {
            to.write_all(&LONG)?;
            fail()
        })
    };
    let written = catch_unwind(AssertUnwindSafe(write));
    assert!(!matches!(written, Ok(Ok(()))));
    assert_eq!(names(folder.path()), before);
    assert!(!is_there || text_of(&path) == "old");
}

#[rstest]
#[case::no_directory("none/plan.json")]
#[case::a_directory("")]
#[case::below_a_file("file/plan.json")]
#[case::a_link_to_itself("round")]
fn what_cannot_be_written_is_an_error_that_names_it(#[case] name: &str) {
    let folder = folder();
    put(&folder.path().join("file"), "old").unwrap();
    symlink("round", folder.path().join("round")).unwrap();
    let before = names(folder.path());
    let path = folder.path().join(name);
    let told = put(&path, "new").unwrap_err().to_string();
    assert!(told.starts_with(&format!("cannot write {}: ", path.display())), "{told}");
    assert_eq!(names(folder.path()), before);
}

#[rstest]
#[case::beside("plan.json", true)]
#[case::elsewhere("below/plan.json", true)]
#[case::not_there_yet("below/plan.json", false)]
fn a_link_stays_and_what_it_names_is_written(#[case] names: &str, #[case] is_there: bool) {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("below")).unwrap();
    if is_there {
        put(&at(names), "old").unwrap();
    }
    symlink(names, at("second")).unwrap();
    symlink("second", at("first")).unwrap();
    put(&at("first"), "new").unwrap();
    for link in ["first", "second"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
    }
    assert_eq!(text_of(&at(names)), "new");
    assert!(fs::symlink_metadata(at(names)).unwrap().is_file());
}

#[test]
fn a_check_says_what_a_write_would_say_and_changes_nothing() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    put(&at("old"), "old").unwrap();
    fs::create_dir(at("below")).unwrap();
    symlink("missing/file", at("dangling")).unwrap();
    symlink("old", at("link")).unwrap();
    make_pipe(&at("pipe"));
    let before = names(folder.path());
    for name in ["old", "new", "link", "-", "/dev/null", "/dev/stdout"] {
        let path = if name == "-" { name.into() } else { at(name) };
        files::check(&path, 1 << 20).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // Whoever opens it waits for a reader, who would see its end.
    files::check(&at("pipe"), 1).unwrap();
    for name in ["below", "missing/file", "dangling", "old/file", "/sys/file", "/proc/missing"] {
        let path = at(name);
        let told = files::check(&path, 1).unwrap_err().to_string();
        // The name of a temporary file is another one each time.
        let reason = |told: &str| told.split(" at path ").next().map(str::to_owned);
        assert_eq!(reason(&told), reason(&put(&path, "x").unwrap_err().to_string()));
        assert!(told.starts_with("cannot write ") && told.contains(name), "{told}");
    }
    assert_eq!((names(folder.path()), text_of(&at("old"))), (before, "old".to_owned()));
}

#[test]
fn a_pipe_is_written_to_and_stays() {
    let folder = folder();
    let path = folder.path().join("pipe");
    make_pipe(&path);
    thread::scope(|threads| {
        let read = threads.spawn(|| fs::read(&path).unwrap());
        put(&path, "new").unwrap();
        assert_eq!(read.join().unwrap(), b"new");
    });
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
    assert_eq!(names(folder.path()).len(), 1);
}

/// Behind such a link is an open file, which its owner goes on to write to.
#[test]
fn an_open_file_of_this_process_is_written_to_and_not_replaced() {
    let folder = folder();
    let path = folder.path().join("log");
    let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    log.write_all(b"one ").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&log);
    put(Path::new(&format!("/dev/fd/{number}")), "two ").unwrap();
    log.write_all(b"three").unwrap();
    assert_eq!(text_of(&path), "one two three");
}

const KILLED_IN: &str = "ARENA_TEST_KILLED_IN";

#[test]
#[ignore = "run by the next test"]
fn dies_while_it_writes() {
    let Some(folder) = env::var_os(KILLED_IN) else { return };
    let written = files::write(&Path::new(&folder).join("plan.json"), |to| {
        to.write_all(&LONG)?;
        // Without running destructors, as a kill does.
        exit(1)
    });
    unreachable!("{written:?}");
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_one_and_nothing_else_is() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    put(&at("plan.json"), "old").unwrap();
    for name in [".arena-.unfinished", ".arena-x.unfinished", ".arena-twelve_chars.unfinished"] {
        fs::write(at(name), "another's").unwrap();
    }
    // Our name, but no file.
    fs::create_dir(at(".arena-abcdefghijkl.unfinished")).unwrap();
    symlink("plan.json", at(".arena-ABCDEFGHIJKL.unfinished")).unwrap();
    let before = names(folder.path());

    let killed = Command::new(env::current_exe().unwrap())
        .args(["files::dies_while_it_writes", "--exact", "--ignored"])
        .env(KILLED_IN, folder.path())
        .output()
        .unwrap();
    assert!(!killed.status.success());
    let after = names(folder.path());
    assert_eq!(after.difference(&before).count(), 1, "the killed run left a file: {after:?}");
    assert_eq!(text_of(&at("plan.json")), "old");

    put(&at("other.json"), "new").unwrap();
    fs::remove_file(at("other.json")).unwrap();
    assert_eq!(names(folder.path()), before);
}

#[test]
fn what_a_live_run_writes_is_not_taken_for_a_leftover() {
    let folder = folder();
    let (outer, inner) = (folder.path().join("outer"), folder.path().join("inner"));
    files::write(&outer, |to| {
        put(&inner, "inner").map_err(|error| error.reason)?;
        to.write_all(b"outer")
    })
    .unwrap();
    assert_eq!((text_of(&outer).as_str(), text_of(&inner).as_str()), ("outer", "inner"));
}

#[test]
fn whoever_reads_while_two_write_sees_one_of_their_files_whole() {
    let folder = folder();
    let path = folder.path().join("plan.json");
    put(&path, &"a".repeat(1000)).unwrap();
    thread::scope(|threads| {
        for letter in ["a", "b"] {
            let path = &path;
            threads.spawn(move || (0..20).for_each(|_| put(path, &letter.repeat(1000)).unwrap()));
        }
        for _ in 0..200 {
            let text = text_of(&path);
            assert!(["a", "b"].map(|letter| letter.repeat(1000)).contains(&text), "{text}");
        }
    });
    assert_eq!(names(folder.path()).len(), 1);
}

#[rstest]
#[case::a_directory("")]
#[case::a_pipe("pipe")]
#[case::a_link_to_a_device("zero")]
#[case::more_than_the_limit("endless")]
#[case::nothing("nowhere")]
fn what_is_no_file_within_the_limit_is_not_read(#[case] name: &str) {
    let folder = folder();
    make_pipe(&folder.path().join("pipe"));
    symlink("/dev/zero", folder.path().join("zero")).unwrap();
    fs::File::create(folder.path().join("endless")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let path = folder.path().join(name);
    let (to, answer) = mpsc::channel();
    let asked = path.clone();
    // A read that waits for ever would keep the test waiting.
    thread::spawn(move || to.send(files::read(&asked)));
    let told = answer.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err().to_string();
    assert!(told.starts_with(&format!("cannot read {}: ", path.display())), "{told}");
}

#[test]
fn a_long_text_is_shortened_between_characters_and_a_short_one_is_not() {
    assert_eq!(shortened("1.5"), "1.5");
    let edge = "ä".repeat(150);
    assert_eq!(shortened(&edge), edge);
    for begin in ["", "x"] {
        let long = format!("{begin}{} at line 3", "ä".repeat(1 << 20));
        let short = shortened(&long);
        assert!(short.len() < 300 && short.starts_with(begin), "{short}");
        assert!(short.ends_with("ä at line 3"), "{short}");
    }
}
