//! Scopes that open, close, and are forgotten.

use std::cell::RefCell;
use std::rc::Rc;

use arena_core::Reset;

use super::{A256, ask, close, next_bytes, on_host, open, open_inner};
use crate::hooked::{before_each_call, no_hook};

#[test]
fn the_high_water_of_an_inner_scope_is_its_root_s_too() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    let inner = open_inner(&steps, None);
    drop(steps.transient::<u8>(1000, A256, 2).unwrap());
    close(&steps, inner).unwrap();
    drop(steps.transient::<u8>(10, A256, 1).unwrap());
    close(&steps, root).unwrap();
    assert_eq!(steps.last_step().high_water_bytes, 1000);
}

#[test]
fn closing_a_scope_ends_what_is_open_inside_it() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    ask(&steps);
    open_inner(&steps, None);
    ask(&steps);
    close(&steps, root).unwrap();
    assert_eq!((steps.depth(), steps.stats().used_bytes), (0, 0));
}

#[test]
fn a_scope_opens_right_inside_its_parent_whatever_was_forgotten_there() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    for n in 0..3 {
        open_inner(&steps, None);
        assert_eq!((steps.depth(), ask(&steps)), (2, n * 256), "its bytes stay taken");
    }
    close(&steps, root).unwrap();
    assert_eq!((steps.depth(), steps.stats().used_bytes), (0, 0));
}

#[test]
fn what_a_forgotten_scope_used_is_cleared_as_it_asked() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    open_inner(&steps, Some(Reset::Zero));
    let mut x = steps.transient::<u8>(64, A256, 2).unwrap();
    x.as_mut_slice().fill(7);
    drop(x);
    close(&steps, root).unwrap();
    assert_eq!(next_bytes(&steps, 64), [0; 64]);
}

#[test]
fn every_range_on_the_timeline_ends_with_its_scope() {
    for forgotten in [false, true] {
        let steps = on_host(Reset::Keep);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let calls = Rc::clone(&seen);
        before_each_call(move |call| {
            calls.borrow_mut().extend(call.strip_suffix("_range"));
            Ok(())
        });
        let root = open(&steps, None);
        let inner = open_inner(&steps, None);
        if !forgotten {
            close(&steps, inner).unwrap();
        }
        close(&steps, root).unwrap();
        no_hook();
        assert_eq!(*seen.borrow(), ["begin", "begin", "end", "end"], "{forgotten}");
    }
}
