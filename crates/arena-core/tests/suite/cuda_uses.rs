//! A buffer that goes into a call of cudarc, an operand of cuBLAS included, or into a launch is used there, and a
//! recording sees it.

use arena_core::cudarc::driver::{DevicePtr, PushKernelArg};
use arena_core::cudarc::nvrtc::Ptx;
use arena_core::for_scopes::{Steps, Watch};
use arena_core::{Alignment, ByteSize, Cuda, LastUse, Placement, Reset, StepLog, Transient};
use cuda_standin::Standin;

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/numeric.ptx");

/// The last use of the first buffer of a step.
fn last_use(using: impl FnOnce(&Steps<Cuda>, &mut Transient<'_, f32, Cuda>)) -> Option<LastUse> {
    let device = Cuda::new(0).unwrap();
    let steps = Steps::new(device, ByteSize::kib(64), Placement::Bump, Reset::Keep).unwrap();
    let watch = Watch::Record(StepLog::default());
    // SAFETY: there is no transient buffer yet.
    let root = unsafe { steps.open_root_watched("step", None, watch) }.unwrap();
    let mut x = steps.transient_zeroed::<f32>(16, Alignment::DEFAULT, 1).unwrap();
    using(&steps, &mut x);
    drop(x);
    // SAFETY: its only buffer is gone.
    unsafe { steps.close(root) }.unwrap();
    steps.take_log().unwrap().requests()[0].last_use
}

/// Asks for another buffer: an event.
fn go_on(steps: &Steps<Cuda>) {
    drop(steps.transient::<f32>(1, Alignment::DEFAULT, 1).unwrap());
}

#[test]
fn an_argument_of_a_launch_is_a_use_with_its_call() {
    let _standin = Standin::load().unwrap();
    let mut line = 0;
    let mut launch = |exclusive: bool, kept: bool| {
        last_use(|steps, x| {
            let stream = steps.region().device().stream().clone();
            let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
            let scale = module.load_function("scale_float4").unwrap();
            let mut launch = stream.launch_builder(&scale);
            match (exclusive, kept) {
                (false, false) => {
                    go_on(steps);
                    line = line!() + 1;
                    launch.arg(&*x);
                }
                (true, false) => {
                    go_on(steps);
                    line = line!() + 1;
                    launch.arg(x);
                }
                (false, true) => {
                    let view = x.view();
                    go_on(steps);
                    line = line!() + 1;
                    launch.arg(&view);
                }
                (true, true) => {
                    let mut view = x.view_mut();
                    go_on(steps);
                    line = line!() + 1;
                    launch.arg(&mut view);
                }
            }
        })
        .map(|last| (last.before_event, last.call_site.line()))
        .zip(Some(line))
    };
    for (exclusive, kept) in [(false, false), (true, false), (false, true), (true, true)] {
        let (seen, line) = launch(exclusive, kept).expect("it was used");
        assert_eq!(seen, (4, line), "{exclusive} {kept}");
    }
}

#[test]
fn what_is_lent_is_used_until_it_is_no_longer_lent() {
    let _standin = Standin::load().unwrap();
    let mut line = 0;
    let read = last_use(|steps, x| {
        line = line!() + 1;
        let lent = x.lend().unwrap();
        go_on(steps);
        assert_eq!(lent.len(), 16);
    });
    assert_eq!(read.map(|last| (last.before_event, last.call_site.line())), Some((4, line)));
    let written = last_use(|steps, x| {
        line = line!() + 1;
        let lent = x.view_mut().lend_mut().unwrap();
        go_on(steps);
        drop(lent);
        go_on(steps);
    });
    assert_eq!(written.map(|last| (last.before_event, last.call_site.line())), Some((4, line)));
}

#[test]
fn what_a_call_of_cudarc_gets_is_used_there() {
    let _standin = Standin::load().unwrap();
    let here = |last: Option<LastUse>| last.map(|last| (last.before_event, last.call_site.file()));
    let copied = last_use(|steps, x| {
        let view = x.view();
        go_on(steps);
        let stream = steps.region().device().stream().clone();
        assert_eq!(stream.clone_dtoh(&view).unwrap(), [0.0; 16]);
    });
    assert_eq!(copied.map(|last| last.before_event), Some(4));
    let set = last_use(|steps, x| {
        go_on(steps);
        steps.region().device().stream().clone().memset_zeros(x).unwrap();
    });
    assert_eq!(set.map(|last| last.before_event), Some(4));
    // As a function of cuBLAS does it, and a program.
    let pointer = last_use(|steps, x| {
        go_on(steps);
        let _ = x.device_ptr(steps.region().device().stream());
    });
    assert_eq!(here(pointer), Some((4, file!())));
    // A view that is taken in the call itself names the program's line.
    let taken = last_use(|steps, x| {
        go_on(steps);
        steps.region().device().stream().clone().clone_dtoh(&x.view()).unwrap();
    });
    assert_eq!(here(taken), Some((4, file!())));
}
