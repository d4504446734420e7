//! Contexts, and which one is current on a thread.

use crate::abi::{Code, CuResult, Handle};
use crate::driver::Driver;
use crate::memory::Kind;
use crate::stream::Stream;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::thread::ThreadId;

/// What belongs together and dies together.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) primary: bool,
    /// The error that this context will report from now on.
    pub(crate) sticky: Option<Code>,
    pub(crate) null_stream: Handle,
    pub(crate) thread_streams: HashMap<ThreadId, Handle>,
    pub(crate) flags: u32,
    pub(crate) cache_config: u32,
    pub(crate) limits: BTreeMap<u32, u64>,
    /// Contexts whose memory this one may touch.
    pub(crate) peers: Vec<Handle>,
}

thread_local! {
    /// Current contexts of this thread, the top one last, and the generation of the driver that they are from.
    static CURRENT: RefCell<(u64, Vec<Handle>)> = const { RefCell::new((0, Vec::new())) };
}

impl Driver {
    fn with_current<R>(&self, body: impl FnOnce(&mut Vec<Handle>) -> R) -> R {
        CURRENT.with_borrow_mut(|(generation, stack)| {
            if *generation != self.generation {
                *generation = self.generation;
                stack.clear();
            }
            body(stack)
        })
    }

    /// The current context of this thread, or 0.
    pub(crate) fn current_or_none(&self) -> Handle {
        self.with_current(|stack| stack.last().copied().unwrap_or(0))
    }

    /// The current context of this thread, which must be alive.
    pub(crate) fn current(&self) -> CuResult<Handle> {
        match self.current_or_none() {
            0 => Err(Code::INVALID_CONTEXT),
            context => {
                self.contexts.get(context).map(|_| context).map_err(|_| Code::CONTEXT_IS_DESTROYED)
            }
        }
    }

    /// The device of the current context.
    pub(crate) fn current_device(&self) -> CuResult<usize> {
        Ok(self.contexts.get(self.current()?)?.device)
    }

    /// Replaces the top of this thread's stack; 0 pops it.
    pub(crate) fn set_current(&mut self, context: Handle) -> CuResult<()> {
        self.known_context(context)?;
        self.with_current(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    /// Puts a context on top of this thread's stack.
    pub(crate) fn push_current(&mut self, context: Handle) -> CuResult<()> {
        self.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        self.with_current(|stack| stack.push(context));
        Ok(())
    }

    /// Takes the top of this thread's stack.
    pub(crate) fn pop_current(&mut self) -> CuResult<Handle> {
        self.with_current(Vec::pop).ok_or(Code::INVALID_CONTEXT)
    }

    fn known_context(&self, context: Handle) -> CuResult<()> {
        if context == 0 || self.contexts.get(context).is_ok() {
            Ok(())
        } else {
            Err(Code::INVALID_CONTEXT)
        }
    }

    /// A context with its null stream.
    pub(crate) fn create_context(
        &mut self,
        device: usize,
        primary: bool,
        flags: u32,
    ) -> CuResult<Handle> {
        let context = self.contexts.add(Context {
            device,
            primary,
            sticky: None,
            null_stream: 0,
            thread_streams: HashMap::new(),
            flags,
            cache_config: 0,
            limits: BTreeMap::from([(0, 1024), (1, 1 << 20), (2, 8 << 20)]),
            peers: Vec::new(),
        });
        let null = self.streams.add(Stream::new(context, 0, 0, true));
        self.contexts.get_mut(context)?.null_stream = null;
        Ok(context)
    }

    /// Takes the reference of one retain; the last one destroys the primary context.
    pub(crate) fn release_primary(&mut self, device: usize) -> CuResult<()> {
        let slot = &mut self.devices[device];
        let context = slot.primary.ok_or(Code::INVALID_CONTEXT)?;
        slot.retains -= 1;
        if slot.retains == 0 {
            slot.primary = None;
            return self.destroy_context(context);
        }
        Ok(())
    }

    /// Destroys a context and all that it holds. What the caller had not released itself is remembered as leaked.
    pub(crate) fn destroy_context(&mut self, context: Handle) -> CuResult<()> {
        self.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        self.run_until(|d| !d.schedule.is_busy(context));
        let before = self.live();
        for key in self
            .streams
            .iter()
            .filter(|(_, s)| s.context == context)
            .map(|(key, _)| key)
            .collect::<Vec<_>>()
        {
            self.abandon_captures(key);
            self.streams.remove(key)?;
        }
        self.events.retain(|_, event| event.context != context);
        self.graph_execs.retain(|_, exec| exec.context != context);
        let modules: Vec<Handle> =
            self.modules.iter().filter(|(_, m)| m.context == context).map(|(key, _)| key).collect();
        for module in modules {
            self.unload_module(module)?;
        }
        let owned = |kind: Kind| {
            matches!(
                kind,
                Kind::Plain
                    | Kind::Pooled(_)
                    | Kind::Managed { .. }
                    | Kind::Pinned { .. }
                    | Kind::Registered
            )
        };
        let blocks: Vec<_> = self
            .memory
            .blocks()
            .filter(|b| b.context == context && owned(b.kind))
            .map(|b| b.base)
            .collect();
        for base in blocks {
            match self.memory.at(base).map(|block| block.kind) {
                Some(Kind::Pooled(_)) => self.release_pooled(base)?,
                _ => self.memory.remove(base).map(|_| ())?,
            }
        }
        self.contexts.remove(context)?;
        let after = self.live();
        self.abandoned = self.abandoned.plus(&before.minus(&after));
        Ok(())
    }

    /// The device of a context, and the devices whose memory its kernels may touch.
    pub(crate) fn device_and_peers(&self, context: Handle) -> (usize, Vec<usize>) {
        let Ok(context) = self.contexts.get(context) else { return (0, Vec::new()) };
        let peers = context
            .peers
            .iter()
            .filter_map(|peer| self.contexts.get(*peer).ok())
            .map(|peer| peer.device);
        (context.device, peers.collect())
    }
}
