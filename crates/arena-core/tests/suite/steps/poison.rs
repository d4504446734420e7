//! Memory that was never used reads as poison, and no live byte does.

use arena_core::{Alignment, ByteSize, Host, Placement, Reset};

use super::{A256, CAPACITY, assert_call, close, next_bytes, on_host, open, table};
use crate::hooked::{Hooked, fail_in, no_hook};

#[test]
fn fresh_memory_is_poisoned_from_the_mark_on() {
    let steps = on_host(Reset::Poison);
    steps.set_mark().unwrap();
    assert_eq!(next_bytes(&steps, 64), [0xff; 64]);
}

#[test]
fn fresh_memory_is_poisoned_once_and_no_buffer_in_it() {
    let steps = on_host(Reset::Poison);
    let root = open(&steps, None);
    let mut x = steps.transient::<u8>(64, A256, 1).unwrap();
    x.as_mut_slice().fill(1);
    assert_eq!(next_bytes(&steps, 64), [0xff; 64]);
    assert_eq!(x.as_slice(), [1; 64]);
    drop(x);
    close(&steps, root).unwrap();
}

#[test]
fn what_was_trimmed_is_poisoned_again() {
    let (device, capacity) = (Hooked::new(Host::new()), ByteSize::mib(1));
    let mut steps = super::Steps::new(device, capacity, Placement::Bump, Reset::Poison).unwrap();
    for _ in 0..2 {
        let root = open(&steps, None);
        let all = next_bytes(&steps, 1 << 20);
        assert!(all.iter().all(|byte| *byte == 0xff));
        close(&steps, root).unwrap();
        assert_eq!(steps.trim(0).unwrap(), 1 << 20);
    }
}

#[test]
fn the_bytes_of_a_plan_are_poisoned_before_they_are_given_out() {
    let mut steps = on_host(Reset::Poison);
    let plan = steps.add_plan(table(&[1])).unwrap();
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let x = steps.transient::<u8>(256, A256, 1).unwrap();
    assert_eq!((x.offset_bytes(), x.as_slice()), (256, &[0xff; 256][..]));
    drop(x);
    close(&steps, root).unwrap();
}

#[test]
fn a_poisoning_that_is_refused_takes_the_request_back() {
    let steps = on_host(Reset::Poison);
    let root = open(&steps, None);
    fail_in("fill", 1);
    assert_call(&steps.transient::<u8>(64, A256, 1).unwrap_err(), "fill");
    no_hook();
    assert_eq!(steps.stats().used_bytes, 0);
    assert_eq!(next_bytes(&steps, 64), [0xff; 64]);
    close(&steps, root).unwrap();
}

// The scope's high-water lies where the buffer is kept now.
#[test]
fn a_clearing_leaves_alone_what_was_kept_meanwhile() {
    let steps = on_host(Reset::Zero);
    let root = open(&steps, None);
    let inner = super::open_inner(&steps, Some(Reset::Keep));
    drop(steps.transient::<u8>(CAPACITY as usize, Alignment::ONE, 2).unwrap());
    close(&steps, inner).unwrap();
    let mut kept = steps.persistent::<u8>(256, A256, 1).unwrap();
    kept.as_mut_slice().fill(7);
    close(&steps, root).unwrap();
    assert_eq!(kept.as_slice(), [7; 256]);
}
