//! Compiles the kernels and writes their PTX: `write_ptx FOLDER compute_75 compute_90 ...`. Another source between the
//! folder and the architectures is compiled as well, into files that begin with its name.
//!
//! `scripts/kernels.sh` assembles what this writes. NVRTC has to be on the loader's path.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use arena_train::backend::cuda::compile;
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, rest) =
        arguments.split_first().context("usage: write_ptx FOLDER [FILE.cu] ARCHITECTURE...")?;
    let (sources, architectures): (Vec<_>, Vec<_>) =
        rest.iter().partition(|argument| argument.ends_with(".cu"));
    ensure!(!architectures.is_empty(), "no architecture to compile for");
    let write = |name: String, ptx: String| {
        let path = Path::new(folder).join(name);
        fs::write(&path, ptx).with_context(|| format!("writing {}", path.display()))
    };
    for architecture in architectures {
        write(format!("{architecture}.ptx"), compile(architecture)?)?;
        for source in &sources {
            let options = vec![format!("--gpu-architecture={architecture}")];
            let options = CompileOptions { options, ..CompileOptions::default() };
            let text = fs::read_to_string(source).with_context(|| format!("reading {source}"))?;
            let stem = Path::new(source).file_stem().context("a source has a name")?;
            let name = format!("{}.{architecture}.ptx", stem.display());
            write(name, compile_ptx_with_opts(text, options)?.to_src())?;
        }
    }
    Ok(())
}
