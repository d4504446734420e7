//! What a cuBLAS workspace must be; the rest of it is tested with scopes.

use arena_core::cuda::{Blas, BlasLt};
use arena_core::{Alignment, ByteSize, Cuda, ErrorKind, RawArena};
use cuda_standin::Standin;

#[test]
fn a_workspace_that_is_not_aligned_to_256_bytes_is_refused_and_goes_back() {
    let standin = Standin::load().unwrap();
    let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::kib(64)).unwrap();
    let mut blas = Blas::on(arena.device().stream()).unwrap();
    let straight = arena.persistent::<u8>(1000, Alignment::DEFAULT).unwrap();
    let crooked = arena.persistent::<u8>(1000, Alignment::new(8).unwrap()).unwrap();
    let other = arena.persistent::<u8>(1000, Alignment::new(8).unwrap()).unwrap();
    let addresses = [crooked.address(), other.address()];
    let refused = blas.set_workspace(crooked).unwrap_err();
    let refused_too = BlasLt::on(arena.device().stream(), other).unwrap_err();
    for (refused, address) in [refused, refused_too].iter().zip(addresses) {
        assert!(!address.is_multiple_of(256));
        let ErrorKind::Misaligned { address: at, alignment } = refused.kind() else {
            panic!("{refused}")
        };
        assert_eq!((*at, *alignment), (address, Alignment::CUBLAS_WORKSPACE));
    }
    assert_eq!(blas.workspace_bytes(), 0);
    blas.set_workspace(straight).unwrap();
    assert_eq!(blas.workspace_bytes(), 1000);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cublasSetWorkspace_v2"), 1, "the refused one got nowhere");
    }
}
