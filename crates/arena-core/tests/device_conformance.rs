//! Every device passes the same list.

mod conformance;

use arena_core::device::{Counting, Failing, Limited};
use arena_core::{ByteSize, Host, Probe};
use conformance::conforms;

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
    conforms(&Limited::new(Host::new(), ByteSize::kib(4)), true);
    conforms(&Counting::new(Host::new()), true);
    conforms(&Failing::new(Host::new()), true);
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
