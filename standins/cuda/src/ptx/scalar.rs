//! Arithmetic of one lane: from opcode and type to a function on register bits.

use super::types::Type;

pub(crate) type Unary = fn(u64) -> u64;
pub(crate) type Binary = fn(u64, u64) -> u64;
pub(crate) type Ternary = fn(u64, u64, u64) -> u64;

/// One function for each integer type, from an expression over that type.
macro_rules! integers {
    ($kind:expr, $f:ty, ($($x:ident),*) => $body:expr) => {
        match $kind {
            Type::Signed(2) => Some((|$($x: u64),*| { $(let $x = $x as i16;)* ($body) as u64 }) as $f),
            Type::Signed(4) => Some((|$($x: u64),*| { $(let $x = $x as i32;)* ($body) as u64 }) as $f),
            Type::Signed(8) => Some((|$($x: u64),*| { $(let $x = $x as i64;)* ($body) as u64 }) as $f),
            Type::Unsigned(2) | Type::Bits(2) => Some((|$($x: u64),*| { $(let $x = $x as u16;)* ($body) as u64 }) as $f),
            Type::Unsigned(4) | Type::Bits(4) => Some((|$($x: u64),*| { $(let $x = $x as u32;)* ($body) as u64 }) as $f),
            #[allow(clippy::unnecessary_cast, reason = "the macro is for every width")]
            Type::Unsigned(8) | Type::Bits(8) => Some((|$($x: u64),*| { $(let $x = $x as u64;)* ($body) as u64 }) as $f),
            _ => None,
        }
    };
}
pub(super) use integers;

/// A function on `f32` as a function on bits.
macro_rules! single {
    ($f:ty, ($($x:ident),*) => $body:expr) => {
        Some((|$($x: u64),*| { $(let $x = f32::from_bits($x as u32);)* u64::from(f32::to_bits($body)) }) as $f)
    };
}
pub(super) use single;

/// The same for `f64`.
macro_rules! double {
    ($f:ty, ($($x:ident),*) => $body:expr) => {
        Some((|$($x: u64),*| { $(let $x = f64::from_bits($x);)* f64::to_bits($body) }) as $f)
    };
}

/// The suffixes of an opcode, without types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suffixes<'a>(pub(crate) &'a [&'a str]);

impl Suffixes<'_> {
    pub(crate) fn has(&self, suffix: &str) -> bool {
        self.0.contains(&suffix)
    }
}

/// Operations with one operand.
pub(crate) fn unary(name: &str, kind: Type, suffixes: Suffixes<'_>) -> Option<Unary> {
    use Type::{Bits, F32, F64, Signed, Unsigned};
    match (name, kind) {
        ("neg", F32) => Some(|a| a ^ 0x8000_0000),
        ("neg", F64) => Some(|a| a ^ (1 << 63)),
        ("abs", F32) => Some(|a| a & 0x7FFF_FFFF),
        ("abs", F64) => Some(|a| a & !(1 << 63)),
        ("neg", Signed(_)) => integers!(kind, Unary, (a) => a.wrapping_neg()),
        ("abs", Signed(2)) => Some(|a| (a as i16).wrapping_abs() as u64),
        ("abs", Signed(4)) => Some(|a| (a as i32).wrapping_abs() as u64),
        ("abs", Signed(8)) => Some(|a| (a as i64).wrapping_abs() as u64),
        ("not", Type::Pred) => Some(|a| a & 1 ^ 1),
        ("not", _) => Some(|a| !a),
        ("cnot", _) => integers!(kind, Unary, (a) => if a == 0 { 1u8 } else { 0 }),
        ("popc", _) => integers!(kind, Unary, (a) => a.count_ones()),
        ("clz", _) => integers!(kind, Unary, (a) => a.leading_zeros()),
        ("brev", Bits(4)) => Some(|a| u64::from((a as u32).reverse_bits())),
        ("brev", Bits(8)) => Some(|a| a.reverse_bits()),
        ("bfind", _) if suffixes.has("shiftamt") => match kind {
            Unsigned(4) => {
                Some(|a| u64::from((a as u32).checked_ilog2().map_or(u32::MAX, |bit| 31 - bit)))
            }
            Unsigned(8) => Some(|a| u64::from(a.checked_ilog2().map_or(u32::MAX, |bit| 63 - bit))),
            _ => None,
        },
        ("bfind", Unsigned(4)) => {
            Some(|a| u64::from((a as u32).checked_ilog2().unwrap_or(u32::MAX)))
        }
        ("bfind", Unsigned(8)) => Some(|a| u64::from(a.checked_ilog2().unwrap_or(u32::MAX))),
        ("bfind", Signed(4)) => Some(|a| {
            let a = a as i32;
            u64::from((if a < 0 { !a } else { a } as u32).checked_ilog2().unwrap_or(u32::MAX))
        }),
        ("sqrt", F32) => single!(Unary, (a) => a.sqrt()),
        ("sqrt", F64) => double!(Unary, (a) => a.sqrt()),
        ("rsqrt", F32) => single!(Unary, (a) => (1.0 / f64::from(a).sqrt()) as f32),
        ("rsqrt", F64) => double!(Unary, (a) => 1.0 / a.sqrt()),
        ("rcp", F32) => single!(Unary, (a) => 1.0 / a),
        ("rcp", F64) => double!(Unary, (a) => 1.0 / a),
        ("sin", F32) => single!(Unary, (a) => a.sin()),
        ("cos", F32) => single!(Unary, (a) => a.cos()),
        ("ex2", F32) => single!(Unary, (a) => a.exp2()),
        ("lg2", F32) => single!(Unary, (a) => a.log2()),
        ("tanh", F32) => single!(Unary, (a) => a.tanh()),
        (_, Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2) => {
            super::half_scalar::unary(name, kind)
        }
        _ => None,
    }
}

/// Operations with two operands.
pub(crate) fn binary(name: &str, kind: Type, suffixes: Suffixes<'_>) -> Option<Binary> {
    use Type::{Bits, F32, F64, Pred, Signed, Unsigned};
    if kind.is_float() {
        return float_binary(name, kind, suffixes);
    }
    match (name, kind) {
        ("and", _) => Some(|a, b| a & b),
        ("or", _) => Some(|a, b| a | b),
        ("xor", _) => Some(|a, b| a ^ b),
        ("add", Signed(4)) if suffixes.has("sat") => {
            Some(|a, b| (a as i32).saturating_add(b as i32) as u64)
        }
        ("sub", Signed(4)) if suffixes.has("sat") => {
            Some(|a, b| (a as i32).saturating_sub(b as i32) as u64)
        }
        ("add", _) => integers!(kind, Binary, (a, b) => a.wrapping_add(b)),
        ("sub", _) => integers!(kind, Binary, (a, b) => a.wrapping_sub(b)),
        ("mul", _) if suffixes.has("wide") => match kind {
            Signed(2) => Some(|a, b| (i32::from(a as i16) * i32::from(b as i16)) as u64),
            Unsigned(2) => Some(|a, b| u64::from(u32::from(a as u16) * u32::from(b as u16))),
            Signed(4) => Some(|a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64),
            Unsigned(4) => Some(|a, b| u64::from(a as u32) * u64::from(b as u32)),
            _ => None,
        },
        ("mul", _) if suffixes.has("hi") => high_half(kind),
        ("mul" | "mul24", _) => integers!(kind, Binary, (a, b) => a.wrapping_mul(b)),
        // A device gives all ones where the divisor is zero.
        ("div", Signed(_) | Unsigned(_)) => {
            integers!(kind, Binary, (a, b) => if b == 0 { !b } else { a.wrapping_div(b) })
        }
        ("rem", Signed(_) | Unsigned(_)) => {
            integers!(kind, Binary, (a, b) => if b == 0 { a } else { a.wrapping_rem(b) })
        }
        ("min", Signed(_) | Unsigned(_)) => integers!(kind, Binary, (a, b) => a.min(b)),
        ("max", Signed(_) | Unsigned(_)) => integers!(kind, Binary, (a, b) => a.max(b)),
        // Shifts by the width or more give zeros, or copies of the sign.
        ("shl", Bits(2)) => Some(|a, b| u64::from((a as u16).checked_shl(b as u32).unwrap_or(0))),
        ("shl", Bits(4)) => Some(|a, b| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0))),
        ("shl", Bits(8)) => Some(|a, b| a.checked_shl(b as u32).unwrap_or(0)),
        ("shr", Bits(2) | Unsigned(2)) => {
            Some(|a, b| u64::from((a as u16).checked_shr(b as u32).unwrap_or(0)))
        }
        ("shr", Bits(4) | Unsigned(4)) => {
            Some(|a, b| u64::from((a as u32).checked_shr(b as u32).unwrap_or(0)))
        }
        ("shr", Bits(8) | Unsigned(8)) => Some(|a, b| a.checked_shr(b as u32).unwrap_or(0)),
        ("shr", Signed(2)) => Some(|a, b| ((a as i16) >> (b as u32).min(15)) as u64),
        ("shr", Signed(4)) => Some(|a, b| ((a as i32) >> (b as u32).min(31)) as u64),
        ("shr", Signed(8)) => Some(|a, b| ((a as i64) >> (b as u32).min(63)) as u64),
        ("exch", _) => Some(|_, b| b),
        ("inc", Unsigned(4)) => Some(|a, b| if a as u32 >= b as u32 { 0 } else { a + 1 }),
        ("dec", Unsigned(4)) => {
            Some(|a, b| if a as u32 == 0 || a as u32 > b as u32 { b } else { a.wrapping_sub(1) })
        }
        (_, Pred | F32 | F64) => None,
        _ => None,
    }
}

fn high_half(kind: Type) -> Option<Binary> {
    match kind {
        Type::Signed(2) => Some(|a, b| ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u64),
        Type::Unsigned(2) => {
            Some(|a, b| u64::from((u32::from(a as u16) * u32::from(b as u16)) >> 16))
        }
        Type::Signed(4) => Some(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64),
        Type::Unsigned(4) => Some(|a, b| (u64::from(a as u32) * u64::from(b as u32)) >> 32),
        Type::Signed(8) => {
            Some(|a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64)
        }
        Type::Unsigned(8) => Some(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        _ => None,
    }
}

fn float_binary(name: &str, kind: Type, suffixes: Suffixes<'_>) -> Option<Binary> {
    use Type::{F32, F64};
    let saturates = suffixes.has("sat");
    match (name, kind) {
        ("add", F32) if suffixes.has("rz") => {
            single!(Binary, (a, b) => toward_zero(f64::from(a) + f64::from(b)))
        }
        ("add", F32) if suffixes.has("rm") => {
            single!(Binary, (a, b) => downward(f64::from(a) + f64::from(b)))
        }
        ("add", F32) if suffixes.has("rp") => {
            single!(Binary, (a, b) => upward(f64::from(a) + f64::from(b)))
        }
        ("mul", F32) if suffixes.has("rz") => {
            single!(Binary, (a, b) => toward_zero(f64::from(a) * f64::from(b)))
        }
        ("mul", F32) if suffixes.has("rm") => {
            single!(Binary, (a, b) => downward(f64::from(a) * f64::from(b)))
        }
        ("mul", F32) if suffixes.has("rp") => {
            single!(Binary, (a, b) => upward(f64::from(a) * f64::from(b)))
        }
        ("add", F32) if saturates => single!(Binary, (a, b) => unit(a + b)),
        ("mul", F32) if saturates => single!(Binary, (a, b) => unit(a * b)),
        ("add", F32) => single!(Binary, (a, b) => a + b),
        ("sub", F32) => single!(Binary, (a, b) => a - b),
        ("mul", F32) => single!(Binary, (a, b) => a * b),
        ("div", F32) => single!(Binary, (a, b) => a / b),
        ("min", F32) if suffixes.has("NaN") => {
            single!(Binary, (a, b) => if b.is_nan() { b } else if a.is_nan() { a } else { a.min(b) })
        }
        ("max", F32) if suffixes.has("NaN") => {
            single!(Binary, (a, b) => if b.is_nan() { b } else if a.is_nan() { a } else { a.max(b) })
        }
        ("min", F32) => single!(Binary, (a, b) => a.min(b)),
        ("max", F32) => single!(Binary, (a, b) => a.max(b)),
        // The sign of the first operand goes onto the second.
        ("copysign", F32) => single!(Binary, (a, b) => b.copysign(a)),
        // Other roundings of doubles are too rare to be worth it.
        ("add" | "sub" | "mul" | "div", F64)
            if suffixes.has("rz") || suffixes.has("rm") || suffixes.has("rp") =>
        {
            None
        }
        ("add", F64) => double!(Binary, (a, b) => a + b),
        ("sub", F64) => double!(Binary, (a, b) => a - b),
        ("mul", F64) => double!(Binary, (a, b) => a * b),
        ("div", F64) => double!(Binary, (a, b) => a / b),
        ("min", F64) => double!(Binary, (a, b) => a.min(b)),
        ("max", F64) => double!(Binary, (a, b) => a.max(b)),
        ("copysign", F64) => double!(Binary, (a, b) => b.copysign(a)),
        ("exch", _) => Some(|_, b| b),
        _ => super::half_scalar::binary(name, kind),
    }
}

/// Operations with three operands.
pub(crate) fn ternary(name: &str, kind: Type, suffixes: Suffixes<'_>) -> Option<Ternary> {
    use Type::{F32, F64, Signed, Unsigned};
    match (name, kind) {
        ("fma" | "mad", F32) if suffixes.has("rm") => {
            single!(Ternary, (a, b, c) => downward(f64::from(a).mul_add(f64::from(b), f64::from(c))))
        }
        ("fma" | "mad", F32) if suffixes.has("rp") => {
            single!(Ternary, (a, b, c) => upward(f64::from(a).mul_add(f64::from(b), f64::from(c))))
        }
        ("fma" | "mad", F32) if suffixes.has("rz") => {
            single!(Ternary, (a, b, c) => toward_zero(f64::from(a).mul_add(f64::from(b), f64::from(c))))
        }
        ("fma" | "mad", F32) if suffixes.has("sat") => {
            single!(Ternary, (a, b, c) => unit(a.mul_add(b, c)))
        }
        ("fma" | "mad", F32) => single!(Ternary, (a, b, c) => a.mul_add(b, c)),
        ("fma" | "mad", F64) => double!(Ternary, (a, b, c) => a.mul_add(b, c)),
        ("mad", _) if suffixes.has("wide") => match kind {
            Signed(4) => Some(|a, b, c| {
                (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
            }),
            Unsigned(4) => {
                Some(|a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c))
            }
            Signed(2) => Some(|a, b, c| {
                (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u64
            }),
            Unsigned(2) => Some(|a, b, c| {
                u64::from((u32::from(a as u16) * u32::from(b as u16)).wrapping_add(c as u32))
            }),
            _ => None,
        },
        ("mad", _) if suffixes.has("hi") => match kind {
            Signed(4) => Some(|a, b, c| {
                (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as i32).wrapping_add(c as i32)
                    as u64
            }),
            Unsigned(4) => Some(|a, b, c| {
                u64::from((((a & 0xFFFF_FFFF) * (b & 0xFFFF_FFFF)) >> 32) as u32).wrapping_add(c)
            }),
            Unsigned(8) => {
                Some(|a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c))
            }
            Signed(8) => Some(|a, b, c| {
                (((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64).wrapping_add(c)
            }),
            _ => None,
        },
        ("mad" | "mad24", _) => {
            integers!(kind, Ternary, (a, b, c) => a.wrapping_mul(b).wrapping_add(c))
        }
        ("sad", Signed(4)) => {
            Some(|a, b, c| u64::from((a as i32).abs_diff(b as i32).wrapping_add(c as u32)))
        }
        ("sad", Unsigned(4)) => {
            Some(|a, b, c| u64::from((a as u32).abs_diff(b as u32).wrapping_add(c as u32)))
        }
        ("bfe", Unsigned(4)) => Some(|a, b, c| field(a & 0xFFFF_FFFF, b, c)),
        ("bfe", Unsigned(8)) => Some(field),
        ("bfe", Signed(4)) => Some(|a, b, c| signed_field(a as i32 as u64, b, c, 32)),
        ("bfe", Signed(8)) => Some(|a, b, c| signed_field(a, b, c, 64)),
        ("shf", _) => funnel(suffixes),
        ("prmt", _) if suffixes.0.is_empty() => Some(permute),
        ("fma", _) => super::half_scalar::ternary(name, kind),
        _ => None,
    }
}

/// `len` bits of `a` from bit `at` on.
fn field(a: u64, at: u64, len: u64) -> u64 {
    let (at, len) = (at & 0xFF, len & 0xFF);
    let shifted = a.checked_shr(at as u32).unwrap_or(0);
    if len >= 64 { shifted } else { shifted & ((1 << len) - 1) }
}

/// The same with its sign; beyond the width, the width's own sign.
fn signed_field(a: u64, at: u64, len: u64, width: u64) -> u64 {
    let (at, len) = (at & 0xFF, len & 0xFF);
    if len == 0 {
        return 0;
    }
    let top = (at + len - 1).min(width - 1);
    let low = field(a, at, (top + 1).saturating_sub(at));
    let kept = (top + 1).saturating_sub(at).min(63);
    if a >> top & 1 == 1 { low | u64::MAX << kept } else { low }
}

fn funnel(suffixes: Suffixes<'_>) -> Option<Ternary> {
    match (suffixes.has("l"), suffixes.has("wrap")) {
        (true, true) => Some(|a, b, c| ((pair(a, b) << (c & 31)) >> 32) & 0xFFFF_FFFF),
        (true, false) => {
            Some(|a, b, c| ((u128::from(pair(a, b)) << (c as u32).min(32)) >> 32) as u32 as u64)
        }
        (false, true) => Some(|a, b, c| (pair(a, b) >> (c & 31)) & 0xFFFF_FFFF),
        (false, false) => Some(|a, b, c| (pair(a, b) >> (c as u32).min(32)) & 0xFFFF_FFFF),
    }
}

fn pair(low: u64, high: u64) -> u64 {
    high << 32 | low & 0xFFFF_FFFF
}

/// Picks four bytes of two registers; a selector's high bit spreads that byte's sign.
fn permute(a: u64, b: u64, selectors: u64) -> u64 {
    let bytes = pair(a, b).to_le_bytes();
    let mut picked = [0u8; 8];
    for (i, to) in picked.iter_mut().take(4).enumerate() {
        let selector = (selectors >> (4 * i)) as usize;
        let byte = bytes[selector & 7];
        *to = if selector & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
    }
    u64::from_le_bytes(picked)
}

/// Into [0, 1], with 0 for NaN.
pub(crate) fn unit(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
}

/// The nearest `f32` that is not above `x`.
pub(crate) fn downward(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x { near.next_down() } else { near }
}

/// The nearest `f32` that is not below `x`.
pub(crate) fn upward(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) < x { near.next_up() } else { near }
}

/// The nearest `f32` that is not farther from zero.
pub(crate) fn toward_zero(x: f64) -> f32 {
    if x < 0.0 { upward(x) } else { downward(x) }
}
