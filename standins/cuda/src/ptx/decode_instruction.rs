//! One instruction: opcode and operands into an operation.

use super::PtxError;
use super::compare::comparison;
use super::convert::{self, Conversion};
use super::decode::Body;
use super::instruction::{
    Atomic, AtomicOp, Barrier, Call, Carry, CompareJoin, Join, Load, NONE, Op, Place, Reduction,
    Register, Space, Store, WarpCall, WarpOp,
};
use super::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use super::parser::Operand;
use super::scalar::{self, Suffixes};
use super::types::Type;

/// Suffixes that change nothing in the stand-in.
const NOISE: [&str; 3] = ["ftz", "approx", "full"];

/// An opcode taken apart.
struct Opcode<'a> {
    text: &'a str,
    base: &'a str,
    suffixes: Vec<&'a str>,
    types: Vec<Type>,
    /// A device computes it only nearly.
    approximate: bool,
}

impl<'a> Opcode<'a> {
    fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let base = parts.next().unwrap_or(text);
        let (mut suffixes, mut types) = (Vec::new(), Vec::new());
        for part in parts.filter(|part| !NOISE.contains(part)) {
            match Type::parse(part) {
                Some(kind) => types.push(kind),
                // Only the first half matters of `shared::cta`.
                None => suffixes.push(part.split("::").next().unwrap_or(part)),
            }
        }
        let approximate = text.split('.').any(|part| matches!(part, "approx" | "full"))
            && types.last() == Some(&Type::F32);
        Self { text, base, suffixes, types, approximate }
    }

    fn has(&self, suffix: &str) -> bool {
        self.suffixes.contains(&suffix)
    }

    fn suffixes(&self) -> Suffixes<'_> {
        Suffixes(&self.suffixes)
    }

    fn space(&self) -> Space {
        let named = |space: &str| self.has(space);
        match () {
            () if named("global") || named("const") => Space::Global,
            () if named("shared") => Space::Shared,
            () if named("local") => Space::Local,
            () if named("param") => Space::Param,
            () => Space::Generic,
        }
    }
}

impl<'a> Body<'_, '_, 'a> {
    /// Decodes one instruction; address computations that it needs are pushed before.
    pub(super) fn instruction(
        &mut self,
        text: &'a str,
        operands: &[Operand<'a>],
    ) -> Result<Op, PtxError> {
        let opcode = Opcode::new(text);
        let unsupported = || Err(self.unsupported(format!("the instruction `{text}`")));
        match (opcode.base, operands) {
            ("mov", [to, a]) => self.moved(&opcode, to, a),
            ("cvta", [to, a]) => self.generic_address(&opcode, to, a),
            ("ld" | "ldu", [to, address]) => self.load(&opcode, to, address),
            ("st", [address, from]) => {
                let kind = self.kind(&opcode)?;
                let place = self.place(address, opcode.space())?;
                Ok(Op::Store(Box::new(Store { place, kind, from: self.each(from, false)? })))
            }
            ("atom" | "red", _) => self.atomic(&opcode, operands),
            ("setp", [to, a, b, rest @ ..]) => self.set_predicate(&opcode, to, a, b, rest.first()),
            ("selp", [to, a, b, when]) => {
                let (to, a, b) = (self.target(to)?, self.source(a)?, self.source(b)?);
                Ok(Op::Select { to, a, b, when: self.source(when)? })
            }
            ("cvt", [to, a]) => self.convert(&opcode, to, a),
            ("bra", [Operand::Name(label)]) => Ok(self.branch(label)),
            ("brx", [index, Operand::Name(list)]) => {
                let index = self.source(index)?;
                Ok(self.indexed_branch(index, list))
            }
            ("call", _) => self.call(operands),
            ("ret", []) => Ok(Op::Return),
            ("exit", []) => Ok(Op::Exit),
            ("trap" | "brkpt", []) => Ok(Op::Trap),
            ("bar" | "barrier", _) => self.barrier(&opcode, operands),
            (
                "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "griddepcontrol"
                | "pmevent",
                _,
            ) => Ok(Op::Nop),
            ("shfl" | "vote" | "match" | "redux" | "activemask", _) => self.warp(&opcode, operands),
            ("lop3", [to, a, b, c, Operand::Number(lut)]) => {
                let (to, a, b, c) =
                    (self.target(to)?, self.source(a)?, self.source(b)?, self.source(c)?);
                Ok(Op::Logic3 { lut: *lut as u8, to, a, b, c })
            }
            ("bfi", [to, a, b, at, len]) => {
                let registers = [
                    self.target(to)?,
                    self.source(a)?,
                    self.source(b)?,
                    self.source(at)?,
                    self.source(len)?,
                ];
                Ok(Op::InsertBits(Box::new(registers), self.kind(&opcode)?.bytes() == 8))
            }
            ("add" | "sub" | "addc" | "subc", [to, a, b])
                if opcode.has("cc") || opcode.base.ends_with('c') =>
            {
                self.carry(&opcode, to, a, b)
            }
            (_, [to, a]) => {
                let kind = self.kind(&opcode)?;
                let Some(f) = scalar::unary(opcode.base, kind, opcode.suffixes()) else {
                    return unsupported();
                };
                let (to, a) = (self.target(to)?, self.source(a)?);
                Ok(match opcode.approximate {
                    true => Op::Approximate { f, to, a },
                    false => Op::Unary { f, to, a },
                })
            }
            (_, [to, a, b]) => self.two_operands(&opcode, to, a, b),
            (_, [to, a, b, c]) => self.three_operands(&opcode, to, a, b, c),
            _ => unsupported(),
        }
    }

    /// The type that decides how operands are seen: the last one.
    fn kind(&self, opcode: &Opcode<'a>) -> Result<Type, PtxError> {
        let last = opcode.types.last().copied();
        last.ok_or_else(|| self.unsupported(format!("the instruction `{}`", opcode.text)))
    }

    fn two_operands(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let kind = self.kind(opcode)?;
        let (to, a, b) = (self.target(to)?, self.source(a)?, self.source(b)?);
        let integer = |bytes| matches!(kind, Type::Signed(n) | Type::Unsigned(n) if n == bytes);
        let plain = opcode.suffixes.is_empty() || opcode.suffixes == ["rn"];
        match opcode.base {
            "add" if plain && kind == Type::F32 => return Ok(Op::AddF32 { to, a, b }),
            "mul" if plain && kind == Type::F32 => return Ok(Op::MulF32 { to, a, b }),
            "add" if plain && integer(4) => return Ok(Op::Add32 { to, a, b }),
            "add" if plain && integer(8) => return Ok(Op::Add64 { to, a, b }),
            "mul" if opcode.suffixes == ["wide"] && kind == Type::Signed(4) => {
                return Ok(Op::MulWide32 { to, a, b });
            }
            _ => {}
        }
        match scalar::binary(opcode.base, kind, opcode.suffixes()) {
            Some(f) if opcode.approximate => Ok(Op::ApproximateQuotient { f, to, a, b }),
            Some(f) => Ok(Op::Binary { f, to, a, b }),
            None => Err(self.unsupported(format!("the instruction `{}`", opcode.text))),
        }
    }

    fn three_operands(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
        c: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let kind = self.kind(opcode)?;
        let (to, a, b, c) = (self.target(to)?, self.source(a)?, self.source(b)?, self.source(c)?);
        let four_bytes = matches!(kind, Type::Signed(4) | Type::Unsigned(4));
        match opcode.base {
            "fma" if opcode.suffixes == ["rn"] && kind == Type::F32 => {
                return Ok(Op::FmaF32 { to, a, b, c });
            }
            "mad" if opcode.suffixes == ["lo"] && four_bytes => {
                return Ok(Op::Mad32 { to, a, b, c });
            }
            _ => {}
        }
        match scalar::ternary(opcode.base, kind, opcode.suffixes()) {
            Some(f) => Ok(Op::Ternary { f, to, a, b, c }),
            None => Err(self.unsupported(format!("the instruction `{}`", opcode.text))),
        }
    }

    fn moved(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let bytes = self.kind(opcode)?.bytes();
        match (to, a) {
            (Operand::Vector(parts), _) => {
                let bytes = bytes / parts.len().max(1) as u8;
                let a = self.source(a)?;
                Ok(Op::Unpack { parts: self.each(to, true)?, a, bytes })
            }
            (_, Operand::Vector(parts)) => {
                let bytes = bytes / parts.len().max(1) as u8;
                Ok(Op::Pack { to: self.target(to)?, parts: self.each(a, false)?, bytes })
            }
            _ => {
                let a = self.source(a)?;
                Ok(Op::Move { to: self.target(to)?, a })
            }
        }
    }

    /// Between a space's own addresses and generic ones: a window for each space but global memory.
    fn generic_address(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let (to, a) = (self.target(to)?, self.source(a)?);
        let window = match opcode.space() {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param => PARAM_WINDOW,
            Space::Global | Space::Generic => return Ok(Op::Move { to, a }),
        };
        let by = if opcode.has("to") { window.wrapping_neg() } else { window };
        Ok(Op::Add64 { to, a, b: self.constant(by) })
    }

    fn load(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        address: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let kind = self.kind(opcode)?;
        let place = self.place(address, opcode.space())?;
        let to = self.each(to, true)?;
        let quick = matches!(place.space, Space::Global | Space::Shared)
            && place.base != NONE
            && kind.bytes() == 4;
        if let ([to], true, Ok(offset)) = (&*to, quick, i32::try_from(place.offset)) {
            return Ok(Op::Load32 {
                to: *to,
                base: place.base,
                offset,
                shared: place.space == Space::Shared,
            });
        }
        Ok(Op::Load(Box::new(Load { place, kind, to })))
    }

    fn atomic(&mut self, opcode: &Opcode<'a>, operands: &[Operand<'a>]) -> Result<Op, PtxError> {
        let unsupported =
            |body: &Self| body.unsupported(format!("the instruction `{}`", opcode.text));
        let (to, rest) = match (opcode.base, operands) {
            ("atom", [to, rest @ ..]) => (self.target(to)?, rest),
            (_, rest) => (NONE, rest),
        };
        let [address, operand, swap @ ..] = rest else { return Err(unsupported(self)) };
        let kind = self.kind(opcode)?;
        let name = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]
            .iter()
            .find(|n| opcode.has(n));
        let name = name.ok_or_else(|| unsupported(self))?;
        let op = match *name {
            "cas" => AtomicOp::CompareAndSwap,
            name => AtomicOp::Update(
                scalar::binary(name, kind, Suffixes(&[])).ok_or_else(|| unsupported(self))?,
            ),
        };
        let place: Place = self.place(address, opcode.space())?;
        let operand = self.source(operand)?;
        let swap = match swap.first() {
            Some(swap) => self.source(swap)?,
            None => NONE,
        };
        Ok(Op::Atomic(Box::new(Atomic { op, place, kind, to, operand, swap })))
    }

    fn set_predicate(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
        with: Option<&Operand<'a>>,
    ) -> Result<Op, PtxError> {
        let kind = self.kind(opcode)?;
        let name = opcode.suffixes.first().copied().unwrap_or_default();
        let Some(f) = comparison(name, kind) else {
            return Err(self.unsupported(format!("the instruction `{}`", opcode.text)));
        };
        let (to, also) = match to {
            Operand::Pair(to, also) => (self.target(to)?, self.target(also)?),
            to => (self.target(to)?, NONE),
        };
        let (a, b) = (self.source(a)?, self.source(b)?);
        let Some(with) = with else { return Ok(Op::Compare { f, to, also, a, b }) };
        let join = match () {
            () if opcode.has("or") => Join::Or,
            () if opcode.has("xor") => Join::Xor,
            () => Join::And,
        };
        let (with, negated) = self.predicate(with)?;
        Ok(Op::CompareJoin(Box::new(CompareJoin { f, to, also, a, b, with, negated, join })))
    }

    fn predicate(&mut self, operand: &Operand<'a>) -> Result<(Register, bool), PtxError> {
        match operand {
            Operand::Not(name) => Ok((self.source(&Operand::Name(name))?, true)),
            other => Ok((self.source(other)?, false)),
        }
    }

    fn convert(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let unsupported = self.unsupported(format!("the instruction `{}`", opcode.text));
        let [to_type, from_type] = opcode.types[..] else { return Err(unsupported) };
        let (to, a) = (self.target(to)?, self.source(a)?);
        if let Some(f) = convert::quick(to_type, from_type, opcode.suffixes()) {
            return Ok(Op::Unary { f, to, a });
        }
        let conversion =
            Conversion::new(to_type, from_type, opcode.suffixes()).ok_or(unsupported)?;
        Ok(Op::Convert { conversion, to, a })
    }

    fn call(&mut self, operands: &[Operand<'a>]) -> Result<Op, PtxError> {
        let none = [];
        let (results, name, arguments): (&[_], _, &[_]) = match operands {
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => {
                (results, *name, arguments)
            }
            [Operand::Name(name), Operand::List(arguments)] => (&none, *name, arguments),
            [Operand::List(results), Operand::Name(name)] => (results, *name, &none),
            [Operand::Name(name)] => (&none, *name, &none),
            _ => return Err(self.unsupported("an indirect call")),
        };
        if name == "__assertfail" {
            return Ok(Op::Assert);
        }
        let Some((function, callee, offsets)) = self.callee(name) else {
            return Err(
                self.unsupported(format!("a call of `{name}`, which the module does not define,"))
            );
        };
        if arguments.len() != callee.parameters.len() || results.len() > callee.results.len() {
            return Err(self.unsupported(format!("a call of `{name}` with other parameters")));
        }
        let over = |ours: &[Operand<'a>], theirs: &[super::parser::Storage<'a>]| {
            let pairs = ours.iter().zip(theirs).map(|(our, their)| match our {
                Operand::Name(name) => {
                    let from = self.parameter(name).ok_or_else(|| self.undeclared(name))?;
                    Ok((from as u32, offsets[their.name] as u32, their.bytes as u32))
                }
                other => Err(self.unsupported(format!("the argument {other:?}"))),
            });
            pairs.collect::<Result<Vec<_>, _>>()
        };
        let (arguments, results) =
            (over(arguments, &callee.parameters)?, over(results, &callee.results)?);
        Ok(Op::Call(Box::new(Call { function, arguments, results })))
    }

    fn barrier(&mut self, opcode: &Opcode<'a>, operands: &[Operand<'a>]) -> Result<Op, PtxError> {
        if opcode.has("warp") {
            return self.warp(opcode, operands);
        }
        if !opcode.has("sync") || opcode.has("cluster") {
            return Err(self.unsupported(format!("the instruction `{}`", opcode.text)));
        }
        let number = match operands.first() {
            Some(number) => self.source(number)?,
            None => self.constant(0),
        };
        let threads = match operands.get(1) {
            Some(threads) => self.source(threads)?,
            None => self.constant(0),
        };
        Ok(Op::Barrier(Box::new(Barrier { number, threads })))
    }

    fn carry(
        &mut self,
        opcode: &Opcode<'a>,
        to: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
    ) -> Result<Op, PtxError> {
        let wide = self.kind(opcode)?.bytes() == 8;
        let (to, a, b) = (self.target(to)?, self.source(a)?, self.source(b)?);
        Ok(Op::Carry(Box::new(Carry {
            to,
            a,
            b,
            flag: self.scratch("standin.carry"),
            subtract: opcode.base.starts_with("sub"),
            carry_in: opcode.base.ends_with('c'),
            carry_out: opcode.has("cc"),
            wide,
        })))
    }

    fn warp(&mut self, opcode: &Opcode<'a>, operands: &[Operand<'a>]) -> Result<Op, PtxError> {
        let unsupported =
            |body: &Self| body.unsupported(format!("the instruction `{}`", opcode.text));
        let op = self.warp_op(opcode)?;
        if !opcode.has("sync") && op != WarpOp::ActiveMask {
            // The old forms without a mask are not defined on today's devices.
            return Err(unsupported(self));
        }
        let mut call = WarpCall {
            op,
            to: NONE,
            valid: NONE,
            value: NONE,
            negated: false,
            lane: NONE,
            clamp: NONE,
            mask: NONE,
            bytes: opcode.types.last().map_or(4, |kind| kind.bytes()),
        };
        let rest = match (op, operands) {
            (WarpOp::Synchronise, rest) => rest,
            (_, [Operand::Pair(to, valid), rest @ ..]) => {
                (call.to, call.valid) = (self.target(to)?, self.target(valid)?);
                rest
            }
            (_, [to, rest @ ..]) => {
                call.to = self.target(to)?;
                rest
            }
            _ => return Err(unsupported(self)),
        };
        match rest {
            [value, lane, clamp, mask] => {
                (call.value, call.lane) = (self.source(value)?, self.source(lane)?);
                (call.clamp, call.mask) = (self.source(clamp)?, self.source(mask)?);
            }
            [value, mask] => {
                (call.value, call.negated) = self.predicate(value)?;
                call.mask = self.source(mask)?;
            }
            [mask] => call.mask = self.source(mask)?,
            [] if op == WarpOp::ActiveMask => {}
            _ => return Err(unsupported(self)),
        }
        Ok(Op::Warp(Box::new(call)))
    }

    fn warp_op(&self, opcode: &Opcode<'a>) -> Result<WarpOp, PtxError> {
        let has = |suffix: &str| opcode.has(suffix);
        let kind = || self.kind(opcode);
        Ok(match opcode.base {
            "shfl" if has("up") => WarpOp::ShuffleUp,
            "shfl" if has("down") => WarpOp::ShuffleDown,
            "shfl" if has("bfly") => WarpOp::ShuffleXor,
            "shfl" if has("idx") => WarpOp::ShuffleIndex,
            "vote" if has("all") => WarpOp::VoteAll,
            "vote" if has("any") => WarpOp::VoteAny,
            "vote" if has("uni") => WarpOp::VoteUniform,
            "vote" if has("ballot") => WarpOp::Ballot,
            "match" if has("any") => WarpOp::MatchAny,
            "match" if has("all") => WarpOp::MatchAll,
            "activemask" => WarpOp::ActiveMask,
            "bar" | "barrier" => WarpOp::Synchronise,
            "redux" if has("add") => WarpOp::Reduce(Reduction::Add, kind()?),
            "redux" if has("min") => WarpOp::Reduce(Reduction::Min, kind()?),
            "redux" if has("max") => WarpOp::Reduce(Reduction::Max, kind()?),
            "redux" if has("and") => WarpOp::Reduce(Reduction::And, kind()?),
            "redux" if has("or") => WarpOp::Reduce(Reduction::Or, kind()?),
            "redux" if has("xor") => WarpOp::Reduce(Reduction::Xor, kind()?),
            _ => return Err(self.unsupported(format!("the instruction `{}`", opcode.text))),
        })
    }
}
