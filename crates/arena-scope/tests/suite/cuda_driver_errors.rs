//! An error of a call of cudarc leaves a scope by `?`, as one of the arena's.

use arena_scope::errors::DeviceErrorKind;
use arena_scope::{Arena, ByteSize, Cuda, Error, ErrorKind};
use cuda_standin::Standin;
use rstest::rstest;

fn arena() -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::kib(64)).build().unwrap()
}

fn kind(error: &Error) -> DeviceErrorKind {
    let ErrorKind::Device(error) = error.kind() else { panic!("{error}") };
    error.kind
}

#[rstest]
#[case::refused(1, "CUDA_ERROR_INVALID_VALUE (1)", DeviceErrorKind::Refused)]
#[case::out_of_memory(2, "CUDA_ERROR_OUT_OF_MEMORY (2)", DeviceErrorKind::OutOfMemory(None))]
#[case::lost(700, "CUDA_ERROR_ILLEGAL_ADDRESS (700)", DeviceErrorKind::Final)]
fn a_code_means_the_same_in_a_call_of_cudarc_as_in_one_of_the_arena(
    #[case] code: u32,
    #[case] name: &str,
    #[case] expected: DeviceErrorKind,
) {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let stream = arena.device().new_stream().unwrap();
    let by_cudarc = arena
        .scope(|step| {
            step.alloc::<f32>(16)?;
            standin.fail_nth("cuStreamSynchronize", 1, code);
            stream.synchronize()?;
            arena_scope::Ok(())
        })
        .unwrap_err();
    standin.fail_nth("cuMemsetD8Async", 1, code);
    let by_the_arena = arena.scope(|step| step.alloc_zeroed::<f32>(16).map(drop)).unwrap_err();
    for error in [by_cudarc, by_the_arena] {
        assert_eq!(kind(&error), expected, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(error.is_final(), expected == DeviceErrorKind::Final);
    }
}

#[test]
fn memory_that_a_library_does_not_get_is_out_of_memory_and_the_arena_goes_on() {
    let standin = Standin::load().unwrap();
    standin.set_memory(2 << 20, 1 << 20);
    let mut arena = arena();
    let stream = arena.device().new_stream().unwrap();
    let refused = arena
        .scope(|step| {
            step.alloc::<f32>(16)?;
            let library = stream.alloc_zeros::<u8>(8 << 20)?;
            arena_scope::Ok(library.num_bytes())
        })
        .unwrap_err();
    assert_eq!(kind(&refused), DeviceErrorKind::OutOfMemory(None), "{refused}");
    assert_eq!(arena.stats().used_bytes, 0);
    arena.scope(|step| step.upload(&[1.0_f32; 4]).map(drop)).unwrap();
}
