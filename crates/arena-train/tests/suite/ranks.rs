//! A run of several ranks, here as threads: the bits of one process, one collective a step, and failures that every rank is
//! told.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arena_collective::Local;
use arena_plan::PlannedRun;
use arena_scope::{Arena, Host};
use arena_train::backend::HostBackend;
use arena_train::data::{Dataset, Mnist, Split};
use arena_train::decoder::{Decoder, DecoderConfig};
use arena_train::error::TrainError;
use arena_train::model::Cnn;
use arena_train::network::Network;
use arena_train::planning;
use arena_train::training::{Evaluation, RunConfig, Share, Trainer};
use rstest::rstest;

use crate::training::config as cnn_config;
use crate::transaction::{data as images, saved};
use crate::two_networks::{SIZES, gpt_config, text};

const LONG: Duration = Duration::from_secs(120);

/// What a rank of a run saw.
#[derive(Debug)]
struct Seen {
    ended: Result<(), TrainError>,
    losses: Vec<u32>,
    steps: u64,
    parameters: Vec<u32>,
    evaluation: Option<Evaluation>,
    calls: u64,
}

/// How a rank differs from the others, for tests of failures.
#[derive(Debug, Clone, Copy, Default)]
struct Odd {
    missing_bytes: u64,
    /// It refuses a step without room before it begins.
    knows_needs: bool,
    /// It is asked to stop after so many steps.
    stops_after: Option<u64>,
}

/// Trains one rank; `None` instead of an engine is the only process.
fn train<N: Network<Backend = HostBackend>>(
    rank: Option<Local>,
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
    odd: Odd,
) -> Seen {
    // One thread each, and all of the loop on it.
    let backend = HostBackend::new(1);
    let run = planning::probe::<N>(&Host::new(), &backend, config, data).unwrap();
    let run: PlannedRun = run.without_plans();
    let capacity = arena_scope::ByteSize::bytes_exact(run.capacity().bytes() - odd.missing_bytes);
    let mut arena = Arena::builder(Host::new()).capacity(capacity).build().unwrap();
    arena.record(None);
    let mut trainer = Trainer::<N>::on(arena, backend, config.clone()).unwrap();
    if odd.knows_needs {
        trainer.set_needs(run);
    }
    let engine = rank.map(Rc::new);
    if let Some(engine) = &engine {
        trainer.set_ranks(Rc::clone(engine) as Rc<_>);
    }
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let ended = trainer.train(&data.train, &stop, |report| {
        losses.push(report.loss.to_bits());
        if odd.stops_after == Some(report.step) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let evaluation = ended.is_ok().then(|| trainer.evaluate(&data.test).unwrap());
    Seen {
        ended: ended.map(drop),
        losses,
        steps: trainer.step(),
        parameters: saved(&trainer),
        evaluation,
        calls: engine.map_or(0, |engine| engine.calls()),
    }
}

/// Trains `size` ranks, each on a thread, of which one may be odd; or its data.
fn ranks<N>(
    config: impl Fn(u32) -> RunConfig<N::Sizes> + Sync,
    data: impl Fn(u32) -> Split<N::Data> + Sync,
    (size, timeout): (u32, Duration),
    odd: impl Fn(u32) -> Odd + Sync,
) -> Vec<Seen>
where
    N: Network<Backend = HostBackend>,
    N::Sizes: Sync,
{
    let engines = Local::ranks(size, timeout);
    thread::scope(|threads| {
        let (config, data, odd) = (&config, &data, &odd);
        let ranks: Vec<_> = (0..size)
            .zip(engines)
            .map(|(rank, engine)| {
                threads.spawn(move || {
                    let config = RunConfig { share: Share { rank, of: size }, ..config(rank) };
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                    pool.install(|| train::<N>(Some(engine), &config, &data(rank), odd(rank)))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const fn same(_rank: u32) -> Odd {
    Odd { missing_bytes: 0, knows_needs: false, stops_after: None }
}

/// The ranks compute what one process does with batches that are their parts.
fn check_bits<N>(config: &RunConfig<N::Sizes>, data: &Split<N::Data>, (size, kinds): (u32, u64))
where
    N: Network<Backend = HostBackend>,
    N::Sizes: Sync,
    N::Data: Clone + Sync,
{
    let found = ranks::<N>(|_| config.clone(), |_| data.clone(), (size, LONG), same);
    let parts = size as usize;
    let alone = RunConfig { batch: config.batch / parts, accumulate: parts, ..config.clone() };
    let expected = train::<N>(None, &alone, data, same(0));
    expected.ended.as_ref().unwrap();
    assert!(expected.losses.len() > 3);
    let whole = train::<N>(None, &RunConfig { steps: Some(1), ..config.clone() }, data, same(0));
    let [first, of_whole] = [&expected, &whole].map(|seen| f32::from_bits(seen.losses[0]));
    // Each part counts by its examples; dropout drops other features.
    assert!((first - of_whole).abs() < 0.05 * of_whole, "{first} instead of {of_whole}");
    let hits = |seen: &Option<Evaluation>| seen.unwrap().hits;
    for seen in &found {
        seen.ended.as_ref().unwrap();
        assert_eq!(seen.losses, expected.losses);
        assert!(seen.parameters == expected.parameters, "the same bits");
        assert_eq!(seen.evaluation, found[0].evaluation);
        assert_eq!(hits(&seen.evaluation), hits(&expected.evaluation));
        // Each step is one all-reduce. Beside it each kind of step is compared once, and the evaluation told, by two
        // broadcasts of each rank.
        assert_eq!(seen.calls, expected.losses.len() as u64 + (kinds + 1) * 2 * u64::from(size));
    }
}

#[rstest]
fn ranks_compute_the_bits_of_one_process_with_their_parts_of_each_batch(#[values(2, 4)] size: u32) {
    // The last of the three steps has 22 images, all of which are a part of the first rank or two.
    let config = RunConfig { batch: 64, epochs: 2, ..cnn_config(64) };
    check_bits::<Cnn<_>>(&config, &images(150), (size, 2));
    let sizes = DecoderConfig { dropout: 0.1, ..SIZES };
    let config = RunConfig { batch: 4, epochs: 1, ..gpt_config(sizes) };
    check_bits::<Decoder<_>>(&config, text(false), (size, 1));
}

#[test]
fn a_share_is_that_of_one_process_with_smaller_batches() {
    let examples: Vec<u32> = (0..10).collect();
    let parts = |batch, of| -> Vec<Vec<u32>> {
        (0..of).map(|rank| Share { rank, of }.part(&examples, batch).to_vec()).collect()
    };
    assert_eq!(parts(10, 1), [&examples[..]]);
    assert_eq!(parts(10, 2), [&examples[..5], &examples[5..]]);
    assert_eq!(parts(10, 3), [&examples[..4], &examples[4..8], &examples[8..]]);
    // The last batch of an epoch is short.
    assert_eq!(parts(16, 2), [&examples[..8], &examples[8..]]);
    assert_eq!(parts(64, 4), [&examples[..], &[], &[], &[]]);
    assert_eq!(
        parts(3, 20)[..4],
        [&examples[..1], &examples[1..2], &examples[2..3], &examples[3..4]]
    );
}

#[test]
fn a_rank_that_is_asked_to_stop_stops_all_of_them_after_the_same_step() {
    let config = RunConfig { batch: 64, epochs: 3, ..cnn_config(64) };
    let odd = |rank| Odd { stops_after: (rank == 1).then_some(2), ..Odd::default() };
    let found = ranks::<Cnn<_>>(|_| config.clone(), |_| images(150), (3, LONG), odd);
    for seen in &found {
        // It says so in the next step.
        assert_eq!((seen.ended.is_ok(), seen.steps), (true, 3));
        assert!(seen.parameters == found[0].parameters);
    }
}

#[track_caller]
fn assert_all_told(found: &[Seen], steps: u64, rank: u32, cause: &str) {
    for seen in found {
        let Err(TrainError::Rank(told)) = &seen.ended else { panic!("{:?}", seen.ended) };
        assert_eq!((told.rank, seen.steps), (rank, steps), "{told}");
        assert!(told.cause.contains(cause), "{told}");
        assert!(seen.parameters == found[0].parameters, "no rank has moved further");
    }
}

#[rstest]
fn a_rank_without_memory_is_named_on_every_rank_and_nothing_has_moved(
    #[values(false, true)] knows_needs: bool,
) {
    let config = RunConfig { batch: 64, epochs: 1, ..cnn_config(64) };
    let odd = |rank| Odd {
        missing_bytes: if rank == 2 { 1000 } else { 0 },
        knows_needs,
        ..Odd::default()
    };
    let found = ranks::<Cnn<_>>(|_| config.clone(), |_| images(150), (3, LONG), odd);
    assert_all_told(&found, 0, 2, "out of arena memory");
}

#[test]
fn a_rank_that_fails_in_a_later_step_is_named_and_the_steps_before_stand() {
    let config = RunConfig { batch: 64, epochs: 1, ..cnn_config(64) };
    let broken = |rank| -> Mnist {
        let mut images = images(150);
        if rank == 1 {
            // Those of the second step's order that are this rank's part.
            let mut order = arena_train::data::EpochOrder::default();
            order.shuffle(&images.train, 64, config.seed, 0);
            let second = order.steps().nth(1).unwrap().to_vec();
            let part = Share { rank: 1, of: 2 }.part(&second, 64);
            let Dataset { labels, .. } = &mut images.train;
            labels[part[3] as usize] = 77;
        }
        images
    };
    let found = ranks::<Cnn<_>>(|_| config.clone(), broken, (2, LONG), same);
    assert_all_told(&found, 1, 1, "77");
}

#[test]
fn a_rank_with_other_addresses_is_named_with_its_first_request_that_differs() {
    // It makes in the backward pass again what the other one keeps: the same numbers at other places.
    let config = |rank| {
        let sizes = DecoderConfig { recompute: rank == 1, ..SIZES };
        RunConfig { batch: 4, epochs: 1, ..gpt_config(sizes) }
    };
    let found = ranks::<Decoder<_>>(config, |_| text(false).clone(), (2, LONG), same);
    assert_all_told(&found, 1, 1, "its step has other addresses than that of rank 0: its request ");
    let Err(TrainError::Rank(told)) = &found[0].ended else { panic!("{:?}", found[0].ended) };
    assert!(told.cause.contains(" bytes at offset ") && told.cause.contains("where rank 0 got "));
}

#[test]
fn a_rank_that_never_comes_is_named_by_the_others_within_the_timeout() {
    let config = RunConfig { batch: 64, epochs: 1, ..cnn_config(64) };
    let (begin, timeout) = (Instant::now(), Duration::from_secs(1));
    let mut engines = Local::ranks(3, timeout);
    let _gone = engines.pop();
    let found: Vec<Seen> = thread::scope(|threads| {
        let config = &config;
        let run = |(rank, engine)| {
            let config = RunConfig { share: Share { rank, of: 3 }, ..config.clone() };
            threads.spawn(move || train::<Cnn<_>>(Some(engine), &config, &images(150), same(rank)))
        };
        let ranks: Vec<_> = (0..).zip(engines).map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(begin.elapsed() >= timeout && begin.elapsed() < Duration::from_secs(60));
    for seen in &found {
        let Err(TrainError::Collective(error)) = &seen.ended else { panic!("{:?}", seen.ended) };
        assert!(
            error.to_string().contains("for an all-reduce, number 1: rank 2 did not come"),
            "{error}"
        );
        assert_eq!(seen.steps, 0);
    }
}
