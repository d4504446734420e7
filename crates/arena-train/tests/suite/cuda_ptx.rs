//! What NVRTC makes of the kernels, and what a driver takes of it. That the committed PTX is made of
//! the source is checked by `scripts/kernels.sh`, which has the NVRTC that wrote it.

use crate::cuda_common::COMMITTED;
use arena_testing::{open_nvrtc, skip};
use arena_train::backend::cuda::{
    CudaError, Kernels, SIGNATURES, SOURCE, compile, compile_cubin, ptx_architecture,
};
use cuda_standin::Standin;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUDA_VERSION;

const NO_NVRTC: &str = "NVRTC is not installed; scripts/kernels.sh installs it";

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

#[test]
fn every_launch_passes_the_parameters_of_its_kernel() {
    assert_eq!(entries(COMMITTED), signatures());
    if !open_nvrtc(CUDA_VERSION) {
        return skip(NO_NVRTC);
    }
    assert_eq!(entries(&compile("compute_90").unwrap()), signatures());
}

#[test]
fn an_architecture_that_nvrtc_does_not_know_is_an_error_with_its_words() {
    if !open_nvrtc(CUDA_VERSION) {
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

#[test]
fn ptx_is_compiled_for_the_device_or_for_the_latest_one_before_it_that_nvrtc_knows() {
    if !open_nvrtc(CUDA_VERSION) {
        return skip(NO_NVRTC);
    }
    for (capability, architecture) in [
        ((7, 5), "compute_75"),
        ((8, 0), "compute_80"),
        ((9, 0), "compute_90"),
        ((8, 8), "compute_87"),
    ] {
        let found = ptx_architecture(capability).unwrap();
        // NVRTC 13 knows 8.8 as well.
        assert!(found == architecture || found == "compute_88", "{capability:?}: {found}");
        let target = format!(".target {}", found.replace("compute", "sm"));
        assert!(compile(&found).unwrap().contains(&target), "{target}");
    }
    assert!(matches!(ptx_architecture((1, 0)), Err(CudaError::Compile { .. })));
}

/// Loads the kernels on a device and driver of these versions, and says what the driver said last.
fn loaded(standin: &Standin, capability: (i32, i32), driver: (i32, i32)) -> Result<String, String> {
    standin.reset(0);
    standin.set_capability(capability.0, capability.1);
    assert!(standin.set_driver(driver.0, driver.1));
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    match Kernels::new(&stream) {
        Ok(_) => Ok(standin.last_fault()),
        Err(error) => Err(format!("{error}; {}", standin.last_fault())),
    }
}

#[test]
fn a_driver_that_does_not_take_the_machine_code_gets_ptx() {
    if !open_nvrtc(CUDA_VERSION) {
        return skip(NO_NVRTC);
    }
    let standin = Standin::load().unwrap();
    for capability in [(7, 5), (8, 0), (8, 6), (9, 0), (12, 0)] {
        let before = loaded(&standin, capability, (13, 0)).unwrap();
        assert_eq!(before, "the stand-in runs no machine code, only PTX", "{capability:?}");
        assert_eq!(standin.calls("cuModuleLoadData"), 2, "{capability:?}");
    }
}

#[test]
fn ptx_that_is_newer_than_the_driver_is_an_error_that_names_the_version() {
    if !open_nvrtc(CUDA_VERSION) {
        return skip(NO_NVRTC);
    }
    let standin = Standin::load().unwrap();
    let error = loaded(&standin, (9, 0), (12, 0)).unwrap_err();
    assert!(error.contains("222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)"), "{error}");
    assert!(error.contains("the driver compiles 8.0 at most"), "{error}");
}

#[test]
fn the_committed_ptx_loads_on_every_device_and_driver() {
    let standin = Standin::load().unwrap();
    for capability in [(7, 5), (8, 0), (9, 0), (12, 0)] {
        for driver in [(12, 0), (12, 8), (13, 0)] {
            standin.reset(0);
            standin.set_capability(capability.0, capability.1);
            assert!(standin.set_driver(driver.0, driver.1));
            let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
            Kernels::from_ptx(&stream, COMMITTED).unwrap();
        }
    }
}

#[test]
fn machine_code_is_an_elf_file_and_an_unknown_architecture_an_error() {
    if !open_nvrtc(CUDA_VERSION) {
        return skip(NO_NVRTC);
    }
    assert!(compile_cubin("sm_75").unwrap().starts_with(b"\x7FELF"));
    let Err(CudaError::Compile { architecture, .. }) = compile_cubin("sm_1") else {
        panic!("compiled for sm_1")
    };
    assert_eq!(architecture, "sm_1");
}
