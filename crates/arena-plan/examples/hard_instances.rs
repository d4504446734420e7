//! Solves generated hard instances and prints a table: how many of each kind fit into their rectangle.
//!
//! ```text
//! cargo run --release -p arena-plan --example hard_instances -- [FIRST_SEED] [SEEDS] [SECONDS]
//! ```

use std::error::Error;
use std::time::Duration;

use arena_plan::generate::Guillotine;
use arena_plan::{Options, solve};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (first_seed, seeds, seconds) = (number(1000)?, number(5)?, number(10)?);
    println!("| buffers | shortened | solved | seconds of each (- = not within {seconds} s) |");
    println!("|---|---|---|---|");
    let (mut solved, mut tried) = (0, 0);
    for buffers in [100, 150, 200, 300, 400] {
        for shortened_percent in [0, 10, 20, 30] {
            let mut times = Vec::new();
            for seed in first_seed..first_seed + seeds {
                let instance = Guillotine { buffers, shortened_percent, seed }.generate();
                let options = Options {
                    capacity_bytes: Some(Guillotine::CAPACITY_BYTES),
                    ..Options::within(Duration::from_secs(seconds))
                };
                let solution = solve(&instance, &options);
                let fits = solution.plan.peak_bytes() <= Guillotine::CAPACITY_BYTES;
                times.push(fits.then_some(solution.elapsed.as_secs_f64()));
            }
            let here = times.iter().flatten().count();
            let cells: Vec<String> = times
                .iter()
                .map(|time| time.map_or("-".to_owned(), |seconds| format!("{seconds:.2}")))
                .collect();
            println!(
                "| {buffers} | {shortened_percent} % | {here} of {seeds} | {} |",
                cells.join(", ")
            );
            solved += here;
            tried += times.len();
        }
    }
    println!("\nsolved {solved} of {tried}");
    Ok(())
}
