//! Compiles the kernels and writes their PTX: `write_ptx FOLDER compute_75 compute_90 ...`.
//!
//! `scripts/kernels.sh` assembles what this writes. NVRTC has to be on the loader's path.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use arena_train::backend::cuda::compile;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, architectures) =
        arguments.split_first().context("usage: write_ptx FOLDER ARCHITECTURE...")?;
    ensure!(!architectures.is_empty(), "no architecture to compile for");
    for architecture in architectures {
        let path = Path::new(folder).join(format!("{architecture}.ptx"));
        fs::write(&path, compile(architecture)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
