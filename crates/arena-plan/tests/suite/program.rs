//! The program: its last line, its exit status, its files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
