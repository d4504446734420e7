//! The sources beside the committed PTX still compile, where NVRTC can be had, and what it writes runs.

use crate::common::{Bench, flat};
use arena_testing::{open_nvrtc, skip};
use cudarc::driver::sys::CUDA_VERSION;
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

#[test]
#[ignore = "needs NVRTC; scripts/kernels.sh installs it"]
fn every_architecture_that_nvrtc_compiles_for_can_be_loaded_and_run() {
    if !open_nvrtc(CUDA_VERSION) {
        return skip("NVRTC is not installed");
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
