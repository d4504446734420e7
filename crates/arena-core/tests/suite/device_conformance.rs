//! Every device, and every wrapper of one, passes the same list.

use std::cell::RefCell;
use std::rc::Rc;

use arena_core::device::{Call, Captures, Counting, Deferred, Device, Failing, Limited};
use arena_core::{Alignment, ByteSize, Host, Probe};

use crate::conformance::{
    captures_conform, conforms, the_host_sees_its_memory_exactly_where_it_says_so,
};
use crate::hooked::{Hooked, before_each_call};

#[test]
fn the_host_conforms() {
    conforms(&Host::new(), None);
}

#[test]
fn a_probe_conforms() {
    conforms(&Probe::new(), None);
    conforms(&Probe::like(&Host::new()), None);
}

#[test]
fn the_deferred_device_conforms_in_any_order() {
    for seed in 0..20 {
        let device = Deferred::new(seed);
        conforms(&device, Some(&device.new_stream()));
        captures_conform(&device);
        assert_eq!(device.stream().fault(), None);
    }
}

const LIMIT: ByteSize = ByteSize::kib(32);

/// What is committed comes in units of 2 MiB there.
#[cfg(feature = "_cuda")]
const CUDA_LIMIT: ByteSize = ByteSize::mib(16);

#[test]
fn each_wrapper_of_the_host_conforms() {
    conforms(&Limited::new(Host::new(), LIMIT), None);
    conforms(&Counting::new(Host::new()), None);
    conforms(&Failing::new(Host::new()), None);
    conforms(&Counting::new(Failing::new(Limited::new(Host::new(), LIMIT))), None);
}

#[test]
fn each_wrapper_of_the_deferred_device_conforms() {
    fn wrapped<D: Captures>(device: &D, side: &D::Stream) {
        conforms(device, Some(side));
        captures_conform(device);
    }
    for seed in 0..20 {
        let inner = || {
            let inner = Deferred::new(seed);
            let side = inner.new_stream();
            (inner, side)
        };
        let (device, side) = inner();
        wrapped(&Limited::new(device, LIMIT), &side);
        let (device, side) = inner();
        wrapped(&Counting::new(device), &side);
        let (device, side) = inner();
        wrapped(&Failing::new(device), &side);
        assert_eq!(side.fault(), None);
    }
}

#[cfg(feature = "_cuda")]
#[test]
fn cuda_conforms_in_any_order_that_a_device_may_choose() {
    use arena_core::Cuda;
    let standin = cuda_standin::Standin::load().unwrap();
    for seed in 0..20 {
        standin.reset(seed);
        let device = Cuda::new(0).unwrap();
        let side = device.new_stream().unwrap();
        conforms(&device, Some(&side));
        captures_conform(&device);
        drop((device, side));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
    standin.set_mode(cuda_standin::Mode::Eager);
    let wrapped = Counting::new(Failing::new(Limited::new(Cuda::new(0).unwrap(), CUDA_LIMIT)));
    conforms(&wrapped, None);
    captures_conform(&wrapped);
}

/// A device that answers otherwise than every default.
fn odd() -> Hooked<Deferred> {
    let mut odd = Hooked::new(Deferred::new(0));
    odd.base_alignment = Alignment::new(32).ok();
    odd.guard_pages = Some(Alignment::new(128).ok());
    odd.commit_granularity = Some(Alignment::new(1 << 14).ok());
    odd
}

// 10
#[test]
fn a_wrapper_forwards_what_has_a_default_too() {
    fn forwards<D: Device>(device: &D) {
        assert_eq!(device.name(), "hooked");
        assert_eq!(device.base_alignment(), Alignment::new(32).unwrap(), "{device:?}");
        assert_eq!(device.guard_pages(), Some(Alignment::new(128).unwrap()));
        assert_eq!(device.commit_granularity(), Some(Alignment::new(1 << 14).unwrap()));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let calls = Rc::clone(&seen);
        before_each_call(move |call| {
            calls.borrow_mut().push(call);
            Ok(())
        });
        assert_eq!(device.begin_range("12345"), Some(5));
        device.end_range(5);
        device.health().unwrap();
        device.refuse_in_capture("test").unwrap();
        device.synchronise_all().unwrap();
        device.obtain_guarded(1).map(drop).unwrap();
        let memory = device.reserve(1 << 14).unwrap();
        let at = memory.base_address;
        // SAFETY: all of what was reserved just now.
        unsafe { device.commit(&memory.handle, at, 1 << 14) }.unwrap();
        // SAFETY: what was committed just now, and nobody uses.
        unsafe { device.decommit(&memory.handle, at, 1 << 14) }.unwrap();
        // SAFETY: what was reserved, and nobody uses.
        unsafe { device.unreserve(memory, 1 << 14) }.unwrap();
        let expected = [
            "begin_range",
            "end_range",
            "health",
            "refuse_in_capture",
            "synchronise_all",
            "obtain_guarded",
            "reserve",
            "commit",
            "decommit",
            "unreserve",
        ];
        assert_eq!(*seen.borrow(), expected, "{device:?}");
    }
    forwards(&Limited::new(odd(), LIMIT));
    forwards(&Counting::new(odd()));
    forwards(&Failing::new(odd()));
    const { assert!(<Limited<Counting<Failing<Probe>>> as Device>::MEASURES_ONLY) }
    const { assert!(<Limited<Counting<Failing<Host>>> as Device>::HOST_VISIBLE) }
}

// 2
#[test]
fn the_host_sees_the_memory_of_the_host_alone_and_of_its_wrappers() {
    use the_host_sees_its_memory_exactly_where_it_says_so as check;
    const { assert!(Host::HOST_VISIBLE && !Probe::HOST_VISIBLE && !Deferred::HOST_VISIBLE) }
    check(Host::new());
    check(Probe::like(&Host::new()));
    check(Deferred::new(0)); // The host would see what its queued work has not done yet.
    check(Counting::new(Failing::new(Limited::new(Host::new(), LIMIT))));
    check(Counting::new(Failing::new(Limited::new(Deferred::new(0), LIMIT))));
    #[cfg(feature = "_cuda")]
    {
        let _standin = cuda_standin::Standin::load().unwrap();
        const { assert!(!arena_core::Cuda::HOST_VISIBLE) }
        check(arena_core::Cuda::new(0).unwrap());
    }
}

#[test]
fn calls_on_streams_and_events_are_counted_and_can_fail() {
    let device = Counting::new(Failing::new(Host::new()));
    let counts = device.counts();
    conforms(&device, None);
    for call in [Call::NewEvent, Call::Record, Call::Wait, Call::SynchroniseStream] {
        assert!(counts.calls(call) > 0, "{call:?}");
    }

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
