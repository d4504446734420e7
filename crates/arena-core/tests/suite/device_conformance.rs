//! Every device passes the same list.

use arena_core::device::{Call, Counting, Device, Failing, Limited};
use arena_core::{ByteSize, Host, Probe};

use crate::conformance::conforms;

#[test]
fn the_host_conforms() {
    conforms(&Host::new(), true);
}

#[test]
fn a_probe_conforms() {
    conforms(&Probe::new(), false);
    conforms(&Probe::like(&Host::new()), false);
}

#[test]
fn wrapped_devices_conform() {
    let wrapped = Counting::new(Failing::new(Limited::new(Host::new(), ByteSize::kib(16))));
    conforms(&wrapped, true);
    assert_eq!(wrapped.guard_pages(), Host::new().guard_pages());
}

#[cfg(feature = "_cuda")]
#[test]
fn cuda_conforms_in_any_order_that_a_device_may_choose() {
    let standin = cuda_standin::Standin::load().unwrap();
    for seed in 0..20 {
        standin.reset(seed);
        conforms(&arena_core::Cuda::new(0).unwrap(), true);
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
    standin.set_mode(cuda_standin::Mode::Eager);
    conforms(&Counting::new(arena_core::Cuda::new(0).unwrap()), true);
}

#[test]
fn calls_on_streams_and_events_are_counted_and_can_fail() {
    let device = Counting::new(Failing::new(Host::new()));
    let counts = device.counts();
    conforms(&device, true);
    let seen = [Call::NewEvent, Call::Record, Call::Wait, Call::SynchroniseStream]
        .map(|call| counts.calls(call));
    assert_eq!(seen, [1, 2, 2, 1]);

    let device = Failing::new(Host::new());
    let switch = device.switch();
    for call in [Call::NewEvent, Call::Record, Call::Wait, Call::SynchroniseStream] {
        switch.fail_nth(call, 1);
    }
    let refusals = [
        device.new_event(),
        device.record(&(), &()),
        device.wait(&(), &()),
        device.synchronise_stream(&()),
    ];
    for (refused, name) in refusals.into_iter().zip(["new_event", "record", "wait", "synchronise"])
    {
        assert!(refused.unwrap_err().call.starts_with(name));
    }
}
