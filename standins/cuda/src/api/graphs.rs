//! Graphs.

use crate::abi::{Code, Handle, Out};
use crate::driver::{Class, call};
use crate::graph::Graph;
use std::ffi::c_void;

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(graph: Out<Handle>, flags: u32) -> u32 {
    call("cuGraphCreate", Class::Context, |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let context = d.current()?;
        graph.set(d.graphs.add(Graph { nodes: [].into(), context }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> u32 {
    call("cuGraphDestroy", Class::ReleaseAnywhere, |d| d.graphs.remove(graph).map(|_| ()))
}

/// Only the number of nodes; the nodes themselves have no handles here.
#[unsafe(no_mangle)]
extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *const c_void, count: Out<usize>) -> u32 {
    call("cuGraphGetNodes", Class::Context, |d| {
        if !nodes.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        count.set(d.graphs.get(graph)?.nodes.len())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) -> u32 {
    call("cuGraphInstantiateWithFlags", Class::Context, |d| exec.set(d.instantiate(graph, flags)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32 {
    call("cuGraphLaunch", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        d.launch_graph(exec, key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> u32 {
    call("cuGraphUpload", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        if d.streams.get(key)?.capture.is_some() {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        d.graph_execs.get(exec).map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: Handle) -> u32 {
    call("cuGraphExecDestroy", Class::ReleaseAnywhere, |d| d.graph_execs.remove(exec).map(|_| ()))
}
