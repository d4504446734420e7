//! Workspaces of libraries, which the arena gives.

use arena_scope::errors::Exhausted;
use arena_scope::{Device, Error, ErrorKind};

use crate::common::{MIB, Outcome, arena};

on_every_device!(
    the_workspace_is_of_the_algorithm_that_runs,
    a_workspace_that_no_algorithm_fits_into_is_named,
);

/// What a convolution library is asked to do.
#[derive(Clone, Copy)]
struct Convolution {
    tensor_math: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Algorithm {
    P,
    Tiles,
    Direct,
}

/// A double of such a library. The first algorithm's need depends on the configuration.
fn library_asks(convolution: Convolution, algorithm: Algorithm) -> u64 {
    match (algorithm, convolution.tensor_math) {
        (Algorithm::P, false) => 8 * MIB,
        (Algorithm::P, true) => 128 * MIB,
        (Algorithm::Tiles, _) => 16 * MIB,
        (Algorithm::Direct, _) => 0,
    }
}

// B060
fn the_workspace_is_of_the_algorithm_that_runs<D: Device>(device: D) -> Outcome {
    use Algorithm::{Direct, P, Tiles};
    let mut arena = arena(device, 64 * MIB)?;
    for (tensor_math, choices, taken, bytes) in [
        (false, &[P, Tiles, Direct][..], P, 8 * MIB),
        // 128 MiB do not fit into 64.
        (true, &[P, Tiles, Direct], Tiles, 16 * MIB),
        (true, &[P, Direct], Direct, 0),
    ] {
        let convolution = Convolution { tensor_math };
        let mut asked = Vec::new();
        arena.scope(|step| {
            let level = step.stats();
            // The backward pass reads it, so it is the step's.
            let saved = step.with_workspace(
                "convolution",
                choices.iter().copied(),
                |algorithm| {
                    asked.push(*algorithm);
                    Ok(library_asks(convolution, *algorithm))
                },
                |inner, algorithm, workspace| {
                    assert_eq!((algorithm, workspace.len() as u64), (taken, bytes));
                    assert_eq!(inner.stats().used_bytes, level.used_bytes + bytes);
                    assert!(workspace.address().is_multiple_of(256));
                    arena_scope::Ok(algorithm)
                },
            )?;
            assert_eq!(saved, taken);
            assert_eq!(step.stats().used_bytes, level.used_bytes, "scratch goes back");
            arena_scope::Ok(())
        })?;
        let until = choices.iter().position(|choice| *choice == taken).unwrap_or(0);
        assert_eq!(asked, choices[..=until], "each is asked for the call as it is made");
    }
    assert_eq!(arena.stats().driver_allocations, 1);
    Ok(())
}

// B060
fn a_workspace_that_no_algorithm_fits_into_is_named<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * MIB)?;
    let convolution = Convolution { tensor_math: true };
    let error = arena
        .scope(|step| {
            let outcome: Outcome = step.with_workspace(
                "convolution",
                [Algorithm::P],
                |algorithm| Ok(library_asks(convolution, *algorithm)),
                |_, _, _| panic!("nothing fits"),
            );
            assert_eq!(step.stats().used_bytes, 0);
            outcome
        })
        .unwrap_err();
    let Some(Exhausted { asked_bytes, free_bytes, scope: Some(scope), .. }) = error.as_exhausted()
    else {
        panic!("{error}");
    };
    assert_eq!((*asked_bytes, *free_bytes, scope.name), (128 * MIB, 64 * MIB, "convolution"));

    let refused = arena.scope(|step| {
        step.with_workspace("convolution", [], |_: &()| Ok(0), |_, (), _| arena_scope::Ok(()))
    });
    let refused = refused.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NoChoice { .. }), "{refused}");
    let absurd = arena.scope(|step| {
        step.with_workspace("convolution", [()], |()| Ok(u64::MAX), |_, (), _| arena_scope::Ok(()))
    });
    assert!(matches!(absurd.unwrap_err().kind(), ErrorKind::TooBig { .. }));
    arena.scope(|step| {
        let outcome: Outcome = step.with_workspace(
            "convolution",
            [()],
            |()| Err(Error::from(ErrorKind::InUse { what: "the library", by: "another call" })),
            |_, (), _| Ok(()),
        );
        assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::InUse { .. }));
        Ok(())
    })
}

#[test]
fn the_error_of_a_workspace_names_the_call() -> Outcome {
    let mut arena = arena(arena_scope::Host::new(), 1024)?;
    let outcome = arena.scope(|step| {
        step.with_workspace(
            "convolution",
            [4096],
            |&bytes| Ok(bytes),
            |_, _, _| arena_scope::Ok(()),
        )
    });
    let error = outcome.unwrap_err();
    let call_site = error.as_exhausted().and_then(|facts| facts.call_site).expect("it is named");
    assert_eq!(call_site.file(), file!(), "{error}");
    Ok(())
}
