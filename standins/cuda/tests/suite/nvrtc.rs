//! The sources beside the committed PTX still compile, where NVRTC can be had, and what it writes runs.
//!
//! `pip install nvidia-cuda-nvrtc-cu12` is enough: the library is looked for on the loader's path, and then where
//! Python keeps its packages.

use crate::common::{Bench, flat};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::PathBuf;
use std::process::Command;

/// Opens NVRTC so that cudarc finds it by name, and keeps it open. False when there is none.
fn open_nvrtc() -> bool {
    let name = "libnvrtc.so.12";
    std::iter::once(PathBuf::from(name)).chain(python_folder().map(|folder| folder.join(name))).any(
        |path| {
            // SAFETY: NVRTC runs no code of ours when it is opened.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
            library.map(std::mem::forget).is_ok()
        },
    )
}

/// The folder of the wheel's library.
fn python_folder() -> Option<PathBuf> {
    let script = "import nvidia.cuda_nvrtc as n; print(list(n.__path__)[0])";
    let output = Command::new("python3").args(["-c", script]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let folder = PathBuf::from(path.trim()).join("lib");
    folder.is_dir().then_some(folder)
}

#[test]
fn every_architecture_that_nvrtc_compiles_for_can_be_loaded_and_run() {
    if !open_nvrtc() {
        println!("skipped: libnvrtc.so.12 is not installed");
        return;
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
