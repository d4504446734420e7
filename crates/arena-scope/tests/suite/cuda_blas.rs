//! cuBLAS in the arena's memory.

use std::sync::Arc;

use crate::cuda::side_stream;
use arena_scope::cuda::Blas;
use arena_scope::cudarc::cublas::sys::{cublasOperation_t, cublasSgemm_v2, cublasStatus_t};
use arena_scope::cudarc::driver::CudaStream;
use arena_scope::errors::DeviceErrorKind;
use arena_scope::{Arena, ByteSize, Cuda, Device, Error, ErrorKind, Persistent, View, ViewMut};
use cuda_standin::Standin;

const WORKSPACE: usize = 4 << 20;

fn arena() -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::mib(8)).build().unwrap()
}

fn stream(arena: &Arena<Cuda>) -> Arc<CudaStream> {
    arena.device().stream().clone()
}

/// A handle on the arena's stream, with a workspace in it.
fn blas(arena: &Arena<Cuda>) -> Blas {
    let mut blas = Blas::on(&stream(arena)).unwrap();
    blas.set_workspace(arena.persistent(WORKSPACE).unwrap()).unwrap();
    blas
}

/// `c = a * b`, two by two, by columns.
fn multiply(
    blas: &Blas,
    a: View<'_, f32, Cuda>,
    b: View<'_, f32, Cuda>,
    c: ViewMut<'_, f32, Cuda>,
) -> Result<(), Error> {
    assert_eq!((a.len(), b.len(), c.len()), (4, 4, 4));
    blas.stream().context().bind_to_thread().map_err(|error| error.0).unwrap();
    let at = |address: u64| std::ptr::without_provenance_mut::<f32>(address as usize);
    let plain = cublasOperation_t::CUBLAS_OP_N;
    let (a, b, c) = (at(a.address()), at(b.address()), at(c.address()));
    // SAFETY: a live handle with host scalars, and three live matrices of four elements; the tests
    // declare the stream where it is not the arena's.
    let status = unsafe {
        cublasSgemm_v2(blas.handle(), plain, plain, 2, 2, 2, &1.0, a, 2, b, 2, &0.0, c, 2)
    };
    Ok(blas.done("cublasSgemm", status)?)
}

/// A step with three products: the third power of a matrix, and once more.
fn step(arena: &mut Arena<Cuda>, blas: &Blas) -> Result<Vec<f32>, Error> {
    arena.scope(|step| {
        let x = step.upload(&[1.0_f32, 0.0, 2.0, 1.0])?;
        let (mut y, mut z) = (step.alloc::<f32>(4)?, step.alloc::<f32>(4)?);
        step.declare_stream(blas.stream())?;
        multiply(blas, x.view(), x.view(), y.view_mut())?;
        multiply(blas, y.view(), x.view(), z.view_mut())?;
        step.wait_for_stream(blas.stream())?;
        step.read(z.view())
    })
}

const CUBE: [f32; 4] = [1.0, 0.0, 6.0, 1.0];

// B059
#[test]
fn a_hundred_steps_of_products_take_nothing_from_the_driver() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut blas = Blas::on(&stream(&arena)).unwrap();
    let workspace: Persistent<u8, Cuda> = arena.persistent(WORKSPACE).unwrap();
    arena.mark().unwrap();
    assert!(workspace.address().is_multiple_of(256));
    let end_bytes = workspace.offset_bytes() + workspace.len() as u64;
    assert!(!workspace.is_kept() && end_bytes <= arena.stats().mark_bytes, "below the mark");
    blas.set_workspace(workspace).unwrap();

    let device_memory = |arena: &Arena<Cuda>| arena.device().memory().unwrap().free_bytes;
    assert_eq!(step(&mut arena, &blas).unwrap(), CUBE);
    let warm = device_memory(&arena);
    standin.clear_calls();
    for n in 0..100 {
        assert_eq!(step(&mut arena, &blas).unwrap(), CUBE);
        assert_eq!(device_memory(&arena), warm, "step {n}");
    }
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cublasSgemm_v2"), 200);
        assert_eq!(
            (standin.calls("cuMemAlloc_v2"), standin.calls("cublasSetWorkspace_v2")),
            (0, 0)
        );
    }
    assert_eq!(arena.stats().driver_allocations, 1);
}

// B059: what the workspace saves one from.
#[test]
fn without_a_workspace_cublas_takes_one_from_the_driver() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let blas = Blas::on(&stream(&arena)).unwrap();
    assert_eq!(blas.workspace_bytes(), 0);
    standin.clear_calls();
    assert_eq!(step(&mut arena, &blas).unwrap(), CUBE);
    assert_eq!(arena.stats().driver_allocations, 1);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemAlloc_v2"), 1);
    }
    drop((blas, arena));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

// B059
#[test]
fn the_workspace_lives_as_long_as_the_handle() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let blas = blas(&arena);
    let (mut out, x) = (arena.persistent(4).unwrap(), arena.persistent_from(&CUBE).unwrap());
    step(&mut arena, &blas).unwrap();
    drop(arena);
    multiply(&blas, x.view(), x.view(), out.view_mut()).unwrap();
    assert_eq!(out.view().to_vec().unwrap(), [1.0, 0.0, 12.0, 1.0], "{}", standin.last_fault());
    drop((out, x));
    assert_eq!(blas.workspace_bytes(), WORKSPACE as u64);
    drop(blas);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    assert_eq!(standin.last_fault(), "");
}

// B059
#[test]
fn on_another_stream_the_handle_works_in_the_same_workspace() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = arena();
        let mut blas = blas(&arena);
        arena.mark().unwrap();
        let (own, side) = (stream(&arena), side_stream(&arena));
        assert_eq!(step(&mut arena, &blas).unwrap(), CUBE);
        standin.clear_calls();
        for stream in [&side, &own, &side] {
            blas.set_stream(stream).unwrap();
            assert!(blas.stream() == stream);
            assert_eq!(step(&mut arena, &blas).unwrap(), CUBE, "seed {seed}");
        }
        if !standin.is_real_driver() {
            assert_eq!(standin.calls("cublasSetWorkspace_v2"), 3);
            assert_eq!(standin.calls("cuMemAlloc_v2"), 0, "cuBLAS went back to its own memory");
        }
        drop((blas, arena, own, side));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

/// A stream that takes the workspace over waits for the product of the one before it.
#[test]
fn two_streams_do_not_work_in_the_workspace_at_a_time() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let arena = arena();
        let mut blas = blas(&arena);
        let (first, second) = (side_stream(&arena), side_stream(&arena));
        let x = arena.persistent_from(&CUBE).unwrap();
        let mut out = arena.persistent_from(&[0.0_f32; 4]).unwrap();
        blas.set_stream(&first).unwrap();
        multiply(&blas, x.view(), x.view(), out.view_mut()).unwrap();
        blas.set_stream(&second).unwrap();
        second.synchronize().map_err(|error| error.0).unwrap();
        let mut seen = crate::cuda::Seen::new(second.context());
        seen.copy_raw(&second, out.address());
        assert_eq!(seen.after(&second), [1.0, 0.0, 12.0, 1.0], "seed {seed}");
    }
}

#[test]
fn a_workspace_or_a_stream_of_another_device_is_refused() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let arena = arena();
    let mut blas = blas(&arena);
    let other = Arena::builder(Cuda::new(1).unwrap()).capacity(ByteSize::kib(64)).build().unwrap();
    let refused = blas.set_workspace(other.persistent(4096).unwrap()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongDevice { .. }), "{refused}");
    let refused = blas.set_stream(&stream(&other)).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongDevice { .. }), "{refused}");
    assert!(refused.to_string().contains("cuda:1"), "{refused}");
    assert_eq!(blas.workspace_bytes(), WORKSPACE as u64, "it has the one that it had");
}

// B060: the choice itself is tested on every device; here is what it costs the driver.
#[test]
fn a_workspace_by_the_step_is_the_arena_s_and_goes_back_with_its_scope() {
    const MIB: u64 = 1 << 20;
    let standin = Standin::load().unwrap();
    let mut arena =
        Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::mib(64)).build().unwrap();
    arena.mark().unwrap();
    standin.clear_calls();
    for (needs, taken) in [([128 * MIB, 16 * MIB, 0], 16 * MIB), ([128 * MIB, 0, 8 * MIB], 0)] {
        arena
            .scope(|step| {
                let output = step.alloc::<f32>(100)?;
                step.with_workspace(
                    "convolution",
                    needs,
                    |bytes| Ok(*bytes),
                    |_, bytes, mut workspace| {
                        assert_eq!((bytes, workspace.len() as u64), (taken, taken));
                        workspace.view_mut().fill_bytes(7)
                    },
                )?;
                // Queued behind the library's work, in the same bytes.
                let next = step.upload(&[5_u8; 64])?;
                assert_eq!(next.address(), output.address() + 512);
                assert_eq!(step.read(next.view())?, [5; 64]);
                arena_scope::Ok(())
            })
            .unwrap();
    }
    if !standin.is_real_driver() {
        assert_eq!((standin.calls("cuMemAlloc_v2"), standin.calls("cuMemFree_v2")), (0, 0));
        assert_eq!(standin.calls("cuMemsetD8Async"), 1, "no byte, no call");
    }
}

// B061
#[test]
fn a_call_that_cublas_refuses_tells_the_arena_and_what_the_device_has_free() {
    let standin = Standin::load().unwrap();
    standin.set_memory(1000 << 20, 1000 << 20);
    let arena = arena();
    let blas = blas(&arena);
    let x = arena.persistent_from(&CUBE).unwrap();
    let mut out = arena.persistent::<f32>(4).unwrap();
    standin.fail_nth("cublasSgemm_v2", 1, cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED as u32);
    let told = multiply(&blas, x.view(), x.view(), out.view_mut()).unwrap_err();
    let free = (992 << 20).to_string();
    for part in ["cublasSgemm", "ALLOC_FAILED (3)", &free, "1048576000", "8388608", "headroom"] {
        assert!(told.to_string().contains(part), "{part} is not in: {told}");
    }
    multiply(&blas, x.view(), x.view(), out.view_mut()).unwrap();
}

#[test]
fn a_handle_that_cublas_or_the_driver_refuses_leaves_nothing() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    for (call, told) in [
        ("cublasCreate_v2", "cublasCreate"),
        ("cublasSetStream_v2", "cublasSetStream"),
        ("cublasSetMathMode", "cublasSetMathMode"),
    ] {
        standin.fail_nth(call, 1, 3);
        let refused = Blas::on(&stream(&arena)).unwrap_err();
        assert_eq!((refused.call, refused.kind), (told, DeviceErrorKind::Refused), "{refused}");
        assert_eq!(standin.leaks().library_handles, 0);
    }
    let mut blas = Blas::on(&stream(&arena)).unwrap();
    standin.fail_nth("cublasSetWorkspace_v2", 1, 7);
    let refused = blas.set_workspace(arena.persistent(WORKSPACE).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("cublasSetWorkspace"), "{refused}");
    assert_eq!(blas.workspace_bytes(), 0);
}

#[test]
fn what_is_recommended_depends_on_the_device() {
    let standin = Standin::load().unwrap();
    standin.needed_for("a device of another kind");
    for (major, bytes) in [(8, 4 << 20), (9, 32 << 20), (10, 32 << 20)] {
        standin.set_capability(major, 0);
        let device = Cuda::new(0).unwrap();
        assert_eq!(Blas::recommended_bytes(device.stream()).unwrap(), bytes);
    }
}
