//! Comparisons: 1 when they hold, else 0.

use super::scalar::{Binary, integers};
use super::types::Type;
use half::{bf16, f16};
use std::cmp::Ordering::{Equal, Greater, Less};

/// A question about how two floats compare; `None` when one of them is a NaN.
macro_rules! floats {
    ($kind:expr, $answers:pat) => {
        match $kind {
            Type::F32 => Some(
                (|a: u64, b: u64| {
                    let order = f32::from_bits(a as u32).partial_cmp(&f32::from_bits(b as u32));
                    u64::from(matches!(order, $answers))
                }) as Binary,
            ),
            Type::F64 => Some(
                (|a: u64, b: u64| {
                    u64::from(matches!(f64::from_bits(a).partial_cmp(&f64::from_bits(b)), $answers))
                }) as Binary,
            ),
            Type::F16 => Some(
                (|a: u64, b: u64| {
                    let order = f16::from_bits(a as u16).partial_cmp(&f16::from_bits(b as u16));
                    u64::from(matches!(order, $answers))
                }) as Binary,
            ),
            Type::BF16 => Some(
                (|a: u64, b: u64| {
                    let order = bf16::from_bits(a as u16).partial_cmp(&bf16::from_bits(b as u16));
                    u64::from(matches!(order, $answers))
                }) as Binary,
            ),
            _ => None,
        }
    };
}

/// The comparison that a suffix names, for a type.
#[expect(clippy::redundant_pattern_matching, reason = "one macro asks every question")]
pub(crate) fn comparison(name: &str, kind: Type) -> Option<Binary> {
    if kind.is_float() {
        return match name {
            "eq" => floats!(kind, Some(Equal)),
            "ne" => floats!(kind, Some(Less | Greater)),
            "lt" => floats!(kind, Some(Less)),
            "le" => floats!(kind, Some(Less | Equal)),
            "gt" => floats!(kind, Some(Greater)),
            "ge" => floats!(kind, Some(Greater | Equal)),
            // With a u, a NaN makes the comparison hold.
            "equ" => floats!(kind, None | Some(Equal)),
            "neu" => floats!(kind, None | Some(Less | Greater)),
            "ltu" => floats!(kind, None | Some(Less)),
            "leu" => floats!(kind, None | Some(Less | Equal)),
            "gtu" => floats!(kind, None | Some(Greater)),
            "geu" => floats!(kind, None | Some(Greater | Equal)),
            "num" => floats!(kind, Some(_)),
            "nan" => floats!(kind, None),
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
