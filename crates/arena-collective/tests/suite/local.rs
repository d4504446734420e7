//! Ranks as threads: what they add up, tell each other, and how they end.

use std::thread;
use std::time::{Duration, Instant};

use arena_collective::{Collective, CollectiveError, Local, RankError, gather};
use arena_scope::{Arena, ByteSize, Host};
use rstest::rstest;

/// What each of `size` ranks returns.
fn each<R: Send>(size: u32, timeout: Duration, run: impl Fn(&Local) -> R + Sync) -> Vec<R> {
    let ranks = Local::ranks(size, timeout);
    thread::scope(|threads| {
        let run = &run;
        let threads: Vec<_> =
            ranks.into_iter().map(|rank| threads.spawn(move || run(&rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// What a rank adds to the sums: numbers whose sum depends on the order.
fn part(rank: u32, at: usize) -> f32 {
    let bits =
        (rank + 1).wrapping_mul(0x9e37_79b9).wrapping_add((at as u32).wrapping_mul(0x85eb_ca6b));
    (bits >> 8) as f32 / 1000.0 - (bits & 0xff) as f32 * 17.0
}

#[rstest]
fn sums_are_in_the_order_of_the_ranks_and_equal_on_all(#[values(1, 2, 3, 5)] size: u32) {
    const LEN: usize = 1000;
    let found = each(size, LONG, |rank| {
        let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build().unwrap();
        let mut sums = arena.persistent::<f32>(LEN).unwrap();
        arena.mark().unwrap();
        for step in 0..10 {
            arena
                .scope(|scope| {
                    let values: Vec<f32> =
                        (0..LEN).map(|at| part(rank.rank(), at + step)).collect();
                    let mine = scope.upload(&values)?;
                    rank.all_reduce_sum(mine.view(), sums.view_mut()).unwrap();
                    arena_scope::Ok(())
                })
                .unwrap();
        }
        (sums.view().to_vec().unwrap(), rank.calls())
    });
    let expected: Vec<f32> = (0..LEN)
        .map(|at| (1..size).fold(part(0, at + 9), |sum, rank| sum + part(rank, at + 9)))
        .collect();
    for (sums, calls) in found {
        assert_eq!((sums, calls), (expected.clone(), 10));
    }
}

#[rstest]
fn every_rank_gets_the_bytes_of_the_root(#[values(0, 1, 2)] root: u32) {
    let found = each(3, LONG, |rank| {
        let mut bytes = [rank.rank() as u8; 5];
        rank.broadcast(&mut bytes, root).map(|()| bytes)
    });
    assert_eq!(found, [Ok([root as u8; 5]), Ok([root as u8; 5]), Ok([root as u8; 5])]);
    let refused = each(1, LONG, |rank| rank.broadcast(&mut [0], 7).unwrap_err().to_string());
    assert_eq!(refused, ["broadcast: there is no rank 7 among 1"]);
}

#[test]
fn what_each_rank_found_is_told_to_all() {
    let found = each(3, LONG, |rank| gather(rank, Ok([u64::from(rank.rank()), 7])).unwrap());
    assert_eq!(found, vec![Ok(vec![[0, 7], [1, 7], [2, 7]]); 3]);
}

#[test]
fn the_lowest_rank_that_failed_is_named_on_every_rank_and_they_can_go_on() {
    let long = "ä".repeat(5000);
    let found = each(4, LONG, |rank| {
        let mine = match rank.rank() {
            1 => Err("out of memory".to_owned()),
            3 => Err(long.clone()),
            n => Ok([u64::from(n)]),
        };
        let told = gather(rank, mine).unwrap();
        (told, gather(rank, Ok([5])).unwrap())
    });
    let failed = RankError { rank: 1, cause: "out of memory".to_owned() };
    assert_eq!(failed.to_string(), "rank 1: out of memory");
    assert_eq!(found, vec![(Err(failed), Ok(vec![[5]; 4])); 4]);
    // A text that is too long ends with a whole character.
    let found = each(2, LONG, |rank| {
        gather::<_, 0>(rank, if rank.rank() == 0 { Err(long.clone()) } else { Ok([]) }).unwrap()
    });
    assert_eq!(found[1].as_ref().unwrap_err().cause, "ä".repeat(2048));
}

#[test]
fn a_rank_that_never_comes_is_named_after_the_timeout() {
    let begin = Instant::now();
    let found = each(3, SHORT, |rank| match rank.rank() {
        2 => Ok(()),
        _ => rank.barrier(),
    });
    assert!(begin.elapsed() >= SHORT && begin.elapsed() < Duration::from_secs(30));
    let Err(error @ CollectiveError::TimedOut { number: 1, .. }) = &found[0] else {
        panic!("{found:?}")
    };
    assert_eq!(found[1].as_ref(), Err(error), "both are told the same");
    assert!(error.to_string().contains("for a barrier, number 1: rank 2 did not come"), "{error}");
}

#[test]
fn after_an_abort_nobody_waits() {
    let found = each(3, LONG, |rank| {
        if rank.rank() == 1 {
            rank.abort();
        }
        (rank.barrier(), rank.barrier())
    });
    let reason = "rank 1 gave up".to_owned();
    let error = Err(CollectiveError::Refused { call: "abort", reason });
    assert_eq!(found, vec![(error.clone(), error); 3]);
}

#[test]
fn ranks_that_come_for_different_calls_are_refused() {
    let found = each(2, LONG, |rank| match rank.rank() {
        0 => rank.barrier(),
        _ => rank.broadcast(&mut [0; 3], 0),
    });
    assert_eq!(found[0], found[1]);
    let told = found[0].as_ref().unwrap_err().to_string();
    assert!(told.contains("Barrier") && told.contains("Broadcast(3, 0)"), "{told}");
}

#[test]
fn operands_of_different_lengths_are_refused() {
    let told = each(1, LONG, |rank| {
        let arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build().unwrap();
        let from = arena.persistent::<f32>(2).unwrap();
        let mut into = arena.persistent::<f32>(3).unwrap();
        rank.all_reduce_sum(from.view(), into.view_mut()).unwrap_err().to_string()
    });
    assert_eq!(told, ["an all-reduce from 2 elements into 3"]);
}
