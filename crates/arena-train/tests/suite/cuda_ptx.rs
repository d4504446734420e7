//! What NVRTC makes of the kernels: the committed PTX is its text, and the launches pass what each
//! kernel takes.

use crate::cuda_common::{COMMITTED, COMMITTED_FOR};
use arena_testing::{open_nvrtc, skip};
use arena_train::backend::cuda::{CudaError, SIGNATURES, SOURCE, compile};

const NO_NVRTC: &str = "libnvrtc.so.12 is not installed; scripts/kernels.sh installs it";

/// The names and parameter types of the kernels that a PTX text defines.
fn entries(ptx: &str) -> Vec<(String, Vec<String>)> {
    let mut entries = Vec::new();
    for part in ptx.split(".entry ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (parameters, _) = rest.split_once(')').unwrap();
        let types = parameters
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".param ."))
            .map(|line| line.split_whitespace().next().unwrap().to_owned());
        entries.push((name.trim().to_owned(), types.collect()));
    }
    entries.sort();
    entries
}

fn signatures() -> Vec<(String, Vec<String>)> {
    let owned = |types: &[&str]| types.iter().map(|kind| (*kind).to_owned()).collect();
    let mut all: Vec<_> =
        SIGNATURES.iter().map(|(name, types)| ((*name).to_owned(), owned(types))).collect();
    all.sort();
    all
}

/// The compiler that wrote a PTX text, as the text has it.
fn compiler(ptx: &str) -> Option<&str> {
    ptx.lines().find(|line| line.contains("Cuda compilation tools"))
}

#[test]
fn every_launch_passes_the_parameters_of_its_kernel() {
    assert_eq!(entries(COMMITTED), signatures());
    if !open_nvrtc() {
        return skip(NO_NVRTC);
    }
    assert_eq!(entries(&compile("compute_90").unwrap()), signatures());
}

#[test]
fn the_committed_ptx_is_what_nvrtc_makes_of_the_source() {
    if !open_nvrtc() {
        return skip(NO_NVRTC);
    }
    let fresh = compile(COMMITTED_FOR).unwrap();
    if compiler(&fresh) != compiler(COMMITTED) {
        return skip(&format!("NVRTC is of another release than {:?}", compiler(COMMITTED)));
    }
    assert!(fresh == COMMITTED, "the kernels have changed: run scripts/kernels.sh --renew");
}

#[test]
fn an_architecture_that_nvrtc_does_not_know_is_an_error_with_its_words() {
    if !open_nvrtc() {
        return skip(NO_NVRTC);
    }
    let Err(CudaError::Compile { architecture, log }) = compile("compute_1") else {
        panic!("compiled for compute_1")
    };
    assert_eq!(architecture, "compute_1");
    assert!(!log.is_empty());
}

#[test]
fn the_source_includes_nothing() {
    assert!(!SOURCE.contains("#include"));
}
