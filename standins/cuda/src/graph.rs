//! Graphs: captured operations that can be queued again and again.

use crate::abi::{Code, CuResult, Handle};
use crate::capture::Node;
use crate::driver::Driver;
use crate::schedule::{OpId, Queued};
use crate::work::Work;
use std::sync::Arc;

/// Captured operations.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Arc<[Node]>,
    pub(crate) context: Handle,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct GraphExec {
    pub(crate) nodes: Arc<[Node]>,
    pub(crate) context: Handle,
    /// The end of its last launch: one instance never runs beside itself.
    last: Option<OpId>,
}

/// Instantiation flags that a driver knows: auto free, upload, device launch, node priority.
const KNOWN_FLAGS: u64 = 1 | 2 | 4 | 8;
const DEVICE_LAUNCH: u64 = 4;

impl Driver {
    /// `cuGraphInstantiate`.
    pub(crate) fn instantiate(&mut self, graph: Handle, flags: u64) -> CuResult<Handle> {
        if flags & !KNOWN_FLAGS != 0 || (flags & DEVICE_LAUNCH != 0 && flags & 1 != 0) {
            return Err(Code::INVALID_VALUE);
        }
        let Graph { nodes, context } = self.graphs.get(graph)?;
        let exec = GraphExec { nodes: nodes.clone(), context: *context, last: None };
        Ok(self.graph_execs.add(exec))
    }

    /// `cuGraphLaunch`: all nodes behind what the stream holds, and the stream's next work behind all nodes.
    pub(crate) fn launch_graph(&mut self, exec: Handle, key: Handle) -> CuResult<()> {
        let GraphExec { nodes, context, last } = self.graph_execs.get(exec)?;
        let (nodes, context, last) = (nodes.clone(), *context, *last);
        self.refuse_implicit_dependency(key)?;
        if self.streams.get(key)?.capture.is_some() {
            return self.capture_graph(key, &nodes);
        }
        self.sound(context)?;
        self.sound(self.streams.get(key)?.context)?;
        let mut before = self.stream_order(key)?;
        before.extend(last);
        let mut ops: Vec<OpId> = Vec::with_capacity(nodes.len());
        for node in nodes.iter() {
            let queued = Queued { context, stream: key, work: node.work.clone() };
            let after = before.iter().copied().chain(node.after.iter().map(|n| ops[*n]));
            ops.push(self.schedule.submit(queued, after));
        }
        let end = self.schedule.submit(
            Queued { context, stream: key, work: Work::Marker },
            ops.into_iter().chain(before),
        );
        self.streams.get_mut(key)?.last = Some(end);
        self.graph_execs.get_mut(exec)?.last = Some(end);
        self.settle(end);
        Ok(())
    }
}
