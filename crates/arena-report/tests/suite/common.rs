//! The files of the tests, and what is known of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arena_report::{Recording, parse};
use serde::Deserialize;

/// A file of `tests/data`.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).unwrap()
}

/// Reads a file's bytes under a short name.
pub(crate) fn recording(bytes: &[u8]) -> Result<Recording, String> {
    parse(Path::new("file"), bytes).map_err(|error| error.to_string())
}

/// What the program that made the snapshots computed itself, in bytes and of one step.
#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    pub(crate) sum: u64,
    pub(crate) own_peak: u64,
    pub(crate) buffers: usize,
    pub(crate) through: u64,
    pub(crate) steps: usize,
    pub(crate) reserved: u64,
}

pub(crate) fn expected(shape: &str) -> Expected {
    let mut all: BTreeMap<String, Expected> =
        serde_json::from_slice(&bytes("expected.json")).unwrap();
    all.remove(shape).unwrap()
}
