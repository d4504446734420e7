//! No kernel allocates on the heap, apart from what the matrix library does inside its own calls.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use arena_train::backend::host::{self, Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};
use arena_train::data::{Dataset, fill_batch, shuffled_order};
use arena_train::library_mark;

static OWN: AtomicUsize = AtomicUsize::new(0);
static LIBRARY: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let counter = if library_mark::is_inside() { &LIBRARY } else { &OWN };
        counter.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System.alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test only: another one would count into the same numbers.
#[test]
fn a_step_of_all_kernels_allocates_only_inside_the_matrix_library() {
    let conv1 = ConvShape {
        batch: 7,
        in_rows: 28,
        in_cols: 28,
        in_channels: 1,
        out_channels: 32,
        kernel: 5,
    };
    let conv2 = ConvShape { in_rows: 12, in_cols: 12, in_channels: 32, out_channels: 64, ..conv1 };
    let hidden = LinearShape { batch: 7, in_features: 1024, out_features: 128 };
    let dataset = Dataset { images: vec![9; 7 * 784], labels: vec![3; 7], rows: 28, cols: 28 };
    let mut order = [0; 7];
    let (mut x, mut labels) = (vec![0.0; conv1.input_len()], [0; 7]);
    let (mut y1, mut r1) = (vec![0.0; conv1.output_len()], vec![0; conv1.output_len()]);
    let (mut y2, mut r2) = (vec![0.0; conv2.output_len()], vec![0; conv2.output_len()]);
    let (mut y3, mut dy3) = (vec![0.0; hidden.output_len()], vec![0.0; hidden.output_len()]);
    let (mut dy2, mut dy1) = (y2.clone(), y1.clone());
    let (mut w1, mut b1) = (common::random(1, conv1.weight_len()), vec![0.0; 32]);
    let (w2, b2) = (common::random(2, conv2.weight_len()), vec![0.0; 64]);
    let (mut w3, b3) = (common::random(3, hidden.weight_len()), vec![0.0; 128]);
    let (mut dw1, mut db1) = (w1.clone(), b1.clone());
    let (mut dw2, mut db2) = (w2.clone(), b2.clone());
    let (mut dw3, mut db3) = (w3.clone(), b3.clone());
    let (mut m, mut v) = (vec![0.0; hidden.weight_len()], vec![0.0; hidden.weight_len()]);
    let mut velocity = vec![0.0; w1.len()];
    let mut workspace = vec![0.0; 1 << 20];

    let mut step = |number: u64| {
        let t = 3;
        shuffled_order(1, number, &mut order);
        fill_batch(&dataset, &order, &mut x, &mut labels).unwrap();
        let ws = &mut workspace;
        host::conv_relu_pool_forward(&conv1, &x, &w1, &b1, &mut y1, &mut r1, ws, t)?;
        host::conv_relu_pool_forward(&conv2, &y1, &w2, &b2, &mut y2, &mut r2, ws, t)?;
        host::linear_forward(&hidden, &y2, &w3, &b3, Activation::Relu, &mut y3, t)?;
        host::softmax_cross_entropy(128, &y3, &labels)?;
        host::softmax_cross_entropy_gradient(128, &y3, &labels, &mut dy3)?;
        host::linear_weight_gradient(&hidden, &y2, &dy3, &mut dw3, &mut db3, t)?;
        host::linear_input_gradient(&hidden, &w3, &dy3, Some(&y2), &mut dy2, t)?;
        host::conv_weight_gradient(&conv2, &y1, &r2, &dy2, &mut dw2, &mut db2, ws, t)?;
        host::conv_input_gradient(&conv2, &w2, &r2, &dy2, &mut dy1, ws, t)?;
        host::conv_weight_gradient(&conv1, &x, &r1, &dy1, &mut dw1, &mut db1, ws, t)?;
        let adam = AdamConfig::default();
        host::adam_step(&adam, number, &mut w3, &dw3, &mut m, &mut v, t)?;
        let sgd = SgdConfig { learning_rate: 0.1, momentum: 0.9 };
        host::sgd_step(&sgd, &mut w1, &dw1, &mut velocity, t)?;
        host::sgd_step(&sgd, &mut b1, &db1, &mut velocity[..32], t)
    };
    common::in_pool(|| {
        step(1).unwrap();
        step(2).unwrap();
        let (own, library) = (OWN.load(Ordering::Relaxed), LIBRARY.load(Ordering::Relaxed));
        for number in 3..20 {
            step(number).unwrap();
        }
        assert_eq!(OWN.load(Ordering::Relaxed) - own, 0, "allocations outside the library");
        // The mark is what tells them apart: without it these would have counted above.
        assert!(LIBRARY.load(Ordering::Relaxed) > library, "the library was not marked");
    });
}
