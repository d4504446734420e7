//! The sources beside the committed PTX still compile, where NVRTC can be had, and what it writes runs.
//!
//! `pip install nvidia-cuda-nvrtc-cu12` is enough: the library is looked for on the loader's path, and then in the
//! packages of `.venv` at the workspace's root and of `python3`.

use crate::common::{Bench, flat};
use arena_testing::skip;
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Opens NVRTC so that cudarc finds it by name, and keeps it open. False when there is none.
fn open_nvrtc() -> bool {
    let name = "libnvrtc.so.12";
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python3");
    let pythons = [venv, PathBuf::from("python3")];
    let folders = pythons.iter().filter_map(|python| package_folder(python));
    std::iter::once(PathBuf::from(name)).chain(folders.map(|folder| folder.join(name))).any(
        |path| {
            // SAFETY: NVRTC runs no code of ours when it is opened.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
            library.map(std::mem::forget).is_ok()
        },
    )
}

/// Where a Python keeps NVRTC's library.
fn package_folder(python: &Path) -> Option<PathBuf> {
    let script = "import nvidia.cuda_nvrtc as n; print(list(n.__path__)[0])";
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let folder = PathBuf::from(path.trim()).join("lib");
    folder.is_dir().then_some(folder)
}

#[test]
#[ignore = "needs NVRTC; scripts/kernels.sh installs it"]
fn every_architecture_that_nvrtc_compiles_for_can_be_loaded_and_run() {
    if !open_nvrtc() {
        return skip("libnvrtc.so.12 is not installed");
    }
    for source in [include_str!("../ptx/cnn.cu"), include_str!("../ptx/numeric.cu")] {
        for (arch, fast) in [("compute_75", false), ("compute_80", true), ("compute_90", false)] {
            let options = if fast { vec!["--use_fast_math".to_owned()] } else { Vec::new() };
            let options = CompileOptions { arch: Some(arch), options, ..CompileOptions::default() };
            let ptx = compile_ptx_with_opts(source, options).unwrap();
            let bench = Bench::new(&ptx.to_src());
            if source.contains("void fill(") {
                let mut data = bench.stream.alloc_zeros::<f32>(100).unwrap();
                launch!(bench, "fill", flat(100), &mut data, &1.5f32, &100i32);
                bench.finish();
                assert_eq!(bench.stream.clone_dtoh(&data).unwrap(), [1.5; 100]);
            }
        }
    }
}
