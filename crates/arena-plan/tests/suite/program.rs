//! The program: its last line, its exit status, its files.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use arena_plan::{Options, PlannedRun};
use arena_scope::{Host, StepKey};
use rstest::rstest;
use tempfile::TempDir;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_arena-plan"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or("").to_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder_with(name: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), text).unwrap();
    folder
}

const STEP: &str = "id,lower,upper,size\na,0,4,100\nb,2,6,50\nc,4,8,90\n";

#[test]
fn a_solution_is_written_checked_and_reported_in_one_line() {
    let folder = folder_with("step.csv", STEP);
    for out in ["solution.csv", "solution.json"] {
        let solved = run(folder.path(), &["solve", "step.csv", "--out", out]);
        assert_eq!(solved.status.code(), Some(0), "{}", errors(&solved));
        let line = last_line(&solved);
        assert!(line.starts_with("peak=150 bound=150 buffers=3 seconds="), "{line}");
        assert!(line.ends_with(" optimal=yes"), "{line}");
        let checked = run(folder.path(), &["check", out]);
        assert_eq!(checked.status.code(), Some(0), "{}", errors(&checked));
        assert!(last_line(&checked).starts_with("peak=150 bound=150 buffers=3 seconds="));
    }
}

#[test]
fn the_exit_status_says_whether_the_capacity_was_kept() {
    let folder = folder_with("step.csv", STEP);
    let status =
        |capacity| run(folder.path(), &["solve", "step.csv", "--capacity", capacity]).status.code();
    assert_eq!(status("150"), Some(0));
    assert_eq!(status("149"), Some(1));
}

#[test]
fn bad_input_is_named_with_file_line_and_column() {
    let folder = folder_with("step.csv", "id,lower,upper,size\na,0,4,100\nb,2,x,50\n");
    for command in ["solve", "bound"] {
        let output = run(folder.path(), &[command, "step.csv"]);
        assert_eq!(output.status.code(), Some(2));
        let said = errors(&output);
        assert!(said.contains("step.csv:3:5: \"x\" is not a whole number"), "{said}");
    }
    for arguments in [&["solve", "nowhere.csv"][..], &["check", "step.csv"], &["solve"]] {
        assert_eq!(run(folder.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
    let endless = run(folder.path(), &["solve", "step.csv", "--seconds=-1"]);
    assert_eq!(endless.status.code(), Some(2));
}

#[test]
fn an_overlapping_solution_is_found_out() {
    let text = "id,lower,upper,size,offset\na,0,4,100,0\nb,2,6,50,99\n";
    let folder = folder_with("wrong.csv", text);
    let output = run(folder.path(), &["check", "wrong.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("buffers 0 and 1 share bytes"), "{}", errors(&output));
}

#[test]
fn one_step_of_a_trace_is_picked() {
    let trace = "op,id,size_bytes,stream,step\n\
                 alloc,1,8,0,0\nmark,0,0,0,0\nalloc,2,30,0,1\nfree,2,30,0,1\nalloc,3,40,0,1\n";
    let folder = folder_with("trace.csv", trace);
    let bound = run(folder.path(), &["bound", "trace.csv", "--step", "1"]);
    assert!(last_line(&bound).starts_with("bound=40 "), "{}", last_line(&bound));
    let whole = run(folder.path(), &["bound", "trace.csv"]);
    assert!(last_line(&whole).starts_with("bound=48 "), "{}", last_line(&whole));
    let solved = run(folder.path(), &["solve", "trace.csv", "--step", "1"]);
    assert!(last_line(&solved).starts_with("peak=40 bound=40 buffers=2 "));
}

#[test]
fn equal_seeds_write_equal_files() {
    let folder = folder_with("step.csv", STEP);
    for out in ["one.csv", "two.csv"] {
        run(folder.path(), &["solve", "step.csv", "--seed", "5", "--out", out]);
    }
    let read = |name| fs::read(folder.path().join(name)).unwrap();
    assert_eq!(read("one.csv"), read("two.csv"));
}

#[test]
fn a_plan_of_a_run_s_file_is_checked_and_drawn_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let run_file = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
        for (name, variant, bytes) in [("train", 2, 512), ("train", 1, 256), ("evaluate", 0, 768)] {
            let key = StepKey::named(name).variant(variant);
            arena.scope_with(key, |step| step.alloc::<u8>(bytes).map(drop))?;
        }
        arena_scope::Ok(())
    });
    run_file.unwrap().save(&folder.path().join("run.json")).unwrap();
    for (key, peak) in [("train:2", 512), ("train:1", 256), ("evaluate", 768), ("evaluate:0", 768)]
    {
        let checked = run(folder.path(), &["check", "run.json", "--key", key]);
        let told = last_line(&checked);
        assert!(told.starts_with(&format!("peak={peak} ")), "{key}: {told}{}", errors(&checked));
    }
    let drawn = run(folder.path(), &["draw", "run.json", "--key", "train:1"]);
    assert!(drawn.stdout.starts_with(b"<svg "));
    for arguments in [&["check", "run.json"][..], &["draw", "run.json", "--key", "train"]] {
        let refused = run(folder.path(), arguments);
        assert_eq!(refused.status.code(), Some(2));
        let told = errors(&refused);
        assert!(told.contains("--key: train:2, train:1, evaluate:0"), "{told}");
    }
}

#[test]
fn a_step_and_its_plan_are_drawn_alike() {
    let folder = folder_with("step.csv", STEP);
    run(folder.path(), &["solve", "step.csv", "--out", "step.json"]);
    let drawn = run(folder.path(), &["draw", "step.csv"]);
    assert_eq!(drawn.status.code(), Some(0), "{}", errors(&drawn));
    let written = run(folder.path(), &["draw", "step.json", "--out", "step.svg"]);
    assert_eq!(written.status.code(), Some(0), "{}", errors(&written));
    let svg = fs::read(folder.path().join("step.svg")).unwrap();
    assert!(svg.starts_with(b"<svg ") && svg == drawn.stdout);
    assert_eq!(run(folder.path(), &["draw", "nowhere.csv"]).status.code(), Some(2));
}

/// Where every write fails, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// Runs the program with this on its standard input, after the reader of its output has gone if that `is_closed`.
fn fed(folder: &Path, arguments: &[&str], input: &str, is_closed: bool) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_arena-plan"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if is_closed {
        drop(child.stdout.take());
    }
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[rstest]
#[case::solve(&["solve", "-"])]
#[case::check(&["check", "-"])]
#[case::bound(&["bound", "-"])]
#[case::draw(&["draw", "-"])]
fn an_output_that_nobody_reads_ends_the_program_quietly(#[case] arguments: &[&str]) {
    let solution = "id,lower,upper,size,offset\na,0,4,100,0\nb,2,6,50,100\n";
    let folder = folder_with("step.csv", solution);
    let closed = fed(folder.path(), arguments, solution, true);
    assert_eq!((closed.status.code(), errors(&closed).as_str()), (Some(1), ""));

    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-plan"));
    let step = arguments.iter().map(|argument| argument.replace('-', "step.csv"));
    let output = command.args(step).current_dir(folder.path()).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = errors(&output);
    assert!(told.starts_with("arena-plan: cannot write to the standard output: "), "{told}");
}

#[rstest]
#[case::solution(&["solve", "-", "--out", "out.csv"], "id,lower,upper,size,offset\n")]
#[case::plan(&["solve", "-", "--out", "out.json"], "{\"format\":\"arena-plan\"")]
#[case::picture(&["draw", "-", "--out", "out.svg"], "<svg ")]
fn a_file_is_there_though_nobody_reads_the_output(#[case] arguments: &[&str], #[case] begin: &str) {
    let folder = tempfile::tempdir().unwrap();
    fed(folder.path(), arguments, STEP, true);
    let text = fs::read_to_string(folder.path().join(arguments[3])).unwrap();
    assert!(text.starts_with(begin) && text.ends_with('\n'), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn messages_that_nobody_reads_do_not_change_the_status() {
    let folder = folder_with("wrong.csv", "id,lower,upper,size,offset\na,0,4,9,0\nb,2,6,9,8\n");
    for (arguments, status) in [(["check", "wrong.csv"], 1), (["bound", "nowhere.csv"], 2)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_arena-plan"));
        command.args(arguments).current_dir(folder.path()).stderr(full());
        assert_eq!(command.status().unwrap().code(), Some(status), "{arguments:?}");
    }
}

#[test]
fn the_standard_input_is_a_step_or_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let solved = fed(folder.path(), &["solve", "-", "--out", "plan.json"], STEP, false);
    assert_eq!(solved.status.code(), Some(0), "{}", errors(&solved));
    let plan = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    let checked = fed(folder.path(), &["check", "-"], &plan, false);
    assert!(last_line(&checked).starts_with("peak=150 "), "{}", errors(&checked));
    let refused = fed(folder.path(), &["bound", "-"], "id,lower\n", false);
    assert!(errors(&refused).contains("-:1:1: the header has no column"), "{}", errors(&refused));
}

/// After a regular file, which the shell has opened, has taken the place of a terminal.
#[test]
fn the_standard_output_as_a_file_gets_the_plan_and_then_the_report() {
    for out in ["-", "/dev/stdout"] {
        let folder = folder_with("step.csv", STEP);
        let all = File::create(folder.path().join("all")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_arena-plan"));
        command.args(["solve", "step.csv", "--out", out]).current_dir(folder.path()).stdout(all);
        assert!(command.status().unwrap().success());
        let text = fs::read_to_string(folder.path().join("all")).unwrap();
        assert!(text.starts_with("id,lower,upper,size,offset\na,0,4,100,"), "{out}: {text}");
        assert!(text.contains("\nsum=240 ") && text.ends_with("optimal=yes\n"), "{out}: {text}");
    }
}

#[rstest]
#[case("022", 0o644)]
#[case("027", 0o640)]
#[case("077", 0o600)]
#[case("002", 0o664)]
fn a_new_file_has_the_mode_that_the_umask_gives(#[case] umask: &str, #[case] mode: u32) {
    let folder = folder_with("step.csv", STEP);
    let script = format!("umask {umask} && exec \"$0\" solve step.csv --out out.json");
    let program = env!("CARGO_BIN_EXE_arena-plan");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, program]).current_dir(folder.path()).stdout(Stdio::null());
    assert!(shell.status().unwrap().success());
    let found = fs::metadata(folder.path().join("out.json")).unwrap().mode();
    assert_eq!(found & 0o7777, mode, "{:o}", found & 0o7777);
}

/// The program as a user whom modes forbid something: they forbid the superuser nothing. Another user may not see
/// where the program lies, so the folder gets a copy of it.
fn as_an_ordinary_user(folder: &Path, arguments: &[&str]) -> Command {
    let program = folder.join("program");
    // By a process of its own: a file that this one has open for writing, and thus each process that another test
    // starts just now, cannot be run.
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_arena-plan").as_ref(), program.as_os_str()])
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    if fs::metadata(folder).unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    command
}

/// Not as the superuser: if the program were wrong, the machine would lose the device.
#[rstest]
#[case("/dev/null", 0)]
#[case("/dev/full", 1)]
fn a_device_is_written_to_and_stays(#[case] device: &str, #[case] status: i32) {
    let folder = folder_with("step.csv", STEP);
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = as_an_ordinary_user(folder.path(), &["solve", "step.csv", "--out", device]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{}", errors(&output));
    let full = format!("arena-plan: cannot write {device}: No space left on device");
    assert_eq!(errors(&output).starts_with(&full), status == 1, "{}", errors(&output));
    assert!(fs::metadata(device).unwrap().file_type().is_char_device());
}

#[rstest]
#[case::of_a_directory(0o555, 0o666)]
#[case::of_a_file(0o777, 0o444)]
fn a_mode_that_forbids_writing_is_obeyed(#[case] folder_mode: u32, #[case] file_mode: u32) {
    let folder = folder_with("step.csv", STEP);
    let at = |name: &str| folder.path().join(name);
    fs::write(at("out.json"), "old").unwrap();
    let arguments = ["solve", "step.csv", "--out", "out.json"];
    let mut command = as_an_ordinary_user(folder.path(), &arguments);
    let mode = |name: &str, mode| {
        fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
    };
    mode("step.csv", 0o644);
    mode("out.json", file_mode);
    mode("", folder_mode);
    let output = command.output().unwrap();
    mode("", 0o777);
    assert_eq!(output.status.code(), Some(1));
    let told = errors(&output);
    assert!(told.starts_with("arena-plan: cannot write out.json: Permission denied"), "{told}");
    assert_eq!(fs::read_to_string(at("out.json")).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// `LONG` stands for a megabyte.
#[rstest]
#[case::unknown_column("bound", "id,lower,upper,LONG\n")]
#[case::number("bound", "id,lower,upper,size\na,0,1,LONG\n")]
#[case::double_id("bound", "id,lower,upper,size\nLONG,0,1,2\nLONG,0,1,2\n")]
#[case::unknown_op("bound", "op,id,size_bytes,stream,step\nLONG,1,2,0,0\n")]
#[case::allocated_twice(
    "bound",
    "op,id,size_bytes,stream,step\nalloc,LONG,2,0,0\nalloc,LONG,2,0,0\n"
)]
#[case::not_allocated("bound", "op,id,size_bytes,stream,step\nfree,LONG,2,0,0\n")]
#[case::field_of_a_plan("check", "{\"LONG\":1}")]
#[case::text_for_a_number("check", "{\"version\":\"LONG\"}")]
#[case::format_of_a_plan("check", r#"{"format":"LONG","version":1,"signature":"","alignment_bytes":1,"peak_bytes":0,"bound_bytes":0,"requested_bytes":0,"buffers":[]}"#)]
#[case::signature_of_a_plan("check", r#"{"format":"arena-plan","version":1,"signature":"LONG","alignment_bytes":1,"peak_bytes":0,"bound_bytes":0,"requested_bytes":0,"buffers":[]}"#)]
fn a_message_quotes_little_of_a_file(#[case] command: &str, #[case] text: &str) {
    let folder = folder_with("input", &text.replace("LONG", &"x".repeat(1 << 20)));
    let output = run(folder.path(), &[command, "input"]);
    assert_eq!(output.status.code(), Some(2));
    let told = errors(&output);
    assert!(told.contains("xxx ... (") && told.len() < 700, "{}", &told[..told.len().min(2000)]);
}
