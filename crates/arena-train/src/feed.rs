//! What a device offers a loop in which the host does not wait: batches that are sent ahead, results that are
//! read later, and graphs.

use std::convert::Infallible;
use std::fmt;

use arena_scope::device::Failing;
use arena_scope::{
    Arena, Device, Host, HostVisible, Persistent, Probe, Scope, StepKey, View, ViewMut,
};
#[cfg(feature = "_cuda")]
use arena_scope::{
    Cuda, ErrorKind, StepGraph,
    cuda::{InputSlots, ResultQueue},
};

use crate::error::TrainError;

/// Slots for a batch that is on its way and for the one before it.
pub const SLOTS: usize = 2;

/// Groups of losses that may be on their way to the host: one, and the one before it.
pub const RESULTS: usize = 2;

/// A device on which the network is trained.
pub trait Feed: Device + Sized {
    /// [`SLOTS`] slots for batches.
    type Slots: fmt::Debug;

    /// Room for [`RESULTS`] groups of losses on their way.
    type Results: fmt::Debug;

    /// A captured step.
    type Graph: fmt::Debug;

    /// Slots of `len_bytes` bytes, persistent in `arena`.
    ///
    /// # Errors
    ///
    /// [`TrainError::OnlyOnCuda`] where there are none; when the arena has no room, or the device
    /// refuses.
    fn slots(arena: &Arena<Self>, len_bytes: usize) -> Result<Self::Slots, TrainError>;

    /// Lets `write` fill the next slot on the host, and queues its copy beside the arena's stream.
    ///
    /// # Errors
    ///
    /// When every slot holds a batch that was not taken, or the device refuses.
    fn send(slots: &mut Self::Slots, write: impl FnOnce(&mut [u8])) -> Result<(), TrainError>;

    /// Queues a copy of the oldest batch to `to` on the arena's stream, which waits for its arrival.
    ///
    /// # Errors
    ///
    /// When no batch was sent, or the device refuses.
    fn take(slots: &mut Self::Slots, to: ViewMut<'_, u8, Self>) -> Result<(), TrainError>;

    /// Forgets the batches that were sent and not taken.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    fn discard(slots: &mut Self::Slots) -> Result<(), TrainError>;

    /// Room for results of `len` losses.
    ///
    /// # Errors
    ///
    /// [`TrainError::OnlyOnCuda`] where there is none; when the device refuses.
    fn results(arena: &Arena<Self>, len: usize) -> Result<Self::Results, TrainError>;

    /// Queues a copy of a group of losses to the host, behind the work queued on the arena's stream.
    ///
    /// # Errors
    ///
    /// When [`RESULTS`] are on their way already, or the device refuses.
    fn push(results: &mut Self::Results, losses: View<'_, f32, Self>) -> Result<(), TrainError>;

    /// The oldest group that is on its way. It waits until the group has arrived; `None` without one.
    ///
    /// # Errors
    ///
    /// The device's refusal, or an error of the work that made the losses.
    fn pop<R>(
        results: &mut Self::Results,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<Option<R>, TrainError>;

    /// Captures a step: see [`Arena::capture`].
    ///
    /// # Errors
    ///
    /// As there; [`TrainError::OnlyOnCuda`] where there are no graphs.
    fn capture<'a>(
        arena: &'a mut Arena<Self>,
        key: StepKey,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, Self>) -> Result<(), TrainError>,
    ) -> Result<Self::Graph, TrainError>;

    /// Queues a captured step: see [`StepGraph::replay`](arena_scope::StepGraph::replay).
    ///
    /// # Errors
    ///
    /// As there.
    fn replay(graph: &Self::Graph, arena: &mut Arena<Self>) -> Result<(), TrainError>;
}

/// The host computes a step while it is called: there is nothing to run ahead of.
macro_rules! nothing_to_run_ahead_of {
    ($(#[$doc:meta])* impl $([$($bound:tt)*])? for $device:ty) => {
        $(#[$doc])*
        impl $(<$($bound)*>)? Feed for $device {
            type Slots = Infallible;
            type Results = Infallible;
            type Graph = Infallible;

            fn slots(_arena: &Arena<Self>, _len_bytes: usize) -> Result<Infallible, TrainError> {
                Err(TrainError::OnlyOnCuda { what: "sending batches ahead" })
            }

            fn send(slots: &mut Infallible, _write: impl FnOnce(&mut [u8])) -> Result<(), TrainError> {
                match *slots {}
            }

            fn take(slots: &mut Infallible, _to: ViewMut<'_, u8, Self>) -> Result<(), TrainError> {
                match *slots {}
            }

            fn discard(slots: &mut Infallible) -> Result<(), TrainError> {
                match *slots {}
            }

            fn results(_arena: &Arena<Self>, _len: usize) -> Result<Infallible, TrainError> {
                Err(TrainError::OnlyOnCuda { what: "reading losses behind" })
            }

            fn push(results: &mut Infallible, _losses: View<'_, f32, Self>) -> Result<(), TrainError> {
                match *results {}
            }

            fn pop<R>(
                results: &mut Infallible,
                _read: impl FnOnce(&[f32]) -> R,
            ) -> Result<Option<R>, TrainError> {
                match *results {}
            }

            fn capture<'a>(
                _arena: &'a mut Arena<Self>,
                _key: StepKey,
                _body: impl for<'s> FnOnce(&mut Scope<'s, 'a, Self>) -> Result<(), TrainError>,
            ) -> Result<Infallible, TrainError> {
                Err(TrainError::OnlyOnCuda { what: "a captured step" })
            }

            fn replay(graph: &Infallible, _arena: &mut Arena<Self>) -> Result<(), TrainError> {
                match *graph {}
            }
        }
    };
}

nothing_to_run_ahead_of!(impl for Host);
nothing_to_run_ahead_of!(
    /// For tests: a host whose calls fail on request.
    impl [D: HostVisible] for Failing<D>
);

/// The losses of a device that computes nothing. They take no memory of the arena.
#[derive(Debug)]
pub struct ProbeResults {
    zeros: Vec<f32>,
    queued: usize,
}

/// Asks for the memory that the slots of a CUDA device take. A step asks for the same whether it is
/// replayed or not, so none is captured.
impl Feed for Probe {
    type Slots = [Persistent<u8, Self>; SLOTS];
    type Results = ProbeResults;
    type Graph = Infallible;

    fn slots(arena: &Arena<Self>, len_bytes: usize) -> Result<Self::Slots, TrainError> {
        Ok([arena.persistent(len_bytes)?, arena.persistent(len_bytes)?])
    }

    fn send(_slots: &mut Self::Slots, _write: impl FnOnce(&mut [u8])) -> Result<(), TrainError> {
        Ok(())
    }

    fn take(_slots: &mut Self::Slots, _to: ViewMut<'_, u8, Self>) -> Result<(), TrainError> {
        Ok(())
    }

    fn discard(_slots: &mut Self::Slots) -> Result<(), TrainError> {
        Ok(())
    }

    fn results(_arena: &Arena<Self>, len: usize) -> Result<ProbeResults, TrainError> {
        Ok(ProbeResults { zeros: vec![0.0; len], queued: 0 })
    }

    fn push(results: &mut ProbeResults, _losses: View<'_, f32, Self>) -> Result<(), TrainError> {
        results.queued += 1;
        Ok(())
    }

    fn pop<R>(
        results: &mut ProbeResults,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<Option<R>, TrainError> {
        let Some(left) = results.queued.checked_sub(1) else { return Ok(None) };
        results.queued = left;
        Ok(Some(read(&results.zeros)))
    }

    fn capture<'a>(
        _arena: &'a mut Arena<Self>,
        _key: StepKey,
        _body: impl for<'s> FnOnce(&mut Scope<'s, 'a, Self>) -> Result<(), TrainError>,
    ) -> Result<Infallible, TrainError> {
        Err(TrainError::OnlyOnCuda { what: "a captured step" })
    }

    fn replay(graph: &Infallible, _arena: &mut Arena<Self>) -> Result<(), TrainError> {
        match *graph {}
    }
}

#[cfg(feature = "_cuda")]
impl Feed for Cuda {
    type Slots = InputSlots<u8>;
    type Results = ResultQueue<f32>;
    type Graph = StepGraph<Self>;

    fn slots(arena: &Arena<Self>, len_bytes: usize) -> Result<Self::Slots, TrainError> {
        Ok(arena.input_slots(SLOTS, len_bytes)?)
    }

    fn send(slots: &mut Self::Slots, write: impl FnOnce(&mut [u8])) -> Result<(), TrainError> {
        Ok(slots.fill(write)?)
    }

    fn take(slots: &mut Self::Slots, mut to: ViewMut<'_, u8, Self>) -> Result<(), TrainError> {
        Ok(to.copy_from(slots.next()?)?)
    }

    fn discard(slots: &mut Self::Slots) -> Result<(), TrainError> {
        loop {
            match slots.next() {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::NotFilled) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn results(arena: &Arena<Self>, len: usize) -> Result<ResultQueue<f32>, TrainError> {
        Ok(arena.result_queue(RESULTS, len)?)
    }

    fn push(results: &mut ResultQueue<f32>, losses: View<'_, f32, Self>) -> Result<(), TrainError> {
        Ok(results.push(losses)?)
    }

    fn pop<R>(
        results: &mut ResultQueue<f32>,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<Option<R>, TrainError> {
        Ok(results.pop_with(read)?)
    }

    fn capture<'a>(
        arena: &'a mut Arena<Self>,
        key: StepKey,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, Self>) -> Result<(), TrainError>,
    ) -> Result<Self::Graph, TrainError> {
        arena.capture(key, body)
    }

    fn replay(graph: &Self::Graph, arena: &mut Arena<Self>) -> Result<(), TrainError> {
        Ok(graph.replay(arena)?)
    }
}
