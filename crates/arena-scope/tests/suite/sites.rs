//! An error names the line of the program that asked, whichever call it asked with.

use arena_scope::layout::RowLayout;
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, Scope, Transient};
use rstest::rstest;

fn arena() -> Arena {
    Arena::builder(Host::new()).capacity(ByteSize::kib(1)).build().expect("it is small")
}

/// A line, and the error of a request that was made there.
type Refused = (u32, Error);

fn with_a_step(ask: impl FnOnce(&mut Scope<'_, '_>) -> Refused) -> Refused {
    arena().scope(|step| arena_scope::Ok(ask(step))).expect("the scope itself is fine")
}

/// A helper of a program, which passes on who called it.
#[track_caller]
fn hidden<'s>(step: &Scope<'s, '_>) -> Result<Transient<'s, u8>, Error> {
    step.alloc_zeroed(2000)
}

#[rstest]
#[case::alloc(with_a_step(|step| (line!(), step.alloc::<u8>(2000).unwrap_err())))]
#[case::aligned(with_a_step(|step| (line!(), step.alloc_aligned::<u8>(2000, Alignment::ONE).unwrap_err())))]
#[case::zeroed(with_a_step(|step| (line!(), step.alloc_zeroed::<u8>(2000).unwrap_err())))]
#[case::upload(with_a_step(|step| (line!(), step.upload(&[1_u8; 2000]).unwrap_err())))]
#[case::owned(with_a_step(|step| (line!(), step.alloc_owned::<u8>(2000).unwrap_err())))]
#[case::rows(with_a_step(|step| {
    let rows = RowLayout::new::<u8>(20, 100, Alignment::ONE).expect("rows of bytes");
    (line!(), step.alloc_rows::<u8>(&rows).unwrap_err())
}))]
#[case::persistent(with_a_step(|step| (line!(), step.persistent::<u8>(2000).unwrap_err())))]
#[case::promote(with_a_step(|step| {
    let result = step.alloc_zeroed::<u8>(600).expect("there is room");
    (line!(), step.promote(result.view()).unwrap_err())
}))]
#[case::workspace(with_a_step(|step| {
    let line = line!() + 1;
    let refused = step.with_workspace("library", [2000], |&bytes| Ok(bytes), |_, _, _| Ok(()));
    (line, refused.unwrap_err())
}))]
#[case::weights((line!(), arena().persistent::<u8>(2000).unwrap_err()))]
#[case::zeroed_weights((line!(), arena().persistent_zeroed::<u8>(2000).unwrap_err()))]
#[case::given_weights((line!(), arena().persistent_from(&[1_u8; 2000]).unwrap_err()))]
#[case::through_a_helper(with_a_step(|step| (line!(), hidden(step).unwrap_err())))]
fn it_names_the_caller(#[case] refused: Refused) {
    let (line, error) = refused;
    let site = error.as_exhausted().and_then(|full| full.call_site).expect("it is named");
    assert_eq!((site.file(), site.line()), (file!(), line), "{error}");
}
