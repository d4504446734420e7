//! An arena beside what a program does with CUDA by itself: contexts and streams of its own, a second device.

use std::sync::Arc;

use arena_scope::cudarc::driver::{CudaContext, CudaStream};
use arena_scope::{Arena, ByteSize, Cuda, Device, Error, Transient};
use cuda_standin::Standin;
use rstest::rstest;

const SEEDS: u64 = 200;
const ONES: [f32; 16] = [1.0; 16];

fn arena_of(device: Cuda) -> Arena<Cuda> {
    Arena::builder(device).capacity(ByteSize::kib(64)).build().unwrap()
}

fn on_a_stream_of_the_program(context: &Arc<CudaContext>) -> Result<Cuda, Error> {
    Cuda::on(context.new_stream().unwrap())
}

// --- contexts ---------------------------------------------------------------------------------------

/// The batch comes by cudarc on the program's own stream, as in every example of cudarc.
#[rstest]
#[case::on_a_stream(on_a_stream_of_the_program)]
#[case::in_the_context(Cuda::in_context)]
fn a_batch_from_a_stream_of_the_program_arrives(
    #[case] device: fn(&Arc<CudaContext>) -> Result<Cuda, Error>,
) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(SEEDS) {
        standin.reset(seed);
        let context = CudaContext::new(0).unwrap();
        let mut arena = arena_of(device(&context).unwrap());
        let stream = arena.device().stream().clone();
        let batch = context.default_stream().clone_htod(&ONES).unwrap();
        let arrived = arena.scope(|step| {
            let mut x = step.alloc::<f32>(16)?;
            stream.memcpy_dtod(&batch, &mut x)?;
            step.read(x.view())
        });
        assert_eq!(arrived.unwrap(), ONES, "seed {seed}");
    }
}

#[test]
fn a_device_by_number_is_refused_beside_a_context_of_the_program() {
    let _standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let refused = Cuda::new(0).unwrap_err().to_string();
    assert!(refused.contains("Cuda::in_context") && refused.contains("Cuda::on"), "{refused}");
    drop(context);
    Cuda::new(0).unwrap();
}

#[test]
fn devices_of_one_number_share_a_context_object_until_the_last_is_gone() {
    let standin = Standin::load().unwrap();
    assert!(standin.set_devices(2));
    let (one, two, other) = (Cuda::new(0).unwrap(), Cuda::new(0).unwrap(), Cuda::new(1).unwrap());
    assert!(Arc::ptr_eq(one.context(), two.context()));
    assert!(!Arc::ptr_eq(one.context(), other.context()));
    // With both contexts active the number alone tells them apart.
    let again = [Cuda::new(0).unwrap(), Cuda::new(1).unwrap()];
    for (again, first) in again.iter().zip([&one, &other]) {
        assert!(Arc::ptr_eq(again.context(), first.context()));
    }
    drop((one, two, other, again));
    let own = CudaContext::new(0).unwrap();
    Cuda::new(0).unwrap_err();
    drop(own);
    Cuda::new(0).unwrap();
}

#[test]
fn a_device_can_be_had_while_another_thread_gives_the_last_one_up() {
    let _standin = Standin::load().unwrap();
    for _ in 0..50 {
        let last = Cuda::new(0).unwrap();
        let dropping = std::thread::spawn(move || drop(last));
        Cuda::new(0).unwrap();
        dropping.join().unwrap();
    }
}

// --- another device ---------------------------------------------------------------------------------

/// What a step does with a buffer that goes to a stream of another device.
type Copy = fn(&Transient<'_, f32, Cuda>, &Arc<CudaStream>);

fn declared(x: &Transient<'_, f32, Cuda>, to: &Arc<CudaStream>) {
    x.declare_stream(to).unwrap();
}

fn undeclared(_x: &Transient<'_, f32, Cuda>, _to: &Arc<CudaStream>) {}

fn arena_on_a_stream(ordinal: usize, is_null: bool) -> Arena<Cuda> {
    if !is_null {
        return arena_of(Cuda::new(ordinal).unwrap());
    }
    arena_of(Cuda::on(CudaContext::new(ordinal).unwrap().default_stream()).unwrap())
}

#[rstest]
fn a_step_s_buffer_that_is_copied_to_another_device_arrives(
    #[values(declared, undeclared)] declare: Copy,
    // To the null stream cudarc queues the copy on that of the context that is current: the arena's own, maybe.
    #[values((false, false), (true, false), (true, true))] null_streams: (bool, bool),
    #[values(false, true)] in_an_inner_scope: bool,
) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(SEEDS) {
        standin.reset(seed);
        assert!(standin.set_devices(2));
        let mut a = arena_on_a_stream(0, null_streams.0);
        let b = arena_on_a_stream(1, null_streams.1);
        let to = b.device().stream().clone();
        let mut y = b.persistent::<f32>(16).unwrap();
        let mut copy = |x: Transient<'_, f32, Cuda>| {
            declare(&x, &to);
            to.memcpy_dtod(&x, &mut y).unwrap();
        };
        let other_bytes =
            |step: &arena_scope::Scope<'_, '_, Cuda>| step.upload(&[9.0_f32; 16]).map(drop);
        a.scope(|step| {
            if in_an_inner_scope {
                step.scope(|inner| inner.upload(&ONES).map(&mut copy))?;
                other_bytes(step)
            } else {
                step.upload(&ONES).map(&mut copy)
            }
        })
        .unwrap();
        a.scope(|step| other_bytes(step)).unwrap();
        a.device().synchronise().unwrap();
        assert_eq!(y.view().to_vec().unwrap(), ONES, "seed {seed}");
    }
}

/// No thread waits for it.
#[test]
fn a_copy_of_the_arena_s_own_between_devices_is_ordered_on_both() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(SEEDS) {
        standin.reset(seed);
        assert!(standin.set_devices(2));
        let (mut a, b) = (arena_of(Cuda::new(0).unwrap()), arena_of(Cuda::new(1).unwrap()));
        let mut y = b.persistent::<f32>(16).unwrap();
        standin.clear_calls();
        a.scope(|step| {
            let x = step.upload(&ONES)?;
            y.view_mut().copy_from(x.view())
        })
        .unwrap();
        assert_eq!(standin.calls("cuCtxSynchronize"), 0);
        assert_eq!(standin.calls("cuStreamSynchronize"), 0);
        a.scope(|step| step.upload(&[9.0_f32; 16]).map(drop)).unwrap();
        a.device().synchronise().unwrap();
        assert_eq!(y.view().to_vec().unwrap(), ONES, "seed {seed}");
    }
}

#[test]
fn a_copy_from_another_device_into_a_step_s_buffer_arrives() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(SEEDS) {
        standin.reset(seed);
        assert!(standin.set_devices(2));
        let (mut a, b) = (arena_of(Cuda::new(0).unwrap()), arena_of(Cuda::new(1).unwrap()));
        let weights = b.persistent_from(&ONES).unwrap();
        let stream = a.device().stream().clone();
        let arrived = a.scope(|step| {
            let mut x = step.alloc::<f32>(16)?;
            stream.memcpy_dtod(&weights, &mut x)?;
            step.read(x.view())
        });
        assert_eq!(arrived.unwrap(), ONES, "seed {seed}");
    }
}

/// A kept buffer dies while another device still reads it, and its bytes are used again.
#[test]
fn a_kept_buffer_that_is_copied_to_another_device_arrives() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(SEEDS) {
        standin.reset(seed);
        assert!(standin.set_devices(2));
        let (mut a, b) = (arena_of(Cuda::new(0).unwrap()), arena_of(Cuda::new(1).unwrap()));
        let to = b.device().stream().clone();
        let mut y = b.persistent::<f32>(16).unwrap();
        a.scope(|_| arena_scope::Ok(())).unwrap();
        let kept = a.persistent_from(&ONES).unwrap();
        to.memcpy_dtod(&kept, &mut y).unwrap();
        drop(kept);
        a.scope(|_| arena_scope::Ok(())).unwrap();
        let _again = a.persistent_from(&[9.0_f32; 16]).unwrap();
        a.device().synchronise().unwrap();
        assert_eq!(y.view().to_vec().unwrap(), ONES, "seed {seed}");
    }
}
