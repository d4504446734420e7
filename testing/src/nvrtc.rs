//! NVRTC for tests, where a Python has it.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Opens NVRTC so that cudarc finds it by name, and keeps it open. False when there is none.
///
/// `pip install nvidia-cuda-nvrtc-cu12` is enough: the library is looked for on the loader's path, and then in the
/// packages of `.venv` at the workspace's root and of `python3`.
pub fn open_nvrtc() -> bool {
    static OPEN: OnceLock<bool> = OnceLock::new();
    *OPEN.get_or_init(|| {
        let name = "libnvrtc.so.12";
        let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python3");
        let pythons = [venv, PathBuf::from("python3")];
        let folders = pythons.iter().filter_map(|python| package_folder(python));
        std::iter::once(PathBuf::from(name)).chain(folders.map(|folder| folder.join(name))).any(
            |path| {
                // SAFETY: NVRTC runs no code of ours when it is opened.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
                library.map(std::mem::forget).is_ok()
            },
        )
    })
}

/// Where a Python keeps NVRTC's library.
fn package_folder(python: &Path) -> Option<PathBuf> {
    let script = "import nvidia.cuda_nvrtc as n; print(list(n.__path__)[0])";
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    let folder = PathBuf::from(path.trim()).join("lib");
    folder.is_dir().then_some(folder)
}
