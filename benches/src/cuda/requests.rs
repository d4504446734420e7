//! What one training step asks for.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use arena_scope::record::{StepEvent, StepLog};
use arena_scope::{Arena, ByteSize, Probe, Reset};
use arena_train::backend::host::AdamConfig;
use arena_train::backend::{Backend, ProbeBackend};
use arena_train::data::Dataset;
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::training::{Per, RunConfig, Share, TRAIN, Trainer};

/// One request of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A buffer of so many bytes, at least one; its handle goes into a slot of its own.
    Alloc {
        /// Where the handle goes.
        slot: usize,
        /// Its size.
        size_bytes: u64,
    },
    /// The handle in the slot is dropped.
    Drop {
        /// Where the handle is.
        slot: usize,
    },
}

/// The requests of a step in order. What is not dropped among them is dropped at the step's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    /// In order.
    pub list: Vec<Request>,
    /// Buffers in all, which is one more than the last slot.
    pub buffers: usize,
    /// A capacity that serves the step: every buffer above the one before.
    pub capacity: ByteSize,
}

impl Requests {
    /// Those of one training step of the CNN with so many images, as the backend would make them on
    /// its device. They are learnt on a probe: nothing is computed.
    ///
    /// # Errors
    ///
    /// When the backend's kernels do not serve the batch.
    pub fn record<B: Backend>(device: &B::Device, backend: &B, images: usize) -> Result<Self> {
        let pixels = vec![0; images * 28 * 28];
        let data = Dataset { images: pixels, labels: vec![0; images], rows: 28, cols: 28 };
        let config = RunConfig {
            network: (),
            epochs: 1,
            batch: images,
            accumulate: 1,
            share: Share::WHOLE,
            warmup: 0,
            per: Per::Minibatch,
            reset: Reset::Keep,
            optimizer: Optimizer::Adam(AdamConfig::default()),
            seed: 1,
            steps: None,
            ahead: None,
        };
        let any = ByteSize::bytes_exact(1 << 61);
        let mut arena = Arena::builder(Probe::like(device)).capacity(any).build()?;
        arena.record(None);
        let mut trainer = Trainer::<Cnn<_>>::on(arena, ProbeBackend::of(backend), config)?;
        trainer.train(&data, &AtomicBool::new(false), |_| ())?;
        let log = trainer.arena().recorded(TRAIN.variant(images as u64));
        let mut requests = Self::of(&log.context("a step was recorded")?);
        // The region holds the step alone, and begins where a buffer may.
        let stats = trainer.arena().stats();
        requests.capacity = ByteSize::bytes_exact(stats.peak_bytes - stats.mark_bytes);
        Ok(requests)
    }

    /// A step's requests. Empty ones are left out: they cost no allocator anything.
    fn of(log: &StepLog) -> Self {
        let mut at = HashMap::new();
        let (mut list, mut buffers) = (Vec::new(), 0);
        for event in log.events() {
            match *event {
                StepEvent::Alloc { offset_bytes, bytes, .. } if bytes > 0 => {
                    at.insert(offset_bytes, buffers);
                    list.push(Request::Alloc { slot: buffers, size_bytes: bytes });
                    buffers += 1;
                }
                StepEvent::Drop { offset_bytes } => {
                    list.extend(at.remove(&offset_bytes).map(|slot| Request::Drop { slot }));
                }
                _ => {}
            }
        }
        Self { list, buffers, capacity: ByteSize::bytes_exact(0) }
    }
}
