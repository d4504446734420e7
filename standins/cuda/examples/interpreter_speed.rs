//! How fast the interpreter is: a matrix product and a convolution, in millions of floating-point operations a second.
//!
//! `cargo run --release -p cuda-standin --example interpreter_speed`

use cuda_standin::Standin;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let standin = Standin::load()?;
    let fault = |_| standin.last_fault();
    let stream = CudaContext::new(0).map_err(fault)?.new_stream().map_err(fault)?;
    let load = |text: &str| stream.context().load_module(Ptx::from_src(text)).map_err(fault);

    let n = 96i32;
    let matmul =
        load(include_str!("../tests/ptx/numeric.ptx"))?.load_function("matmul").map_err(fault)?;
    let (a, mut c) = (
        stream.clone_htod(&vec![1.0f32; (n * n) as usize]).map_err(fault)?,
        stream.alloc_zeros::<f32>((n * n) as usize).map_err(fault)?,
    );
    let tiles = n as u32 / 16;
    let config =
        LaunchConfig { grid_dim: (tiles, tiles, 1), block_dim: (16, 16, 1), shared_mem_bytes: 0 };
    stream.synchronize().map_err(fault)?;
    let start = Instant::now();
    let mut launch = stream.launch_builder(&matmul);
    launch.arg(&a).arg(&a).arg(&mut c).arg(&n);
    // SAFETY: the arguments are the kernel's, whose accesses the stand-in checks.
    unsafe { launch.launch(config) }.map_err(fault)?;
    stream.synchronize().map_err(fault)?;
    report("matrix product in shared tiles", 2.0 * f64::from(n).powi(3), start);

    let [batch, cin, h, w, cout, k] = [4, 8, 14, 14, 16, 5];
    let conv =
        load(include_str!("../tests/ptx/cnn.ptx"))?.load_function("conv_forward").map_err(fault)?;
    let outs = batch * cout * (h - k + 1) * (w - k + 1);
    let zeros = |len: i32| stream.alloc_zeros::<f32>(len as usize).map_err(fault);
    let (x, weights, bias, mut y) =
        (zeros(batch * cin * h * w)?, zeros(cout * cin * k * k)?, zeros(cout)?, zeros(outs)?);
    stream.synchronize().map_err(fault)?;
    let start = Instant::now();
    let mut launch = stream.launch_builder(&conv);
    launch.arg(&x).arg(&weights).arg(&bias).arg(&mut y);
    launch.arg(&batch).arg(&cin).arg(&h).arg(&w).arg(&cout).arg(&k);
    // SAFETY: as above.
    unsafe { launch.launch(LaunchConfig::for_num_elems(outs as u32)) }.map_err(fault)?;
    stream.synchronize().map_err(fault)?;
    report("direct convolution", 2.0 * f64::from(outs) * f64::from(cin * k * k), start);

    let fill = load(include_str!("../tests/ptx/cnn.ptx"))?.load_function("fill").map_err(fault)?;
    let count = 1i32 << 18;
    let mut data = zeros(count)?;
    stream.synchronize().map_err(fault)?;
    let start = Instant::now();
    let mut launch = stream.launch_builder(&fill);
    launch.arg(&mut data).arg(&1.0f32).arg(&count);
    // SAFETY: as above.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.map_err(fault)?;
    stream.synchronize().map_err(fault)?;
    report("one element a thread", f64::from(count), start);
    Ok(())
}

fn report(what: &str, operations: f64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what}: {:.1} MFLOP/s ({seconds:.3} s)", operations / seconds / 1e6);
}
