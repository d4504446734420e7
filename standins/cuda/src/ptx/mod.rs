//! A PTX interpreter: enough of it for kernels that NVRTC writes.
//!
//! Text is taken apart ([`parser`]), each kernel is decoded together with the functions that it calls ([`decode`]), and
//! a launch runs the threads of its blocks in turns ([`block`]), in an order that is drawn ([`order`]). What is not
//! supported is an error with its line when the module is loaded. Subnormal floats are kept also where `.ftz` would
//! flush them, and approximate functions are as exact as the host's unless a test asks for a device's ([`rounding`]).

mod block;
mod compare;
mod convert;
mod decode;
mod decode_instruction;
mod half_scalar;
mod instruction;
mod lexer;
mod machine;
mod memory;
mod order;
mod parser;
mod rounding;
mod scalar;
mod types;
mod warp;

pub(crate) use block::{Conditions, execute};
pub(crate) use order::Order;
pub(crate) use parser::{Parsed, parse};
pub(crate) use rounding::Rounding;

use instruction::{Instruction, Register};
use std::collections::BTreeMap;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Blocks in x, y and z.
    pub(crate) blocks: [u32; 3],
    /// Threads of a block in x, y and z.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) dynamic_shared: u64,
}

/// Why a module cannot be loaded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PtxError {
    #[error("PTX line {line}: {wanted} expected, found `{found}`")]
    Syntax { line: u32, wanted: &'static str, found: String },
    #[error("PTX line {line}: {what} is not supported by the stand-in")]
    Unsupported { line: u32, what: String },
    #[error("PTX line {line}: `{name}` is not declared")]
    Undeclared { line: u32, name: String },
}

/// What stopped a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    IllegalAddress,
    Misaligned,
    Trap,
    Assert,
    /// Threads wait for each other, or a thread never ends.
    Stuck,
}

/// What stopped a kernel, and where: thread, block and line.
#[derive(Debug)]
pub(crate) struct KernelFault {
    pub(crate) kind: FaultKind,
    pub(crate) text: String,
}

/// The kernels of a module.
#[derive(Debug)]
pub(crate) struct Program {
    kernels: Vec<Kernel>,
}

impl Program {
    pub(crate) fn kernel(&self, index: usize) -> &Kernel {
        &self.kernels[index]
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.functions[0].name == name)
    }
}

/// Where a parameter lies among the argument bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A kernel with everything that it calls.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: u64,
    /// Static shared memory, in bytes.
    pub(crate) shared_bytes: u64,
    /// Local memory of a thread, the deepest call not included, in bytes.
    pub(crate) local_bytes: u64,
    pub(crate) register_count: u32,
    pub(crate) max_threads: Option<u32>,
    /// No thread can tell itself from another one of its block, and none waits for or counts on another.
    threads_are_alike: bool,
    /// The kernel itself, then what it calls.
    functions: Vec<Code>,
}

/// A decoded function.
#[derive(Debug)]
struct Code {
    name: String,
    instructions: Vec<Instruction>,
    /// The line of each instruction.
    lines: Vec<u32>,
    /// What registers hold when a call begins: constants, and zeros for the rest.
    registers: Vec<u64>,
    specials: Vec<(Register, Special)>,
    parameter_bytes: usize,
    local_bytes: usize,
}

/// Special registers, and addresses that are known only at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Special {
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    Lane,
    Warp,
    Warps,
    /// Lanes equal, below, up to, above, from this one on.
    LaneMask(LaneMask),
    /// Where dynamic shared memory begins.
    DynamicShared,
    DynamicSharedBytes,
    /// Registers that say nothing here: multiprocessor, grid number.
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LaneMask {
    Equal,
    Below,
    UpTo,
    Above,
    From,
}

/// Decodes every kernel of a module whose variables lie at these addresses.
pub(crate) fn decode(
    parsed: &Parsed<'_>,
    addresses: &BTreeMap<&str, u64>,
) -> Result<Program, PtxError> {
    let kernels = parsed.functions.iter().filter(|function| function.is_kernel);
    let kernels = kernels
        .map(|kernel| decode::kernel(parsed, kernel, addresses))
        .collect::<Result<_, _>>()?;
    Ok(Program { kernels })
}
