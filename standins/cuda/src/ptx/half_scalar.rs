//! Arithmetic in half precision, alone and in pairs. Computed in wider floats and rounded once, which is exact for
//! these operations.

use super::scalar::{Binary, Ternary, Unary};
use super::types::Type;
use half::{bf16, f16};

/// The functions for one half of a register and for both, of one format.
macro_rules! halves {
    ($kind:expr, $f:ty, ($($x:ident),*) => $body:expr) => {
        match $kind {
            Type::F16 => Some((|$($x: u64),*| {
                $(let $x = f16::from_bits($x as u16).to_f64();)*
                u64::from(f16::from_f64($body).to_bits())
            }) as $f),
            Type::BF16 => Some((|$($x: u64),*| {
                $(let $x = bf16::from_bits($x as u16).to_f64();)*
                u64::from(bf16::from_f64($body).to_bits())
            }) as $f),
            Type::F16x2 => Some((|$($x: u64),*| {
                fn one($($x: u64),*) -> u64 {
                    $(let $x = f16::from_bits($x as u16).to_f64();)*
                    u64::from(f16::from_f64($body).to_bits())
                }
                one($($x),*) | one($($x >> 16),*) << 16
            }) as $f),
            Type::BF16x2 => Some((|$($x: u64),*| {
                fn one($($x: u64),*) -> u64 {
                    $(let $x = bf16::from_bits($x as u16).to_f64();)*
                    u64::from(bf16::from_f64($body).to_bits())
                }
                one($($x),*) | one($($x >> 16),*) << 16
            }) as $f),
            _ => None,
        }
    };
}

pub(super) fn unary(name: &str, kind: Type) -> Option<Unary> {
    match name {
        "neg" => halves!(kind, Unary, (a) => -a),
        "abs" => halves!(kind, Unary, (a) => a.abs()),
        "ex2" => halves!(kind, Unary, (a) => a.exp2()),
        "tanh" => halves!(kind, Unary, (a) => a.tanh()),
        _ => None,
    }
}

pub(super) fn binary(name: &str, kind: Type) -> Option<Binary> {
    match name {
        "add" => halves!(kind, Binary, (a, b) => a + b),
        "sub" => halves!(kind, Binary, (a, b) => a - b),
        "mul" => halves!(kind, Binary, (a, b) => a * b),
        "min" => halves!(kind, Binary, (a, b) => a.min(b)),
        "max" => halves!(kind, Binary, (a, b) => a.max(b)),
        _ => None,
    }
}

pub(super) fn ternary(name: &str, kind: Type) -> Option<Ternary> {
    match name {
        "fma" => halves!(kind, Ternary, (a, b, c) => a.mul_add(b, c)),
        _ => None,
    }
}
