//! Comparisons: 1 when they hold, else 0.

use super::scalar::{Binary, integers};
use super::types::Type;
use half::{bf16, f16};

/// Both operands of a float comparison as doubles.
macro_rules! floats {
    ($kind:expr, ($a:ident, $b:ident) => $body:expr) => {
        match $kind {
            Type::F32 => Some(
                (|x: u64, y: u64| {
                    let ($a, $b) = (f32::from_bits(x as u32), f32::from_bits(y as u32));
                    u64::from($body)
                }) as Binary,
            ),
            Type::F64 => Some(
                (|x: u64, y: u64| {
                    let ($a, $b) = (f64::from_bits(x), f64::from_bits(y));
                    u64::from($body)
                }) as Binary,
            ),
            Type::F16 => Some(
                (|x: u64, y: u64| {
                    let ($a, $b) =
                        (f16::from_bits(x as u16).to_f32(), f16::from_bits(y as u16).to_f32());
                    u64::from($body)
                }) as Binary,
            ),
            Type::BF16 => Some(
                (|x: u64, y: u64| {
                    let ($a, $b) =
                        (bf16::from_bits(x as u16).to_f32(), bf16::from_bits(y as u16).to_f32());
                    u64::from($body)
                }) as Binary,
            ),
            _ => None,
        }
    };
}

/// The comparison that a suffix names, for a type.
pub(crate) fn comparison(name: &str, kind: Type) -> Option<Binary> {
    if kind.is_float() {
        return match name {
            "eq" => floats!(kind, (a, b) => a == b),
            "ne" => floats!(kind, (a, b) => a < b || a > b),
            "lt" => floats!(kind, (a, b) => a < b),
            "le" => floats!(kind, (a, b) => a <= b),
            "gt" => floats!(kind, (a, b) => a > b),
            "ge" => floats!(kind, (a, b) => a >= b),
            // With a u, a NaN makes the comparison hold.
            "equ" => floats!(kind, (a, b) => !(a < b || a > b)),
            "neu" => floats!(kind, (a, b) => a != b),
            "ltu" => floats!(kind, (a, b) => !(a >= b)),
            "leu" => floats!(kind, (a, b) => !(a > b)),
            "gtu" => floats!(kind, (a, b) => !(a <= b)),
            "geu" => floats!(kind, (a, b) => !(a < b)),
            "num" => floats!(kind, (a, b) => !a.is_nan() && !b.is_nan()),
            "nan" => floats!(kind, (a, b) => a.is_nan() || b.is_nan()),
            _ => None,
        };
    }
    // Unsigned ways of saying it, whatever the type says.
    let unsigned = Type::Unsigned(kind.bytes());
    match name {
        "eq" => integers!(kind, Binary, (a, b) => u8::from(a == b)),
        "ne" => integers!(kind, Binary, (a, b) => u8::from(a != b)),
        "lt" => integers!(kind, Binary, (a, b) => u8::from(a < b)),
        "le" => integers!(kind, Binary, (a, b) => u8::from(a <= b)),
        "gt" => integers!(kind, Binary, (a, b) => u8::from(a > b)),
        "ge" => integers!(kind, Binary, (a, b) => u8::from(a >= b)),
        "lo" => integers!(unsigned, Binary, (a, b) => u8::from(a < b)),
        "ls" => integers!(unsigned, Binary, (a, b) => u8::from(a <= b)),
        "hi" => integers!(unsigned, Binary, (a, b) => u8::from(a > b)),
        "hs" => integers!(unsigned, Binary, (a, b) => u8::from(a >= b)),
        _ => None,
    }
}
