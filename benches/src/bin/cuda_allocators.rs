//! Prints the CUDA table of `docs/measurements.md`: see `cuda_allocators --help`.

use std::process::ExitCode;

use anyhow::Result;
use arena_benches::cuda::{
    DeviceAllocator, DriverAsync, DriverSync, Graph, Requests, Watermark, measure,
};
use arena_scope::Cuda;
use arena_train::backend::CudaBackend;
use clap::Parser;

/// Replays the requests of one training step of the CNN on a CUDA device: from this arena, from
/// cuMemAllocAsync, from cuMemAlloc for each buffer, and as a graph of this arena's step.
#[derive(Debug, Parser)]
struct Arguments {
    /// Images in the step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Rounds; the table has their median, least and most
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Steps of each allocator in a round
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cuda_allocators: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let device = Cuda::new(0)?;
    let requests =
        Requests::record(&device, &CudaBackend::new(&device)?, usize::from(arguments.batch))?;
    let mut allocators: Vec<Box<dyn DeviceAllocator>> = vec![
        Box::new(Watermark::new(Cuda::new(0)?, &requests)?),
        Box::new(DriverAsync::new(&device)?),
        Box::new(DriverSync::new(&device)?),
        Box::new(Graph::new(Cuda::new(0)?, &requests)?),
    ];
    let figures = measure(&mut allocators, &requests, arguments.rounds, arguments.steps)?;
    println!(
        "{} buffers of a step with {} images, {} rounds of {} steps; microseconds per step, median (least to most)",
        requests.buffers, arguments.batch, arguments.rounds, arguments.steps
    );
    println!();
    println!("| allocator | step | host time in the allocator |");
    println!("|---|---|---|");
    for row in &figures {
        let cell = |s: arena_benches::cuda::Spread| {
            format!("{:.2} ({:.2} to {:.2})", s.median, s.min, s.max)
        };
        println!("| {} | {} | {} |", row.name, cell(row.step), cell(row.allocator));
    }
    Ok(())
}
