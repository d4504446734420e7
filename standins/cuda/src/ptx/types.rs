//! The types of PTX instructions. Registers are 64 bits wide whatever they hold; an instruction's type says how many of
//! those bits it looks at.

/// How an instruction sees its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Pred,
    /// Untyped bits: number of bytes.
    Bits(u8),
    /// Unsigned: number of bytes.
    Unsigned(u8),
    /// Signed: number of bytes.
    Signed(u8),
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
}

impl Type {
    /// The type that a suffix names, without its dot.
    pub(crate) fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "pred" => Self::Pred,
            "b8" => Self::Bits(1),
            "b16" => Self::Bits(2),
            "b32" => Self::Bits(4),
            "b64" => Self::Bits(8),
            "u8" => Self::Unsigned(1),
            "u16" => Self::Unsigned(2),
            "u32" => Self::Unsigned(4),
            "u64" => Self::Unsigned(8),
            "s8" => Self::Signed(1),
            "s16" => Self::Signed(2),
            "s32" => Self::Signed(4),
            "s64" => Self::Signed(8),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::BF16,
            "bf16x2" => Self::BF16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub(crate) fn bytes(self) -> u8 {
        match self {
            Self::Pred => 1,
            Self::Bits(n) | Self::Unsigned(n) | Self::Signed(n) => n,
            Self::F16 | Self::BF16 => 2,
            Self::F16x2 | Self::BF16x2 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_))
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Self::Pred | Self::Bits(_) | Self::Unsigned(_) | Self::Signed(_))
    }
}
