//! A step captured as a graph, and replayed.
//!
//! A bump arena gives the same addresses to the same requests, so a step that repeats can be captured once and
//! launched as a whole from then on. A graph contains only addresses. Therefore a step is captured only if it
//! has the signature of the step before, the graph pins the region, and it is replayed only while steps of its
//! kind still have that signature.
//!
//! This module opens `unsafe` for one call, the launch: see the proof in [`StepGraph::replay`].

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use arena_core::{Captures, Error, ErrorKind, RegionPin, StepSignature};
use scopeguard::ScopeGuard;

use crate::arena::Arena;
use crate::kinds::Kind;
use crate::options::ScopeOptions;
use crate::scope::{Scope, run};
use crate::step_key::StepKey;

/// A captured training step, which the device can run again without the host.
///
/// A graph keeps the region alive. While it exists, the bytes of dropped kept buffers are not reused, and
/// `trim` is refused. Pass inputs and results through persistent buffers: write them before
/// [`replay`](Self::replay) and read them after it, in stream order.
pub struct StepGraph<D: Captures> {
    /// Before the pin, so that it is gone before the region can be.
    graph: D::Graph,
    pin: RegionPin<D>,
    /// While this lives, the arena does not forget steps of this kind.
    _remembered: Option<Arc<()>>,
    key: StepKey,
    signature: StepSignature,
    high_water_bytes: u64,
    /// Of the region, in which it was captured.
    life: u64,
}

impl<D: Captures> Arena<D> {
    /// Captures a step: `body` runs once, makes its requests and queues its work, but the device executes
    /// nothing yet. [`StepGraph::replay`] executes it.
    ///
    /// Only a stable step is captured: its signature must be that of the root scope before it. Inside `body`,
    /// every call that would allocate from the driver, wait, or read on the host is refused before the driver
    /// is called ([`DeviceErrorKind::InCapture`](arena_core::DeviceErrorKind::InCapture)). `upload`, `promote`
    /// and persistent buffers are refused too, because a replay would copy from host memory that no longer
    /// exists. If `body` continues after a refusal, the step is captured without the refused call.
    ///
    /// # Errors
    ///
    /// What `body` returns; [`ErrorKind::NotCaptured`] when no step came before, when the signature
    /// differs, when a stream is declared from outside the step, or when a buffer is lent; or the device's refusal. After an error no
    /// capture is active, and the arena is at its mark.
    ///
    /// # Panics
    ///
    /// If `body` panics. The capture is discarded.
    pub fn capture<'a, E: From<Error>>(
        &'a mut self,
        options: impl Into<ScopeOptions>,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<(), E>,
    ) -> Result<StepGraph<D>, E> {
        let options = options.into();
        self.state.prepare_root(options.key());
        let state = &self.state;
        let refuse =
            |reason: &str| Error::from(ErrorKind::NotCaptured { reason: reason.to_owned() });
        state.steps.ready()?;
        let expected = state.steps.last_step().signature.ok_or_else(|| {
            refuse("no step has run before: run one, so that it can be seen to repeat itself")
        })?;
        let region = state.steps.region();
        if region.any_lent() {
            // Here, for it cannot be done while the step is captured.
            state.steps.wait_for_declared()?;
        }
        if region.any_lent() {
            return Err(refuse("a buffer is lent: drop what `lend` returned").into());
        }
        if region.find_declared(|_| true).is_some() {
            return Err(refuse(
                "a stream is declared to a persistent buffer, and would be waited for: declare it in \
                 the step instead",
            )
            .into());
        }
        region.device().begin_capture().map_err(Error::from)?;
        let capture = scopeguard::guard(region.device(), |device| device.abandon_capture());
        run(state, state.open_root(options)?, body)?;
        let step = state.steps.last_step();
        let signature = step.signature.unwrap_or(expected);
        if signature != expected {
            let reason = format!(
                "its signature is {signature}, that of the step before was {expected}: the requests \
                 must repeat themselves"
            );
            return Err(refuse(&reason).into());
        }
        let graph = capture.end_capture().map_err(Error::from)?;
        ScopeGuard::into_inner(capture);
        let captured = |kind: &mut Kind| kind.captured.add(signature);
        Ok(StepGraph {
            graph,
            pin: state.steps.pin(),
            _remembered: state.kinds.borrow_mut().get_mut(options.key()).map(captured),
            key: options.key(),
            signature,
            high_water_bytes: step.high_water_bytes,
            life: state.steps.region().lives(),
        })
    }
}

impl<D: Captures> StepGraph<D> {
    /// Queues the step on the arena's stream. `&mut` proves that no scope is open, so the step cannot write into
    /// the buffers of an open scope:
    ///
    /// ```compile_fail,E0499
    /// use arena_core::device::Deferred;
    /// use arena_scope::{Arena, ByteSize, Error, ScopeOptions};
    ///
    /// let mut arena = Arena::builder(Deferred::new(0)).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| step.alloc_zeroed::<u8>(256).map(drop))?;
    /// let graph = arena.capture(ScopeOptions::default(), |step| step.alloc_zeroed::<u8>(256).map(drop))?;
    /// let mut guard = arena.enter()?;
    /// let buffer = guard.scope().upload(&[7_u8; 256])?;
    /// graph.replay(&mut arena)?; // would clear `buffer`
    /// guard.close()?;
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::StaleGraph`] in four cases: `arena` is not the arena of the capture; it was
    /// [paused](Arena::pause) without keeping its buffers; a later step of the same name and variant had another
    /// signature or plan; or buffers were kept since then where the step has its transient buffers. Nothing is
    /// launched then. [`ErrorKind::Paused`] while it is paused. Otherwise the device's refusal, or an error that an
    /// earlier close left behind.
    pub fn replay(&self, arena: &mut Arena<D>) -> Result<(), Error> {
        arena.state.settle_all();
        let state = &arena.state;
        state.steps.ready()?;
        let region = state.steps.region();
        let stale = |reason: String| Err(ErrorKind::StaleGraph { reason }.into());
        if !self.pin.is_of(region) {
            return stale("it was captured on another arena".to_owned());
        }
        if self.life != region.lives() {
            return stale("the arena was paused since then without keeping its buffers".to_owned());
        }
        let stats = state.steps.stats();
        let latest = state.kinds.borrow().get(self.key).and_then(|kind| kind.captured.latest);
        if latest != Some(self.signature) {
            let (name, then) = (self.key.name, self.signature);
            let now = latest.map_or_else(|| "none".to_owned(), |latest| latest.to_string());
            return stale(format!("the signature of `{name}` was {then} and is {now}"));
        }
        let floor_bytes = stats.used_bytes + stats.free_bytes;
        if floor_bytes < self.high_water_bytes {
            let high = self.high_water_bytes;
            return stale(format!(
                "buffers are kept from {floor_bytes} bytes on, and the step goes up to {high}"
            ));
        }
        // What a stream still does with a persistent buffer, it began before this step.
        state.steps.wait_for_declared()?;
        // SAFETY: by the numbers of `launch`. 1: the graph was captured on this region's device, for it is
        // this region that is pinned, and the pin holds its memory; the arena holds that of its placement.
        // 2: no scope is open, so no transient buffer is alive; what the step had of its own lies below its
        // high-water, and what is kept lies above; the bytes of persistent buffers that the step used are
        // not given to another one while the region is pinned. 3: the streams of earlier scopes were waited for
        // when those closed, and those that are declared for good just now.
        Ok(unsafe { region.device().launch(&self.graph) }?)
    }

    /// The signature that the step had.
    #[must_use]
    pub fn signature(&self) -> StepSignature {
        self.signature
    }

    /// The highest cursor of the step, in bytes from the base.
    #[must_use]
    pub fn high_water_bytes(&self) -> u64 {
        self.high_water_bytes
    }
}

impl<D: Captures> fmt::Debug for StepGraph<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepGraph")
            .field("key", &self.key)
            .field("signature", &self.signature)
            .field("high_water_bytes", &self.high_water_bytes)
            .finish_non_exhaustive()
    }
}
