//! `arena-train --device cuda` from outside: without a device, without a library, and on the
//! stand-in driver.

use std::process::{Command, Output};

use arena_scope::Cuda;
use arena_testing::{alone, skip};
use rstest::rstest;

fn program() -> Command {
    program_on("cuda")
}

fn program_on(device: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    command.args(["--device", device]);
    command
}

/// The one line of an exit with 2, or a panic.
#[track_caller]
fn one_line(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert_eq!((told.lines().count(), output.stdout.len()), (1, 0), "{told}");
    told
}

#[test]
fn without_a_device_the_program_says_so_in_one_line_and_exits_with_2() {
    // The other tests load the stand-in.
    alone(|| {
        let Err(reason) = Cuda::new(0) else {
            return skip("there is a CUDA device");
        };
        // Told before the data is looked for.
        let told = one_line(&program().args(["--data", "no/such/folder"]).output().unwrap());
        assert_eq!(told.trim_end(), format!("arena-train: {reason}"));
        let because =
            if cfg!(feature = "_cuda") { "no CUDA driver" } else { "without the feature" };
        assert!(told.contains(because), "{told}");
    });
}

/// Told before the device or the data is looked for.
#[test]
fn options_that_run_ahead_of_the_device_are_refused_elsewhere() {
    for (arguments, option) in [
        (["--device", "host", "--graph"].as_slice(), "--graph"),
        (&["--device", "host", "--loss-every", "2"], "--loss-every"),
        (&["--device", "probe", "--graph"], "--graph"),
        (&["--device", "cuda", "--per", "epoch", "--loss-every", "2"], "--loss-every"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
        let told = one_line(&command.args(arguments).output().unwrap());
        let expected = format!("arena-train: {option} needs --device cuda and --per minibatch\n");
        assert_eq!(told, expected);
    }
}

#[test]
fn ranges_are_refused_on_another_device() {
    for device in ["host", "probe"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
        let told = one_line(&command.args(["--device", device, "--ranges"]).output().unwrap());
        assert_eq!(told, "arena-train: --ranges needs --device cuda\n");
    }
}

#[rstest]
#[case::nothing("cuda:")]
#[case::no_number("cuda:x")]
#[case::below_zero("cuda:-1")]
#[case::another("gpu")]
fn a_name_that_is_no_device_s_is_refused_with_those_that_are(#[case] name: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    let output = command.args(["--device", name]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains(name) && told.contains("host, cuda, cuda:N and probe"), "{told}");
}

#[cfg(feature = "_cuda")]
mod on_the_standin {
    use std::fs;
    use std::path::{Path, PathBuf};
    #[cfg(feature = "nccl")]
    use std::process::Stdio;
    #[cfg(feature = "nccl")]
    use std::thread;
    #[cfg(feature = "nccl")]
    use std::time::{Duration, Instant};

    #[cfg(feature = "nccl")]
    use crate::common::{checkpoint, two_more_steps};

    use super::*;

    /// The program with the stand-in's libraries in the place of the driver and of cuBLAS.
    fn on_the_standin() -> Command {
        in_the_drivers_place(program())
    }

    fn in_the_drivers_place(mut command: Command) -> Command {
        let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let libraries = ["libcuda_standin.so", "libcublas_standin.so"].map(|name| deps.join(name));
        let [driver, cublas] = libraries.map(|path| path.to_str().unwrap().to_owned());
        command.env("LD_PRELOAD", format!("{driver}:{cublas}"));
        command
    }

    #[test]
    fn a_device_that_is_not_there_is_named_in_one_line_with_exit_2() {
        let told = one_line(&in_the_drivers_place(program_on("cuda:1")).output().unwrap());
        let why = "there is no such device: they are numbered 0 to 0";
        assert!(told.contains("cuda:1") && told.contains(why), "{told}");
    }

    /// A folder with so few images that the stand-in can train on them.
    fn few_images() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let number = |value: u32| value.to_be_bytes();
        for (name, count) in [("train", 10_u32), ("t10k", 3)] {
            let header = [number(0x803), number(count), number(28), number(28)].concat();
            let pixels = (0..count * 784).map(|i| (i * 31 % 256) as u8);
            let images: Vec<u8> = header.into_iter().chain(pixels).collect();
            let header = [number(0x801), number(count)].concat();
            let labels: Vec<u8> = header.into_iter().chain((0..count).map(|i| i as u8)).collect();
            let path = |kind: &str| folder.path().join(format!("{name}-{kind}-ubyte"));
            fs::write(path("images-idx3"), images).unwrap();
            fs::write(path("labels-idx1"), labels).unwrap();
        }
        folder
    }

    /// The folder of NVRTC's library in the workspace's `.venv`.
    fn nvrtc_folder() -> Option<PathBuf> {
        let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
        let pythons = fs::read_dir(lib).ok()?;
        let inside = "site-packages/nvidia/cuda_nvrtc/lib";
        pythons.filter_map(Result::ok).map(|entry| entry.path().join(inside)).find(|p| p.is_dir())
    }

    #[test]
    fn the_program_trains_on_the_device_and_prints_its_summary() {
        let Some(nvrtc) = nvrtc_folder() else {
            return skip("NVRTC is not in .venv; scripts/kernels.sh installs it");
        };
        let data = few_images();
        let run = |command: &mut Command| {
            let output = command
                .args(["--epochs", "1", "--batch", "4", "--data"])
                .arg(data.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let printed = run(on_the_standin().env("LD_LIBRARY_PATH", nvrtc));
        for line in [
            "driver allocations 1, after step 1: 0",
            "used               at the mark after every step",
        ] {
            assert!(printed.contains(line), "`{line}` is missing in:\n{printed}");
        }
        let host = run(Command::new(env!("CARGO_BIN_EXE_arena-train")).args(["--threads", "2"]));
        let loss = |printed: &str| -> f64 {
            let line = printed.lines().find(|line| line.starts_with("final loss")).unwrap();
            line.split_whitespace().nth(2).unwrap().parse().unwrap()
        };
        let (found, expected) = (loss(&printed), loss(&host));
        assert!((found - expected).abs() <= 1e-4 * expected, "{found} instead of {expected}");
    }

    #[test]
    fn the_program_replays_its_steps_and_says_how_often() {
        let Some(nvrtc) = nvrtc_folder() else {
            return skip("NVRTC is not in .venv; scripts/kernels.sh installs it");
        };
        let data = few_images();
        let run = |arguments: &[&str]| {
            let mut command = on_the_standin();
            command.env("LD_LIBRARY_PATH", &nvrtc).arg("--data").arg(data.path());
            let output =
                command.args(["--epochs", "2", "--batch", "3"]).args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let line = |printed: &str, name: &str| {
            printed.lines().find(|line| line.starts_with(name)).map(str::to_owned)
        };
        let events = data.path().join("events.jsonl");
        let told = ["--events", events.to_str().unwrap()];
        let losses = || -> Vec<(u64, String)> {
            let text = fs::read_to_string(&events).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let results = lines.filter(|line: &serde_json::Value| line["op"] == "result");
            results.map(|line| (line["step"].as_u64().unwrap(), line["loss"].to_string())).collect()
        };
        let plain = run(&told);
        let plain_losses = losses();
        assert_eq!(plain_losses.len(), 8);
        assert_eq!(line(&plain, "graph"), None);
        for plan in [[].as_slice(), &["--plan"]] {
            let replayed = run(&[&["--graph", "--loss-every", "3"], &told[..], plan].concat());
            assert_eq!(losses(), plain_losses, "read behind, and told with their own steps");
            assert_eq!(line(&replayed, "final loss"), line(&plain, "final loss"), "{plan:?}");
            assert_eq!(line(&replayed, "accuracy"), line(&plain, "accuracy"), "{plan:?}");
            // Steps 3 and 5 to 7 of eight; the fourth and the eighth are short.
            assert_eq!(line(&replayed, "graph").unwrap(), "graph              replayed 4 times");
        }
    }

    /// The program on the stand-ins, NCCL's among them; `None` where NVRTC is not installed.
    #[cfg(feature = "nccl")]
    fn with_nccl(data: &Path) -> Option<Command> {
        let Some(nvrtc) = nvrtc_folder() else {
            skip("NVRTC is not in .venv; scripts/kernels.sh installs it");
            return None;
        };
        let mut command = on_the_standin();
        let libraries = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        let mut libraries = libraries.unwrap().1.unwrap().to_owned();
        libraries.push(":");
        libraries.push(std::env::current_exe().unwrap().with_file_name("libnccl_standin.so"));
        command.env("LD_PRELOAD", libraries).env("LD_LIBRARY_PATH", nvrtc);
        command.arg("--data").arg(data);
        Some(command)
    }

    /// Ranks are processes, with NCCL's stand-in between them: its sums are in the order of the ranks.
    #[cfg(feature = "nccl")]
    #[test]
    fn ranks_on_nccl_have_the_bits_of_one_process_that_accumulates_their_parts() {
        let data = few_images();
        let run = |arguments: &[&str], name: &str| -> Option<(Vec<u8>, serde_json::Value)> {
            let (saved, json) = (data.path().join(name), data.path().join(format!("{name}.json")));
            let mut command = with_nccl(data.path())?;
            command.args(["--epochs", "2", "--rank-timeout", "60"]).args(arguments);
            command.arg("--checkpoint").arg(&saved).arg("--json").arg(&json);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let json = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
            Some((checkpoint(&saved).1, json))
        };
        // The last step of an epoch has two images, all of which are the first rank's.
        let Some((found, json)) = run(&["--ranks", "2", "--batch", "4"], "ranks") else { return };
        let (expected, alone) = run(&["--batch", "2", "--accumulate", "2"], "alone").unwrap();
        assert_eq!(json["final_loss"], alone["final_loss"]);
        assert!(found == expected, "the same bits");
        for figure in ["host_allocations_per_step", "driver_allocations_after_first_step"] {
            assert_eq!(json[figure], alone[figure], "{figure}");
        }
    }

    #[cfg(feature = "nccl")]
    #[test]
    fn ranks_on_nccl_are_all_told_of_one_that_is_not_ready() {
        let data = few_images();
        let Some(mut command) = with_nccl(data.path()) else { return };
        command.args(["--ranks", "2", "--batch", "4", "--capacity", "1MiB"]);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let cause = "arena-train: rank 0: a capacity of 1048576 bytes is too small";
        assert_eq!(told.matches(cause).count(), 2, "{told}");
    }

    /// A signal to the first process, which is passed on, and to a rank: how the run ends, and what it says.
    #[cfg(feature = "nccl")]
    #[rstest]
    #[case::asked_to_stop("-TERM", None, 143, "")]
    #[case::one_is_asked_to_stop("-TERM", Some(1), 143, "")]
    #[case::one_is_killed("-KILL", Some(1), 137, "rank 1 was ended by signal 9")]
    #[case::one_hangs("-STOP", Some(1), 1, "rank 0 of 2 waited")]
    fn ranks_on_nccl_end_together(
        #[case] signal: &str,
        #[case] rank: Option<u32>,
        #[case] code: i32,
        #[case] says: &str,
    ) {
        let data = few_images();
        let saved = data.path().join("saved");
        let Some(mut command) = with_nccl(data.path()) else { return };
        command.args(["--ranks", "2", "--batch", "4", "--epochs", "100000"]);
        command
            .args(["--rank-timeout", "12", "--checkpoint-every", "1", "--checkpoint"])
            .arg(&saved);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let begin = Instant::now();
        let mut child = command.spawn().unwrap();
        while !saved.exists() {
            assert!(begin.elapsed() < LIMIT && child.try_wait().unwrap().is_none());
            thread::sleep(Duration::from_millis(5));
        }
        let pid = rank.map_or(child.id(), |rank| child_of(child.id(), rank));
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < LIMIT, "it hangs");
            thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(says), "{told}");
        // The last checkpoint is whole.
        let mut resumed = with_nccl(data.path()).unwrap();
        resumed.args(["--ranks", "2", "--batch", "4", "--epochs", "100000"]);
        resumed.args(["--steps", &two_more_steps(&saved)]);
        let output = resumed.arg("--resume").arg(&saved).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// No test waits longer for processes.
    #[cfg(feature = "nccl")]
    const LIMIT: Duration = Duration::from_secs(120);

    #[cfg(feature = "nccl")]
    fn child_of(parent: u32, rank: u32) -> u32 {
        let children =
            fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        let is_it = |pid: &&str| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
            let word = format!("ARENA_RANK={rank}");
            environment.split(|byte| *byte == 0).any(|found| found == word.as_bytes())
        };
        children.split_whitespace().find(is_it).unwrap().parse().unwrap()
    }

    /// Without the engine, the feature is named.
    #[cfg(not(feature = "nccl"))]
    #[test]
    fn ranks_without_nccl_are_refused_with_the_feature_that_has_it() {
        let told = one_line(&on_the_standin().args(["--ranks", "2"]).output().unwrap());
        assert!(told.contains("ranks on CUDA need the feature `nccl`"), "{told}");
    }

    #[test]
    fn without_nvrtc_the_program_says_so_in_one_line_and_exits_with_2() {
        // The other tests open NVRTC, and what is open is found by its name.
        alone(|| {
            if on_the_loaders_path("libnvrtc.so.12") {
                return skip("NVRTC is on the loader's path");
            }
            let output = on_the_standin().env_remove("LD_LIBRARY_PATH").output().unwrap();
            let told = one_line(&output);
            assert!(told.starts_with("arena-train: libnvrtc is not installed"), "{told}");
        });
    }

    #[test]
    fn without_nvtx_ranges_are_refused_in_one_line_with_exit_2() {
        if ["libnvToolsExt.so", "libnvToolsExt.so.1"].into_iter().any(on_the_loaders_path) {
            return skip("NVTX is on the loader's path");
        }
        let told = one_line(&on_the_standin().arg("--ranges").output().unwrap());
        assert!(told.contains("no NVTX: the loader finds no libnvToolsExt.so"), "{told}");
    }

    fn on_the_loaders_path(name: &str) -> bool {
        // SAFETY: NVRTC runs no code of ours when it is opened.
        unsafe { libloading::Library::new(name) }.is_ok()
    }
}
