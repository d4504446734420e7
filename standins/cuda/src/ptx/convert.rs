//! `cvt`: between types, with rounding and saturation.

use super::scalar::{Suffixes, Unary, downward, single, toward_zero, unit, upward};
use super::types::Type;
use half::{bf16, f16};

/// The value of a float of type `from` in a register.
fn float_value(from: Type, bits: u64) -> f64 {
    match from {
        Type::F16 => f16::from_bits(bits as u16).to_f64(),
        Type::BF16 => bf16::from_bits(bits as u16).to_f64(),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

fn integer_value(from: Type, bits: u64) -> i128 {
    match from {
        Type::Signed(1) => i128::from(bits as i8),
        Type::Signed(2) => i128::from(bits as i16),
        Type::Signed(4) => i128::from(bits as i32),
        Type::Signed(_) => i128::from(bits as i64),
        Type::Unsigned(1) | Type::Bits(1) => i128::from(bits as u8),
        Type::Unsigned(2) | Type::Bits(2) => i128::from(bits as u16),
        Type::Unsigned(4) | Type::Bits(4) => i128::from(bits as u32),
        _ => i128::from(bits),
    }
}

/// The range of an integer type.
fn limits(to: Type) -> (i128, i128) {
    let bits = 8 * u32::from(to.bytes());
    if to.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// A conversion that has no function of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    to: Type,
    from: Type,
    rounding: Rounding,
    /// The float is rounded to a whole number.
    whole: bool,
    saturates: bool,
    relu: bool,
}

impl Conversion {
    /// The conversion that the suffixes describe; `None` when it is not supported.
    pub(crate) fn new(to: Type, from: Type, suffixes: Suffixes<'_>) -> Option<Self> {
        let whole = ["rni", "rzi", "rmi", "rpi"].iter().any(|s| suffixes.has(s));
        let rounding = match () {
            () if suffixes.has("rzi") || suffixes.has("rz") => Rounding::Zero,
            () if suffixes.has("rmi") || suffixes.has("rm") => Rounding::Down,
            () if suffixes.has("rpi") || suffixes.has("rp") => Rounding::Up,
            () => Rounding::Nearest,
        };
        let pairs = |kind| matches!(kind, Type::F16x2 | Type::BF16x2 | Type::Pred);
        let halved =
            matches!(to, Type::F16 | Type::BF16) && rounding != Rounding::Nearest && !whole;
        if pairs(to) || pairs(from) || halved {
            return None;
        }
        let (saturates, relu) = (suffixes.has("sat"), suffixes.has("relu"));
        Some(Self { to, from, rounding, whole, saturates, relu })
    }

    /// Converts the bits of a register.
    pub(crate) fn apply(&self, bits: u64) -> u64 {
        if self.from.is_float() {
            let mut value = float_value(self.from, bits);
            if !self.to.is_float() {
                return self.float_to_integer(value);
            }
            if self.whole {
                value = round(value, self.rounding);
            }
            if self.saturates {
                value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) };
            }
            if self.relu {
                value = value.max(0.0);
            }
            return self.float_bits(value);
        }
        let value = integer_value(self.from, bits);
        if !self.to.is_float() {
            let (low, high) = limits(self.to);
            return if self.saturates {
                value.clamp(low, high) as u64
            } else {
                integer_value(self.to, value as u64) as u64
            };
        }
        match (self.to, self.rounding) {
            // Straight from the integer, so that nothing is rounded twice.
            (Type::F32, Rounding::Nearest) => u64::from((value as f32).to_bits()),
            (Type::F16, _) => u64::from(f16::from_f64(value as f64).to_bits()),
            _ => self.float_bits(value as f64),
        }
    }

    fn float_to_integer(&self, value: f64) -> u64 {
        if value.is_nan() {
            // A device gives 0 for 32 bits and less, and the topmost bit for 64.
            return if self.to.bytes() == 8 { 1 << 63 } else { 0 };
        }
        let (low, high) = limits(self.to);
        let rounding = if self.whole { self.rounding } else { Rounding::Zero };
        (round(value, rounding) as i128).clamp(low, high) as u64
    }

    fn float_bits(&self, value: f64) -> u64 {
        match self.to {
            Type::F16 => u64::from(f16::from_f64(value).to_bits()),
            Type::BF16 => u64::from(bf16::from_f64(value).to_bits()),
            Type::F64 => value.to_bits(),
            _ => u64::from(
                match self.rounding {
                    Rounding::Nearest => value as f32,
                    Rounding::Zero => toward_zero(value),
                    Rounding::Down => downward(value),
                    Rounding::Up => upward(value),
                }
                .to_bits(),
            ),
        }
    }
}

fn round(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// The commonest conversions as plain functions.
pub(crate) fn quick(to: Type, from: Type, suffixes: Suffixes<'_>) -> Option<Unary> {
    use Type::{F32, Signed, Unsigned};
    let is = |wanted: &[&str]| suffixes.0 == wanted;
    match (to, from) {
        (Signed(8) | Unsigned(8), Signed(4)) if is(&[]) => Some(|a| a as i32 as u64),
        (Unsigned(8) | Signed(8), Unsigned(4)) if is(&[]) => Some(|a| u64::from(a as u32)),
        (Unsigned(4) | Signed(4), Unsigned(8) | Signed(8)) if is(&[]) => {
            Some(|a| u64::from(a as u32))
        }
        (F32, Signed(4)) if is(&["rn"]) => Some(|a| u64::from((a as i32 as f32).to_bits())),
        (F32, Unsigned(4)) if is(&["rn"]) => Some(|a| u64::from((a as u32 as f32).to_bits())),
        (F32, F32) if is(&["sat"]) => single!(Unary, (a) => unit(a)),
        _ => None,
    }
}
