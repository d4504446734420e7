//! How the products of a matrix product are added up.
//!
//! A library adds them up in single precision, as partial sums whose number depends on the device and the shape, and so
//! are the last bits of what it gives. One device gives the same bits each time.

use crate::matrix::Element;

/// How one product adds up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Summation {
    /// In double precision, in order: as near to the exact sum as can be.
    Exact,
    /// In this precision, as so many partial sums, which are joined in pairs at the end.
    Partial { element: Element, sums: usize, fused: bool },
}

impl Summation {
    /// The summation of a device, of which 0 is the exact one, for a shape.
    pub(crate) fn new(device: u64, scalar: Element, shape: [u64; 3]) -> Self {
        if device == 0 {
            return Self::Exact;
        }
        let mixed = shape.iter().fold(device, |mixed, size| {
            let mixed = (mixed ^ size).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed ^ mixed >> 31
        });
        let element = if scalar == Element::F64 { Element::F64 } else { Element::F32 };
        Self::Partial { element, sums: 1 << (mixed >> 8 & 3), fused: mixed >> 16 & 1 == 1 }
    }

    /// The sum of the products of two lists.
    pub(crate) fn dot(
        self,
        left: impl Iterator<Item = f64>,
        right: impl Iterator<Item = f64>,
    ) -> f64 {
        let pairs = left.zip(right);
        let Self::Partial { element, sums, fused } = self else {
            return pairs.map(|(a, b)| a * b).sum();
        };
        let rounded =
            |value: f64| if element == Element::F32 { f64::from(value as f32) } else { value };
        let mut partial = [0.0; 8];
        for (i, (a, b)) in pairs.enumerate() {
            let sum = &mut partial[i % sums];
            // A double holds the product of two singles.
            *sum = match (element, fused) {
                (Element::F64, true) => a.mul_add(b, *sum),
                (_, true) => rounded(a * b + *sum),
                (_, false) => rounded(rounded(a * b) + *sum),
            };
        }
        let mut count = sums;
        while count > 1 {
            count /= 2;
            for i in 0..count {
                partial[i] = rounded(partial[i] + partial[i + count]);
            }
        }
        partial[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn devices_differ_in_the_last_bits_and_each_repeats_itself() {
        let numbers = |factor: f64| {
            (1..200)
                .map(move |i| f64::from((f64::from(i) * factor).sin() as f32))
                .collect::<Vec<_>>()
        };
        let (a, b) = (numbers(0.7), numbers(1.3));
        let dot = |device| {
            let summation = Summation::new(device, Element::F32, [3, 4, 199]);
            summation.dot(a.iter().copied(), b.iter().copied())
        };
        let exact = dot(0);
        let results: BTreeSet<u64> = (1..30).map(|device| dot(device).to_bits()).collect();
        assert!(results.len() > 3, "{} results", results.len());
        for device in 1..30 {
            assert_eq!(dot(device).to_bits(), dot(device).to_bits());
            assert!((dot(device) - exact).abs() < 1e-5, "{} instead of {exact}", dot(device));
        }
    }
}
