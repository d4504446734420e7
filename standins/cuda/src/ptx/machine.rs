//! One thread, run until it has to meet others.

use super::instruction::{
    Atomic, AtomicOp, Carry, CompareJoin, Instruction, Join, Load, NONE, Op, Place, Space, Store,
};
use super::memory::{Global, Refusal, Spaces};
use super::rounding::Rounding;
use super::types::Type;
use super::{FaultKind, Kernel};

/// A call that has not returned.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) function: usize,
    pub(super) pc: usize,
    pub(super) registers: Vec<u64>,
    parameters: Vec<u8>,
    local_base: usize,
}

impl Frame {
    pub(super) fn new(
        function: usize,
        registers: Vec<u64>,
        parameters: Vec<u8>,
        local_base: usize,
    ) -> Self {
        Self { function, pc: 0, registers, parameters, local_base }
    }
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It can go on.
    Ready,
    /// It waits at a barrier for this many threads (0: all).
    AtBarrier {
        number: u32,
        threads: u32,
    },
    /// It waits at a warp instruction, which its program counter is on.
    AtWarp,
    Done,
}

/// One thread of a block.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) index: [u32; 3],
    pub(super) lane: u32,
    pub(super) warp: u32,
    pub(super) state: State,
    pub(super) frames: Vec<Frame>,
    local: Vec<u8>,
}

/// A thread that cannot go on: why, and on which line.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) kind: FaultKind,
    pub(super) line: u32,
    pub(super) what: String,
}

/// What the threads of a block share.
#[derive(Debug)]
pub(super) struct Machine<'m> {
    pub(super) kernel: &'m Kernel,
    pub(super) global: &'m mut Global,
    pub(super) shared: &'m mut [u8],
    /// Instructions that the block may still run, counted by whole turns.
    pub(super) budget: &'m mut u64,
    /// Instructions that the device has run.
    pub(super) clock: &'m mut u64,
    /// Values of the special registers, by function.
    pub(super) specials: &'m dyn SpecialValues,
    pub(super) rounding: Rounding,
}

/// Gives special registers their values.
pub(super) trait SpecialValues: std::fmt::Debug {
    /// Fills in the special registers of a function for a thread.
    fn fill(&self, function: usize, registers: &mut [u64], thread: &Thread);
}

impl Thread {
    pub(super) fn new(index: [u32; 3], number: u32) -> Self {
        Self {
            index,
            lane: number % 32,
            warp: number / 32,
            state: State::Ready,
            frames: Vec::new(),
            local: Vec::new(),
        }
    }

    /// Begins a call: fresh registers, and local memory above the caller's.
    pub(super) fn enter(
        &mut self,
        kernel: &Kernel,
        specials: &dyn SpecialValues,
        function: usize,
        parameters: Vec<u8>,
    ) {
        let code = &kernel.functions[function];
        let local_base = self.local.len();
        self.local.resize(local_base + code.local_bytes, 0xCB);
        let mut registers = code.registers.clone();
        specials.fill(function, &mut registers, self);
        self.frames.push(Frame::new(function, registers, parameters, local_base));
    }
}

impl Machine<'_> {
    /// The line that a thread stands on.
    pub(super) fn line(&self, thread: &Thread) -> u32 {
        let frame = thread.frames.last();
        frame.and_then(|f| self.kernel.functions[f.function].lines.get(f.pc).copied()).unwrap_or(0)
    }

    /// Runs a thread until it ends, has to wait, or has run `turn` instructions.
    pub(super) fn run(&mut self, thread: &mut Thread, turn: u32) -> Result<(), Stop> {
        let mut left = turn;
        let outcome = self.run_turn(thread, turn, &mut left);
        *self.clock += u64::from(turn - left);
        outcome
    }

    fn run_turn(&mut self, thread: &mut Thread, turn: u32, left: &mut u32) -> Result<(), Stop> {
        while thread.state == State::Ready {
            match self.run_frame(thread, turn, left) {
                Ok(true) => {}
                Ok(false) => {
                    *self.budget = self.budget.saturating_sub(u64::from(turn));
                    if *self.budget == 0 {
                        let what = "is still running after too many instructions".to_owned();
                        return Err(Stop { kind: FaultKind::Stuck, line: self.line(thread), what });
                    }
                    return Ok(());
                }
                Err((kind, what)) => return Err(Stop { kind, line: self.line(thread), what }),
            }
        }
        Ok(())
    }

    /// Runs the topmost call until it calls, returns or waits. False when the turn is over.
    fn run_frame(
        &mut self,
        thread: &mut Thread,
        turn: u32,
        left: &mut u32,
    ) -> Result<bool, (FaultKind, String)> {
        let Some(frame) = thread.frames.last_mut() else {
            thread.state = State::Done;
            return Ok(true);
        };
        let code = &self.kernel.functions[frame.function];
        let registers = &mut frame.registers[..];
        let mut pc = frame.pc;
        let (global, shared) = (&mut *self.global, &mut *self.shared);
        macro_rules! r {
            ($i:expr) => {
                registers[$i as usize]
            };
        }
        macro_rules! spaces {
            () => {
                Spaces {
                    global: &mut *global,
                    shared: &mut *shared,
                    local: &mut thread.local,
                    parameters: &mut frame.parameters,
                }
            };
        }
        // Stores the program counter before anything that leaves the loop.
        macro_rules! leave {
            ($pc:expr, $result:expr) => {{
                frame.pc = $pc;
                return $result;
            }};
        }
        loop {
            if *left == 0 {
                leave!(pc, Ok(false));
            }
            *left -= 1;
            let Instruction { guard, negated, op } = &code.instructions[pc];
            if *guard != NONE && (r!(*guard) & 1 == 1) == *negated {
                pc += 1;
                continue;
            }
            match op {
                Op::Nop => {}
                Op::Move { to, a } => r!(*to) = r!(*a),
                Op::FmaF32 { to, a, b, c } => r!(*to) = fused(r!(*a), r!(*b), r!(*c)),
                Op::AddF32 { to, a, b } => {
                    r!(*to) = u64::from((single(r!(*a)) + single(r!(*b))).to_bits())
                }
                Op::MulF32 { to, a, b } => {
                    r!(*to) = u64::from((single(r!(*a)) * single(r!(*b))).to_bits())
                }
                Op::Add32 { to, a, b } => {
                    r!(*to) = u64::from((r!(*a) as u32).wrapping_add(r!(*b) as u32))
                }
                Op::Add64 { to, a, b } => r!(*to) = r!(*a).wrapping_add(r!(*b)),
                Op::Mad32 { to, a, b, c } => {
                    let product = (r!(*a) as u32).wrapping_mul(r!(*b) as u32);
                    r!(*to) = u64::from(product.wrapping_add(r!(*c) as u32));
                }
                Op::MulWide32 { to, a, b } => {
                    r!(*to) = (i64::from(r!(*a) as i32) * i64::from(r!(*b) as i32)) as u64
                }
                Op::Load32 { to, base, offset, shared } => {
                    let space = if *shared { Space::Shared } else { Space::Global };
                    let address = r!(*base).wrapping_add_signed(i64::from(*offset));
                    let mut spaces = spaces!();
                    match spaces.check(space, address, 4, 1) {
                        Ok((space, at)) => r!(*to) = spaces.read(space, at, 4),
                        Err(refusal) => {
                            leave!(pc, Err(refused(refusal, "reads", 4, space, address)))
                        }
                    }
                }
                Op::Unary { f, to, a } => r!(*to) = f(r!(*a)),
                Op::Approximate { f, to, a } => {
                    let a = r!(*a);
                    r!(*to) = self.rounding.near(f(a), a);
                }
                Op::ApproximateQuotient { f, to, a, b } => {
                    let (a, b) = (r!(*a), r!(*b));
                    r!(*to) = self.rounding.near(f(a, b), a ^ b << 1);
                }
                Op::Clock { to } => r!(*to) = *self.clock + u64::from(turn - *left),
                Op::Binary { f, to, a, b } => r!(*to) = f(r!(*a), r!(*b)),
                Op::Ternary { f, to, a, b, c } => r!(*to) = f(r!(*a), r!(*b), r!(*c)),
                Op::Convert { conversion, to, a } => r!(*to) = conversion.apply(r!(*a)),
                Op::Compare { f, to, also, a, b } => {
                    let holds = f(r!(*a), r!(*b));
                    r!(*to) = holds;
                    if *also != NONE {
                        r!(*also) = holds ^ 1;
                    }
                }
                Op::CompareJoin(compare) => compare_and_join(registers, compare),
                Op::Select { to, a, b, when } => {
                    r!(*to) = if r!(*when) & 1 == 1 { r!(*a) } else { r!(*b) }
                }
                Op::Logic3 { lut, to, a, b, c } => r!(*to) = logic3(*lut, r!(*a), r!(*b), r!(*c)),
                Op::InsertBits(parts, wide) => {
                    let [to, a, b, at, len] = **parts;
                    r!(to) = insert_bits(r!(a), r!(b), r!(at), r!(len), *wide);
                }
                Op::Carry(carry) => add_with_carry(registers, carry),
                Op::Pack { to, parts, bytes } => {
                    let mask = u64::MAX >> (64 - 8 * u32::from(*bytes));
                    let joined = parts.iter().rev().fold(0u64, |value, part| {
                        value.checked_shl(8 * u32::from(*bytes)).unwrap_or(0) | r!(*part) & mask
                    });
                    r!(*to) = joined;
                }
                Op::Unpack { parts, a, bytes } => {
                    let mask = u64::MAX >> (64 - 8 * u32::from(*bytes));
                    let mut value = r!(*a);
                    for part in parts {
                        r!(*part) = value & mask;
                        value = value.checked_shr(8 * u32::from(*bytes)).unwrap_or(0);
                    }
                }
                Op::LocalAddress { to, offset } => {
                    r!(*to) = frame.local_base as u64 + u64::from(*offset)
                }
                Op::Load(load) => {
                    if let Err(fault) = load_values(registers, load, &mut spaces!()) {
                        leave!(pc, Err(fault));
                    }
                }
                Op::Store(store) => {
                    if let Err(fault) = store_values(registers, store, &mut spaces!()) {
                        leave!(pc, Err(fault));
                    }
                }
                Op::Atomic(atomic) => {
                    if let Err(fault) = update_memory(registers, atomic, &mut spaces!()) {
                        leave!(pc, Err(fault));
                    }
                }
                Op::Branch { to } => {
                    pc = *to as usize;
                    continue;
                }
                Op::IndexedBranch { index, targets } => {
                    match targets.get(r!(*index) as u32 as usize) {
                        Some(to) => {
                            pc = *to as usize;
                            continue;
                        }
                        None => leave!(
                            pc,
                            Err((
                                FaultKind::Trap,
                                "branches outside of its list of targets".to_owned()
                            ))
                        ),
                    }
                }
                Op::Call(call) => {
                    let mut parameters =
                        vec![0; self.kernel.functions[call.function].parameter_bytes];
                    for (from, to, len) in &call.arguments {
                        let (from, to, len) = (*from as usize, *to as usize, *len as usize);
                        parameters[to..to + len]
                            .copy_from_slice(&frame.parameters[from..from + len]);
                    }
                    frame.pc = pc;
                    let function = call.function;
                    if thread.frames.len() >= 512 {
                        return Err((FaultKind::Trap, "calls too deep".to_owned()));
                    }
                    thread.enter(self.kernel, self.specials, function, parameters);
                    return Ok(true);
                }
                Op::Return => {
                    frame.pc = pc;
                    self.leave(thread);
                    return Ok(true);
                }
                Op::Exit => {
                    thread.frames.clear();
                    thread.state = State::Done;
                    return Ok(true);
                }
                Op::Trap => leave!(pc, Err((FaultKind::Trap, "traps".to_owned()))),
                Op::Assert => leave!(pc, Err((FaultKind::Assert, "fails an assertion".to_owned()))),
                Op::Barrier(barrier) => {
                    let (number, threads) = (r!(barrier.number) as u32, r!(barrier.threads) as u32);
                    thread.state = State::AtBarrier { number, threads };
                    leave!(pc, Ok(true));
                }
                Op::Warp(_) => {
                    thread.state = State::AtWarp;
                    leave!(pc, Ok(true));
                }
            }
            pc += 1;
        }
    }

    /// Ends the topmost call and hands its results to the caller.
    fn leave(&mut self, thread: &mut Thread) {
        let Some(done) = thread.frames.pop() else { return };
        thread.local.truncate(done.local_base);
        let Some(caller) = thread.frames.last_mut() else {
            thread.state = State::Done;
            return;
        };
        if let Op::Call(call) = &self.kernel.functions[caller.function].instructions[caller.pc].op {
            for (to, from, len) in &call.results {
                let (from, to, len) = (*from as usize, *to as usize, *len as usize);
                caller.parameters[to..to + len].copy_from_slice(&done.parameters[from..from + len]);
            }
        }
        caller.pc += 1;
    }
}

#[inline]
fn single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

#[inline]
fn fused(a: u64, b: u64, c: u64) -> u64 {
    u64::from(single(a).mul_add(single(b), single(c)).to_bits())
}

fn compare_and_join(registers: &mut [u64], compare: &CompareJoin) {
    let CompareJoin { f, to, also, a, b, with, negated, join } = *compare;
    let holds = f(registers[a as usize], registers[b as usize]);
    let with = registers[with as usize] & 1 ^ u64::from(negated);
    let joined = |holds: u64| match join {
        Join::And => holds & with,
        Join::Or => holds | with,
        Join::Xor => holds ^ with,
    };
    registers[to as usize] = joined(holds);
    if also != NONE {
        registers[also as usize] = joined(holds ^ 1);
    }
}

/// Each bit of the result is the bit of `lut` that the three bits of the operands number.
fn logic3(lut: u8, a: u64, b: u64, c: u64) -> u64 {
    (0..8).filter(|row| lut >> row & 1 == 1).fold(0, |result, row| {
        let pick = |value: u64, bit: u8| if row >> bit & 1 == 1 { value } else { !value };
        result | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

/// The low `len` bits of `a` put into `b` from bit `at` on.
fn insert_bits(a: u64, b: u64, at: u64, len: u64, wide: bool) -> u64 {
    let (at, len) = (at & 0xFF, len & 0xFF);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let mask = ones.checked_shl(at as u32).unwrap_or(0);
    let result = b & !mask | a.checked_shl(at as u32).unwrap_or(0) & mask;
    if wide { result } else { result & 0xFFFF_FFFF }
}

fn add_with_carry(registers: &mut [u64], carry: &Carry) {
    let width = if carry.wide { 64 } else { 32 };
    let mask = (1u128 << width) - 1;
    let value = |register: u32| u128::from(registers[register as usize]) & mask;
    let old = if carry.carry_in { u128::from(registers[carry.flag as usize]) } else { 0 };
    // A borrow is kept as 1, as a carry is.
    let result = if carry.subtract {
        value(carry.a).wrapping_sub(value(carry.b)).wrapping_sub(old)
    } else {
        value(carry.a) + value(carry.b) + old
    };
    if carry.carry_out {
        registers[carry.flag as usize] = (result >> width & 1) as u64;
    }
    registers[carry.to as usize] = (result & mask) as u64;
}

fn address_of(registers: &[u64], place: &Place) -> u64 {
    let base = if place.base == NONE { 0 } else { registers[place.base as usize] };
    base.wrapping_add_signed(place.offset)
}

fn refused(
    refusal: Refusal,
    verb: &str,
    bytes: u64,
    space: Space,
    address: u64,
) -> (FaultKind, String) {
    let (kind, why) = match refusal {
        Refusal::Outside => (FaultKind::IllegalAddress, "which is outside of live memory"),
        Refusal::Misaligned => (FaultKind::Misaligned, "which is misaligned"),
    };
    let space = format!("{space:?}").to_lowercase();
    (kind, format!("{verb} {bytes} bytes at {address:#x} ({space}), {why},"))
}

fn load_values(
    registers: &mut [u64],
    load: &Load,
    spaces: &mut Spaces<'_>,
) -> Result<(), (FaultKind, String)> {
    let (bytes, lanes) = (load.kind.bytes(), load.to.len());
    let address = address_of(registers, &load.place);
    let checked = spaces.check(load.place.space, address, bytes, lanes);
    let (space, at) = checked.map_err(|refusal| {
        refused(refusal, "reads", u64::from(bytes) * lanes as u64, load.place.space, address)
    })?;
    for (i, to) in load.to.iter().enumerate() {
        let value = spaces.read(space, at + i as u64 * u64::from(bytes), bytes);
        registers[*to as usize] = match load.kind {
            Type::Signed(1) => value as i8 as u64,
            Type::Signed(2) => value as i16 as u64,
            _ => value,
        };
    }
    Ok(())
}

fn store_values(
    registers: &[u64],
    store: &Store,
    spaces: &mut Spaces<'_>,
) -> Result<(), (FaultKind, String)> {
    let (bytes, lanes) = (store.kind.bytes(), store.from.len());
    let address = address_of(registers, &store.place);
    let checked = spaces.check(store.place.space, address, bytes, lanes);
    let (space, at) = checked.map_err(|refusal| {
        refused(refusal, "writes", u64::from(bytes) * lanes as u64, store.place.space, address)
    })?;
    for (i, from) in store.from.iter().enumerate() {
        spaces.write(space, at + i as u64 * u64::from(bytes), bytes, registers[*from as usize]);
    }
    Ok(())
}

fn update_memory(
    registers: &mut [u64],
    atomic: &Atomic,
    spaces: &mut Spaces<'_>,
) -> Result<(), (FaultKind, String)> {
    let bytes = atomic.kind.bytes();
    let address = address_of(registers, &atomic.place);
    let checked = spaces.check(atomic.place.space, address, bytes, 1);
    let (space, at) = checked.map_err(|refusal| {
        refused(refusal, "updates", u64::from(bytes), atomic.place.space, address)
    })?;
    let old = spaces.read(space, at, bytes);
    let operand = registers[atomic.operand as usize];
    let mask = u64::MAX >> (64 - 8 * u32::from(bytes));
    let new = match atomic.op {
        AtomicOp::Update(f) => f(old, operand),
        AtomicOp::CompareAndSwap if old == operand & mask => registers[atomic.swap as usize],
        AtomicOp::CompareAndSwap => old,
    };
    spaces.write(space, at, bytes, new);
    if atomic.to != NONE {
        registers[atomic.to as usize] = old;
    }
    Ok(())
}
