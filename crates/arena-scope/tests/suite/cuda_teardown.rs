//! Arenas that are alive when the program ends, however it ends. Each case is a program of its own:
//! this one, run again for one test.

use crate::cuda;

use std::cell::RefCell;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;

use arena_scope::{Arena, Cuda, Error};
use cuda_standin::Standin;
use rstest::rstest;

const CASE: &str = "TEARDOWN_CASE";

static IN_A_STATIC: Mutex<Option<Arena<Cuda>>> = Mutex::new(None);

thread_local! {
    static IN_A_THREAD: RefCell<Option<Arena<Cuda>>> = const { RefCell::new(None) };
}

fn used_arena() -> Arena<Cuda> {
    let mut arena = cuda::arena();
    let side = cuda::side_stream(&arena);
    arena
        .scope(|step| {
            let x = step.upload(&[1.0_f32; 4])?;
            x.declare_stream(&side)
        })
        .unwrap();
    arena
}

/// What a child does.
#[test]
#[ignore = "it is the child of the test below"]
fn child() {
    let case = std::env::var(CASE).unwrap();
    // The stand-in is never dropped: a real driver is there until the end as well.
    std::mem::forget(Standin::load().unwrap());
    match case.as_str() {
        "static" => *IN_A_STATIC.lock().unwrap() = Some(used_arena()),
        "thread" => {
            std::thread::spawn(|| IN_A_THREAD.set(Some(used_arena()))).join().unwrap();
            IN_A_THREAD.set(Some(used_arena()));
        }
        "exit in a scope" => {
            let mut arena = used_arena();
            let _ = arena.scope(|step| {
                let _x = step.alloc::<f32>(4)?;
                std::process::exit(7);
                #[expect(unreachable_code, reason = "it gives the closure its type")]
                arena_scope::Ok(())
            });
        }
        "panic in a scope" => {
            let mut arena = used_arena();
            let _ = arena.scope(|step| -> Result<(), Error> {
                let _x = step.alloc::<f32>(4)?;
                panic!("on purpose");
            });
        }
        other => panic!("no case `{other}`"),
    }
}

fn run(case: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command
        .args(["--exact", "cuda_teardown::child", "--ignored", "--test-threads=1"])
        .env(CASE, case);
    command.output().unwrap().status
}

// B067
#[rstest]
#[case("static", 0)]
#[case("thread", 0)]
#[case("exit in a scope", 7)]
#[case::what_the_test_harness_makes_of_a_panic("panic in a scope", 101)]
fn the_program_ends_as_it_wants_to(#[case] case: &str, #[case] code: i32) {
    assert_eq!(run(case).code(), Some(code), "no signal, and its own code");
}
