//! Several threads: an arena for each, or one arena's buffer in parts. There is no arena inside an
//! arena; what outlives its scope on a thread does not compile (`compile_fail/closure_form.rs`).

use arena_scope::{Alignment, Error};

use crate::common::{KIB, Outcome, host};

const THREADS: u8 = 4;

// B064
#[test]
fn each_thread_has_an_arena_and_none_sees_anothers_bytes() -> Outcome {
    let whole_bytes = 64 * KIB;
    let arenas = (0..THREADS).map(|_| host(whole_bytes / u64::from(THREADS)));
    let arenas = arenas.collect::<Result<Vec<_>, _>>()?;
    let mut ranges: Vec<_> =
        arenas.iter().map(|arena| (arena.base_address(), arena.stats().capacity_bytes)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranges:?}");

    let threads: Vec<_> = arenas
        .into_iter()
        .zip(0..)
        .map(|(mut arena, id): (_, u8)| {
            std::thread::spawn(move || -> Result<_, Error> {
                for n in 0..1000 {
                    arena.scope(|step| {
                        let mut mine = step.alloc::<u8>(1 + n * 16)?;
                        mine.as_mut_slice().fill(id);
                        let more = step.upload(&[id; 100])?;
                        std::thread::yield_now();
                        let both = mine.as_slice().iter().chain(more.as_slice());
                        assert!(both.copied().all(|byte| byte == id), "step {n} of thread {id}");
                        arena_scope::Ok(())
                    })?;
                }
                Ok(arena)
            })
        })
        .collect();
    // An arena comes back from its thread as whole as it went.
    for thread in threads {
        let mut arena = thread.join().expect("no panic")?;
        assert_eq!((arena.resets(), arena.stats().used_bytes), (1000, 0));
        arena.scope(|step| step.alloc::<u8>(1).map(drop))?;
    }
    Ok(())
}

// B064
#[test]
fn threads_share_one_arena_by_parts_of_a_buffer_that_their_scope_outlives() -> Outcome {
    let mut arena = host(64 * KIB)?;
    for _ in 0..50 {
        arena.scope(|step| {
            let mut block = step.alloc::<u8>(4 * 4096)?;
            let parts = block.view_mut().parts_mut(usize::from(THREADS), Alignment::DEFAULT)?;
            std::thread::scope(|threads| {
                for (mut part, id) in parts.zip(0_u8..) {
                    threads.spawn(move || {
                        for n in 0..20_u8 {
                            part.as_mut_slice().fill(id ^ n);
                            std::thread::yield_now();
                            assert!(part.view().as_slice().iter().all(|byte| *byte == id ^ n));
                        }
                    });
                }
            });
            let last: Vec<u8> = block.as_slice().chunks(4096).map(|part| part[4095]).collect();
            assert_eq!(last, [19, 18, 17, 16]);
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}
