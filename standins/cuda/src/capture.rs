//! Capturing streams into graphs, with what a real driver refuses meanwhile.

use crate::abi::{Code, CuResult, Handle};
use crate::driver::Driver;
use crate::work::Work;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::thread::ThreadId;

/// Number of a capture; never used twice.
pub(crate) type CaptureId = u64;

/// How far a capture forbids calls that could spoil it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl CaptureMode {
    pub(crate) fn from_raw(raw: u32) -> CuResult<Self> {
        match raw {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

thread_local! {
    /// How this thread looks at captures of others; `cuThreadExchangeStreamCaptureMode` changes it.
    static THREAD_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets this thread's mode and gives the former one.
pub(crate) fn exchange_thread_mode(mode: CaptureMode) -> CaptureMode {
    THREAD_MODE.replace(mode)
}

/// An operation of a graph, and the earlier nodes that it follows.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// A graph in the making.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: CaptureId,
    origin: Handle,
    mode: CaptureMode,
    thread: ThreadId,
    nodes: Vec<Node>,
    invalid: bool,
}

impl Driver {
    /// A capture that is still good.
    pub(crate) fn capture(&mut self, id: CaptureId) -> CuResult<&mut Capture> {
        let capture = self
            .captures
            .iter_mut()
            .find(|capture| capture.id == id)
            .ok_or(Code::CAPTURED_EVENT)?;
        if capture.invalid { Err(Code::STREAM_CAPTURE_INVALIDATED) } else { Ok(capture) }
    }

    /// Spoils a capture; its end will report it.
    pub(crate) fn invalidate(&mut self, id: CaptureId) {
        if let Some(capture) = self.captures.iter_mut().find(|capture| capture.id == id) {
            capture.invalid = true;
        }
    }

    /// Whether the capture has been spoilt.
    pub(crate) fn is_invalid(&self, id: CaptureId) -> bool {
        self.captures.iter().any(|capture| capture.id == id && capture.invalid)
    }

    /// Refuses calls that allocate, free or synchronise while a capture forbids them to this thread.
    pub(crate) fn refuse_in_capture(&mut self) -> CuResult<()> {
        let here = std::thread::current().id();
        let mode = THREAD_MODE.get();
        let forbids = |capture: &&mut Capture| match mode {
            CaptureMode::Relaxed => false,
            CaptureMode::ThreadLocal => {
                capture.thread == here && capture.mode != CaptureMode::Relaxed
            }
            CaptureMode::Global => {
                capture.mode == CaptureMode::Global
                    || capture.thread == here && capture.mode != CaptureMode::Relaxed
            }
        };
        let mut refused = false;
        for capture in self.captures.iter_mut().filter(forbids) {
            capture.invalid = true;
            refused = true;
        }
        if refused { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Starts to capture a stream.
    pub(crate) fn begin_capture(&mut self, key: Handle, mode: CaptureMode) -> CuResult<()> {
        let stream = self.streams.get(key)?;
        self.sound(stream.context)?;
        if self.contexts.get(stream.context)?.null_stream == key {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let id = crate::table::fresh_handle();
        let thread = std::thread::current().id();
        self.captures.push(Capture {
            id,
            origin: key,
            mode,
            thread,
            nodes: Vec::new(),
            invalid: false,
        });
        let stream = self.streams.get_mut(key)?;
        stream.capture = Some(id);
        stream.tail.clear();
        Ok(())
    }

    /// Ends a capture and gives its nodes.
    pub(crate) fn end_capture(&mut self, key: Handle) -> CuResult<Vec<Node>> {
        let id = self.streams.get(key)?.capture.ok_or(Code::ILLEGAL_STATE)?;
        let at =
            self.captures.iter().position(|capture| capture.id == id).ok_or(Code::ILLEGAL_STATE)?;
        let capture = &mut self.captures[at];
        if capture.origin != key {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.remove(at);
        let tail = std::mem::take(&mut self.streams.get_mut(key)?.tail);
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
            stream.tail.clear();
        }
        if capture.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if has_unjoined_nodes(&capture.nodes, &tail) {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(capture.nodes)
    }

    /// Appends an operation to the graph that the stream is capturing.
    pub(crate) fn capture_node(&mut self, key: Handle, work: Work) -> CuResult<()> {
        self.capture_graph(key, &[Node { work, after: Vec::new() }])
    }

    /// Appends a whole graph behind what the stream has captured so far.
    pub(crate) fn capture_graph(&mut self, key: Handle, nodes: &[Node]) -> CuResult<()> {
        let stream = self.streams.get(key)?;
        let id = stream.capture.ok_or(Code::ILLEGAL_STATE)?;
        let tail = stream.tail.clone();
        let capture = self.capture(id)?;
        let offset = capture.nodes.len();
        let mut ends: BTreeSet<usize> = (offset..offset + nodes.len()).collect();
        for node in nodes {
            let after: Vec<usize> = match node.after.is_empty() {
                true => tail.clone(),
                false => node.after.iter().map(|n| n + offset).collect(),
            };
            after.iter().for_each(|n| {
                ends.remove(n);
            });
            capture.nodes.push(Node { work: node.work.clone(), after });
        }
        if !nodes.is_empty() {
            self.streams.get_mut(key)?.tail = ends.into_iter().collect();
        }
        Ok(())
    }

    /// Draws another stream into a capture, through an event that was recorded in it.
    pub(crate) fn join_capture(
        &mut self,
        key: Handle,
        id: CaptureId,
        nodes: Vec<usize>,
    ) -> CuResult<()> {
        self.capture(id)?;
        let context = self.streams.get(key)?.context;
        if self.contexts.get(context)?.null_stream == key {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        let stream = self.streams.get_mut(key)?;
        stream.capture = Some(id);
        stream.tail = nodes;
        Ok(())
    }

    /// Drops a capture whose stream goes away.
    pub(crate) fn abandon_captures(&mut self, key: Handle) {
        let gone: Vec<CaptureId> = self
            .captures
            .iter()
            .filter(|capture| capture.origin == key)
            .map(|capture| capture.id)
            .collect();
        self.captures.retain(|capture| capture.origin != key);
        for stream in
            self.streams.values_mut().filter(|s| s.capture.is_some_and(|id| gone.contains(&id)))
        {
            stream.capture = None;
            stream.tail.clear();
        }
    }
}

/// Whether some node has no path to the last ones of the origin stream.
fn has_unjoined_nodes(nodes: &[Node], tail: &[usize]) -> bool {
    let mut joined = vec![false; nodes.len()];
    let mut open: Vec<usize> = tail.to_vec();
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut joined[node], true) {
            open.extend_from_slice(&nodes[node].after);
        }
    }
    joined.contains(&false)
}
