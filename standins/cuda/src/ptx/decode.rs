//! Kernels by name into kernels by number: registers, constants, addresses and labels.

use super::instruction::{Instruction, NONE, Op, Place, Register, Space};
use super::parser::{Function, Operand, Parsed, StatementKind, Storage};
use super::{Code, Kernel, LaneMask, Parameter, PtxError, Special};
use std::collections::{BTreeMap, HashMap};

/// What the functions of one kernel share.
pub(super) struct Scope<'p, 'a> {
    parsed: &'p Parsed<'a>,
    addresses: &'p BTreeMap<&'p str, u64>,
    /// Offsets of the shared variables that the kernel uses.
    shared: HashMap<&'a str, u64>,
    shared_bytes: u64,
    /// The kernel and what it calls, in the order in which the calls were met.
    functions: Vec<&'p Function<'a>>,
}

/// Decodes a kernel and the functions that it calls.
pub(super) fn kernel<'p, 'a>(
    parsed: &'p Parsed<'a>,
    kernel: &'p Function<'a>,
    addresses: &'p BTreeMap<&'p str, u64>,
) -> Result<Kernel, PtxError> {
    let mut scope = Scope {
        parsed,
        addresses,
        shared: HashMap::new(),
        shared_bytes: 0,
        functions: vec![kernel],
    };
    let mut functions = Vec::new();
    while let Some(function) = scope.functions.get(functions.len()).copied() {
        functions.push(Body::new(&mut scope, function).decode()?);
    }
    let (offsets, parameter_bytes) = layout(&kernel.parameters, 0);
    let parameters =
        kernel.parameters.iter().map(|p| Parameter { offset: offsets[p.name], bytes: p.bytes });
    Ok(Kernel {
        parameters: parameters.collect(),
        parameter_bytes,
        shared_bytes: scope.shared_bytes,
        local_bytes: functions.iter().map(|code| code.local_bytes as u64).sum(),
        register_count: functions[0].registers.len() as u32,
        max_threads: kernel.max_threads,
        threads_are_alike: functions.iter().all(threads_are_alike),
        functions,
    })
}

/// Whether nothing in a function is different for each thread of a block, or needs others.
fn threads_are_alike(code: &Code) -> bool {
    let personal = |special: &Special| {
        matches!(special, Special::Thread(_) | Special::Lane | Special::Warp | Special::LaneMask(_))
    };
    let meets =
        |op: &Op| matches!(op, Op::Atomic(_) | Op::Barrier(_) | Op::Warp(_) | Op::Clock { .. });
    !code.specials.iter().any(|(_, special)| personal(special))
        && !code.instructions.iter().any(|instruction| meets(&instruction.op))
}

/// Offsets by name, one after another from `start` on, and the end.
fn layout<'a>(storage: &[Storage<'a>], start: u64) -> (HashMap<&'a str, u64>, u64) {
    let mut offsets: HashMap<&str, u64> = HashMap::new();
    let mut sizes: HashMap<&str, u64> = HashMap::new();
    let mut end = start;
    // A call sequence declares its parameters anew each time, under the same names: the largest counts.
    for one in storage {
        let size = sizes.entry(one.name).or_default();
        *size = one.bytes.max(*size);
    }
    for one in storage {
        if !offsets.contains_key(one.name) {
            let offset = end.next_multiple_of(one.align.max(8));
            offsets.insert(one.name, offset);
            end = offset + sizes[one.name];
        }
    }
    (offsets, end)
}

/// A kernel's parameters are packed by their own alignment, as a caller passes them.
fn parameters_of<'a>(function: &Function<'a>) -> (HashMap<&'a str, u64>, u64) {
    let own: Vec<Storage<'a>> = (function.parameters.iter().chain(&function.results).copied())
        .chain(function.storage.iter().filter(|s| s.space == ".param").copied())
        .collect();
    layout(&own, 0)
}

/// One function being decoded.
pub(super) struct Body<'s, 'p, 'a> {
    scope: &'s mut Scope<'p, 'a>,
    function: &'p Function<'a>,
    names: HashMap<&'a str, Register>,
    constants: HashMap<u64, Register>,
    specials: BTreeMap<Special, Register>,
    registers: Vec<u64>,
    parameters: HashMap<&'a str, u64>,
    parameter_bytes: u64,
    locals: HashMap<&'a str, u64>,
    local_bytes: u64,
    pub(super) code: Vec<Instruction>,
    lines: Vec<u32>,
    labels: HashMap<&'a str, u32>,
    /// Branches that have met no label yet: instruction and label.
    open: Vec<(usize, &'a str, u32)>,
    /// Targets of indexed branches by label.
    pub(super) target_lists: HashMap<&'a str, Vec<&'a str>>,
    pub(super) line: u32,
    pub(super) guard: (Register, bool),
}

impl<'s, 'p, 'a> Body<'s, 'p, 'a> {
    fn new(scope: &'s mut Scope<'p, 'a>, function: &'p Function<'a>) -> Self {
        let (parameters, parameter_bytes) = parameters_of(function);
        let own: Vec<_> =
            function.storage.iter().filter(|s| s.space == ".local").copied().collect();
        let (locals, local_bytes) = layout(&own, 0);
        Self {
            scope,
            function,
            names: HashMap::new(),
            constants: HashMap::new(),
            specials: BTreeMap::new(),
            registers: Vec::new(),
            parameters,
            parameter_bytes,
            locals,
            local_bytes,
            code: Vec::new(),
            lines: Vec::new(),
            labels: HashMap::new(),
            open: Vec::new(),
            target_lists: HashMap::new(),
            line: 0,
            guard: (NONE, false),
        }
    }

    fn decode(mut self) -> Result<Code, PtxError> {
        let function = self.function;
        self.find_target_lists();
        for statement in &function.statements {
            self.line = statement.line;
            match &statement.kind {
                StatementKind::Label(name) => {
                    self.labels.insert(name, self.code.len() as u32);
                }
                StatementKind::Targets(_) => {}
                StatementKind::Instruction { guard, opcode, operands } => {
                    self.guard = match guard {
                        Some((name, negated)) => (self.source(&Operand::Name(name))?, *negated),
                        None => (NONE, false),
                    };
                    let op = self.instruction(opcode, operands)?;
                    self.push(op);
                }
            }
        }
        self.guard = (NONE, false);
        // A body may end without a return.
        self.push(Op::Return);
        self.close_branches()?;
        Ok(Code {
            name: function.name.to_owned(),
            instructions: self.code,
            lines: self.lines,
            registers: self.registers,
            specials: self
                .specials
                .into_iter()
                .map(|(special, register)| (register, special))
                .collect(),
            parameter_bytes: self.parameter_bytes as usize,
            local_bytes: self.local_bytes.next_multiple_of(16) as usize,
        })
    }

    fn find_target_lists(&mut self) {
        for pair in self.function.statements.windows(2) {
            if let (StatementKind::Label(label), StatementKind::Targets(targets)) =
                (&pair[0].kind, &pair[1].kind)
            {
                let names = targets
                    .iter()
                    .filter_map(|t| if let Operand::Name(name) = t { Some(*name) } else { None });
                self.target_lists.insert(label, names.collect());
            }
        }
    }

    /// Appends an instruction under the current guard.
    pub(super) fn push(&mut self, op: Op) {
        let (guard, negated) = self.guard;
        self.code.push(Instruction { guard, negated, op });
        self.lines.push(self.line);
    }

    /// A branch to a label that may come later.
    pub(super) fn branch(&mut self, label: &'a str) -> Op {
        self.open.push((self.code.len(), label, self.line));
        Op::Branch { to: 0 }
    }

    fn label(&self, name: &str, line: u32) -> Result<u32, PtxError> {
        self.labels
            .get(name)
            .copied()
            .ok_or_else(|| PtxError::Undeclared { line, name: name.to_owned() })
    }

    fn close_branches(&mut self) -> Result<(), PtxError> {
        for (at, label, line) in std::mem::take(&mut self.open) {
            let op = match &self.code[at].op {
                Op::IndexedBranch { index, .. } => {
                    let names =
                        self.target_lists.get(label).ok_or_else(|| self.undeclared(label))?;
                    let targets = names
                        .iter()
                        .map(|name| self.label(name, line))
                        .collect::<Result<_, _>>()?;
                    Op::IndexedBranch { index: *index, targets }
                }
                _ => Op::Branch { to: self.label(label, line)? },
            };
            self.code[at].op = op;
        }
        Ok(())
    }

    /// An indexed branch whose list of targets has this label.
    pub(super) fn indexed_branch(&mut self, index: Register, list: &'a str) -> Op {
        self.open.push((self.code.len(), list, self.line));
        Op::IndexedBranch { index, targets: Box::new([]) }
    }

    fn new_register(&mut self, value: u64) -> Register {
        self.registers.push(value);
        (self.registers.len() - 1) as Register
    }

    /// A register that always holds this number.
    pub(super) fn constant(&mut self, value: u64) -> Register {
        if let Some(register) = self.constants.get(&value) {
            return *register;
        }
        let register = self.new_register(value);
        self.constants.insert(value, register);
        register
    }

    fn special(&mut self, special: Special) -> Register {
        if let Some(register) = self.specials.get(&special) {
            return *register;
        }
        let register = self.new_register(0);
        self.specials.insert(special, register);
        register
    }

    /// The register of a name that is declared as one; `_` is a place where results are lost.
    pub(super) fn register(&mut self, name: &'a str) -> Option<Register> {
        if !self.function.has_register(name) && !name.starts_with("standin.") && name != "_" {
            return None;
        }
        if let Some(register) = self.names.get(name) {
            return Some(*register);
        }
        let register = self.new_register(0);
        self.names.insert(name, register);
        Some(register)
    }

    /// A register of the decoder's own, which no program can name.
    pub(super) fn scratch(&mut self, name: &'a str) -> Register {
        match self.register(name) {
            Some(register) => register,
            None => self.new_register(0),
        }
    }

    pub(super) fn undeclared(&self, name: &str) -> PtxError {
        PtxError::Undeclared { line: self.line, name: name.to_owned() }
    }

    pub(super) fn unsupported(&self, what: impl Into<String>) -> PtxError {
        PtxError::Unsupported { line: self.line, what: what.into() }
    }

    /// Where a variable lies: its space, and a register and constant that together are its address.
    fn symbol(&mut self, name: &'a str) -> Result<Place, PtxError> {
        let place = |space, offset: u64| Place { space, base: NONE, offset: offset as i64 };
        if let Some(address) = self.scope.addresses.get(name) {
            return Ok(place(Space::Global, *address));
        }
        if let Some(offset) = self.parameters.get(name) {
            return Ok(place(Space::Param, *offset));
        }
        if let Some(offset) = self.locals.get(name) {
            return Ok(place(Space::Local, *offset));
        }
        if let Some(offset) = self.scope.shared.get(name) {
            return Ok(place(Space::Shared, *offset));
        }
        let own = self.function.storage.iter().chain(&self.scope.parsed.shared);
        let Some(storage) = own.filter(|s| s.space == ".shared").find(|s| s.name == name).copied()
        else {
            return Err(self.undeclared(name));
        };
        if storage.bytes == 0 {
            return Ok(Place {
                space: Space::Shared,
                base: self.special(Special::DynamicShared),
                offset: 0,
            });
        }
        let offset = self.scope.shared_bytes.next_multiple_of(storage.align);
        self.scope.shared_bytes = offset + storage.bytes;
        self.scope.shared.insert(name, offset);
        Ok(place(Space::Shared, offset))
    }

    /// The register that holds an operand's value.
    pub(super) fn source(&mut self, operand: &Operand<'a>) -> Result<Register, PtxError> {
        match operand {
            Operand::Number(bits) => Ok(self.constant(*bits)),
            Operand::Name(name) => {
                if let Some(register) = self.register(name) {
                    return Ok(register);
                }
                if CLOCKS.contains(name) {
                    let to = self.scratch("standin.clock");
                    self.push(Op::Clock { to });
                    return Ok(to);
                }
                if let Some(special) = special(name) {
                    return Ok(self.special(special));
                }
                if *name == "WARP_SZ" {
                    return Ok(self.constant(32));
                }
                self.symbol_address(name, 0)
            }
            Operand::Sum(name, offset) => self.symbol_address(name, *offset),
            Operand::Not(_)
            | Operand::Address(..)
            | Operand::Vector(_)
            | Operand::List(_)
            | Operand::Pair(..) => Err(self.unsupported(format!("the operand {operand:?}"))),
        }
    }

    /// A variable's address, which for local memory takes an instruction.
    fn symbol_address(&mut self, name: &'a str, offset: i64) -> Result<Register, PtxError> {
        let place = self.symbol(name)?;
        match (place.space, place.base) {
            (Space::Local, _) => {
                let to = self.scratch("standin.local");
                self.push(Op::LocalAddress { to, offset: (place.offset + offset) as u32 });
                Ok(to)
            }
            (_, NONE) => Ok(self.constant((place.offset + offset) as u64)),
            (_, base) if offset == 0 => Ok(base),
            _ => Err(self.unsupported("a constant beyond the start of dynamic shared memory")),
        }
    }

    /// A register that an instruction writes.
    pub(super) fn target(&mut self, operand: &Operand<'a>) -> Result<Register, PtxError> {
        match operand {
            Operand::Name(name) => self.register(name).ok_or_else(|| self.undeclared(name)),
            _ => Err(self.unsupported(format!("the result {operand:?}"))),
        }
    }

    /// The registers of a vector, or the one register.
    pub(super) fn each(
        &mut self,
        operand: &Operand<'a>,
        write: bool,
    ) -> Result<Box<[Register]>, PtxError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        parts.iter().map(|part| if write { self.target(part) } else { self.source(part) }).collect()
    }

    /// The place that an address operand means.
    pub(super) fn place(&mut self, operand: &Operand<'a>, space: Space) -> Result<Place, PtxError> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.unsupported(format!("the address {operand:?}")));
        };
        match **base {
            Operand::Number(bits) => {
                Ok(Place { space, base: NONE, offset: (bits as i64).wrapping_add(*offset) })
            }
            Operand::Name(name) => {
                if let Some(base) = self.register(name) {
                    return Ok(Place { space, base, offset: *offset });
                }
                let found = self.symbol(name)?;
                if found.space == Space::Local {
                    let base = self.symbol_address(name, 0)?;
                    return Ok(Place { space: Space::Local, base, offset: *offset });
                }
                Ok(Place { offset: found.offset + offset, ..found })
            }
            _ => Err(self.unsupported(format!("the address {operand:?}"))),
        }
    }

    /// The number of a function that is called, and the offsets of its parameters and results.
    pub(super) fn callee(
        &mut self,
        name: &str,
    ) -> Option<(usize, &'p Function<'a>, HashMap<&'a str, u64>)> {
        let callee = self.scope.parsed.functions.iter().find(|f| !f.is_kernel && f.name == name)?;
        let known = self.scope.functions.iter().position(|f| f.name == name);
        let index = known.unwrap_or_else(|| {
            self.scope.functions.push(callee);
            self.scope.functions.len() - 1
        });
        Some((index, callee, parameters_of(callee).0))
    }

    /// The offset and size of one of this function's own parameter variables.
    pub(super) fn parameter(&self, name: &str) -> Option<u64> {
        self.parameters.get(name).copied()
    }
}

/// Registers that go on while a thread runs. The upper half of a short clock stays 0.
const CLOCKS: [&str; 4] = ["%clock", "%clock64", "%globaltimer", "%globaltimer_lo"];

/// The special register of a name.
fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    let (stem, rest) = name.split_once('.').unwrap_or((name, ""));
    Some(match stem {
        "%tid" => Special::Thread(axis(rest)?),
        "%ntid" => Special::BlockSize(axis(rest)?),
        "%ctaid" => Special::Block(axis(rest)?),
        "%nctaid" => Special::GridSize(axis(rest)?),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Below),
        "%lanemask_le" => Special::LaneMask(LaneMask::UpTo),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Above),
        "%lanemask_ge" => Special::LaneMask(LaneMask::From),
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%smid" | "%gridid" | "%clock_hi" | "%globaltimer_hi" => Special::Zero,
        _ => return None,
    })
}
