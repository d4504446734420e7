//! NVRTC for tests, where a Python has it.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Opens NVRTC so that cudarc finds it by name, and keeps it open. False when there is none.
///
/// `bindings` is the `CUDA_VERSION` of cudarc's bindings. They look for the library of their own major version first,
/// and then for that of CUDA 12; so does this.
///
/// `pip install nvidia-cuda-nvrtc-cu12` (or `nvidia-cuda-nvrtc` for CUDA 13) is enough: the library is looked for on the
/// loader's path, and then in the packages of `.venv` at the workspace's root and of `python3`.
pub fn open_nvrtc(bindings: u32) -> bool {
    static OPEN: OnceLock<bool> = OnceLock::new();
    *OPEN.get_or_init(|| {
        let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python3");
        let folders: Vec<_> =
            [venv, PathBuf::from("python3")].iter().flat_map(|python| packages(python)).collect();
        names(bindings / 1000).iter().any(|name| {
            let paths = folders.iter().map(|folder| folder.join(name));
            std::iter::once(PathBuf::from(name)).chain(paths).any(|path| {
                // SAFETY: NVRTC runs no code of ours when it is opened.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
                library.map(std::mem::forget).is_ok()
            })
        })
    })
}

/// The names under which bindings of a major version look for the library, the first one first.
fn names(major: u32) -> Vec<String> {
    let mut names = vec![format!("libnvrtc.so.{major}"), "libnvrtc.so.12".to_owned()];
    names.dedup();
    names
}

/// Where a Python may keep NVRTC's library.
fn packages(python: &Path) -> Vec<PathBuf> {
    let script = "import nvidia; print(*nvidia.__path__, sep='\\n')";
    let Ok(output) = Command::new(python).args(["-c", script]).output() else { return Vec::new() };
    let printed = String::from_utf8_lossy(&output.stdout);
    let inside = |package: &str| {
        let folders = ["cuda_nvrtc", "cu13"].map(|name| Path::new(package).join(name).join("lib"));
        folders.into_iter()
    };
    printed.lines().flat_map(inside).filter(|folder| folder.is_dir()).collect()
}

#[test]
fn the_name_of_the_bindings_major_version_comes_first() {
    assert_eq!(names(12), ["libnvrtc.so.12"]);
    assert_eq!(names(13), ["libnvrtc.so.13", "libnvrtc.so.12"]);
}
