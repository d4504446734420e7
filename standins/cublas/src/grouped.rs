//! Groups of matrix products: the products of a group have one shape.

use crate::driver::{framed, is_known};
use crate::gemm::{Operand, Request, product, scalar_of};
use crate::matrix::Element;
use crate::status::{Outcome, Status};
use std::ffi::c_int;

/// A list of the caller's in host memory. Only foreign callers make one; it has as many values as the interface says.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T: Copy> List<T> {
    fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    fn at(self, index: usize) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule the list has a value at each index that the interface asks for.
        Ok(unsafe { self.0.wrapping_add(index).read() })
    }
}

/// The lists of one operand: addresses by product, leading dimensions by group.
struct Operands {
    addresses: List<u64>,
    element: Element,
    leading: List<c_int>,
}

impl Operands {
    fn new(addresses: List<u64>, kind: u32, leading: List<c_int>) -> Result<Self, Status> {
        // The documentation has these lists in device memory, cudarc passes them from the host. Those of the host are
        // known at the call; the others would be only when their turn comes, and so would what they touch.
        if is_known(addresses.address())? {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Self { addresses, element: Element::from_raw(kind)?, leading })
    }

    fn operand(&self, group: usize, product: usize) -> Result<Operand, Status> {
        Ok(Operand(self.addresses.at(product)?, self.element, self.leading.at(group)?, 0))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmGroupedBatchedEx(
    handle: u64,
    transa: List<u32>,
    transb: List<u32>,
    m: List<c_int>,
    n: List<c_int>,
    k: List<c_int>,
    alpha: u64,
    a: List<u64>,
    type_a: u32,
    lda: List<c_int>,
    b: List<u64>,
    type_b: u32,
    ldb: List<c_int>,
    beta: u64,
    c: List<u64>,
    type_c: u32,
    ldc: List<c_int>,
    groups: c_int,
    sizes: List<c_int>,
    compute: u32,
) -> u32 {
    let name = "cublasGemmGroupedBatchedEx";
    framed(name, || -> Outcome {
        let scalar = scalar_of(compute)?;
        let operands = [
            Operands::new(a, type_a, lda)?,
            Operands::new(b, type_b, ldb)?,
            Operands::new(c, type_c, ldc)?,
        ];
        let groups = usize::try_from(groups).map_err(|_| Status::INVALID_VALUE)?;
        let mut next = 0;
        for group in 0..groups {
            let size = usize::try_from(sizes.at(group)?).map_err(|_| Status::INVALID_VALUE)?;
            for index in next..next + size {
                let [a, b, c] = [0, 1, 2].map(|i: usize| operands[i].operand(group, index));
                product(Request {
                    name,
                    handle,
                    operations: [transa.at(group)?, transb.at(group)?],
                    shape: [m.at(group)?, n.at(group)?, k.at(group)?],
                    alpha: alpha + group as u64 * scalar.bytes(),
                    beta: beta + group as u64 * scalar.bytes(),
                    scalar,
                    a: a?,
                    b: b?,
                    c: c?,
                    batch: 1,
                })?;
            }
            next += size;
        }
        Ok(())
    })
}
