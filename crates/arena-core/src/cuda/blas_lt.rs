//! cuBLASLt in the memory of the arena: products with a bias and an activation, in a workspace that is a persistent
//! buffer.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig, sys as lt};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use super::library::{current, declare_workspace, missing, pointer, refused};
use crate::buffer::Persistent;
use crate::device::Cuda;
use crate::device::cuda::enabled::context::with_current;
use crate::error::Error;

/// A cuBLASLt handle whose workspace is a persistent buffer of an arena. It takes no other device memory.
///
/// It is for programs that use `CudaBlasLT` of cudarc, which allocates its workspace from the driver:
/// [`matmul`](Self::matmul) takes the same arguments.
///
/// ```no_run
/// use arena_core::cuda::{Blas, BlasLt};
/// use arena_core::cudarc::cublaslt::MatmulConfig;
/// use arena_core::{Alignment, ByteSize, Cuda, RawArena};
///
/// let arena = RawArena::new(Cuda::new(0)?, ByteSize::mib(64))?;
/// let stream = arena.device().stream();
/// let bytes = usize::try_from(Blas::recommended_bytes(stream)?).unwrap();
/// let mut blas = BlasLt::on(stream, arena.persistent(bytes, Alignment::CUBLAS_WORKSPACE)?)?;
///
/// let weights = arena.persistent_from(&[1.0_f32, 2.0, 3.0, 4.0])?; // 2 x 2, by columns
/// let x = arena.transient_from(&[1.0_f32, 1.0], Alignment::DEFAULT)?;
/// let mut y = arena.transient::<f32>(2, Alignment::DEFAULT)?;
/// let config = MatmulConfig {
///     transa: false,
///     transb: false,
///     transc: false,
///     m: 2,
///     n: 1,
///     k: 2,
///     alpha: 1.0,
///     lda: 2,
///     ldb: 2,
///     beta: 0.0,
///     ldc: 2,
///     stride_a: None,
///     stride_b: None,
///     stride_c: None,
///     stride_bias: None,
///     batch_size: None,
/// };
/// // SAFETY: the sizes are those of the three buffers.
/// unsafe { blas.matmul(&config, &weights, &x, &mut y, None, None) }?;
/// assert_eq!(y.view().to_vec()?, [4.0, 6.0]);
/// # Ok::<(), arena_core::Error>(())
/// ```
#[derive(Debug)]
pub struct BlasLt {
    /// A live handle, made in the stream's context and destroyed by the drop alone.
    handle: lt::cublasLtHandle_t,
    stream: Arc<CudaStream>,
    workspace: Persistent<u8, Cuda>,
}

// SAFETY: a handle may be used from any thread. The workspace may not be used by two products at once: hence no `Sync`,
// and `matmul` needs exclusive access.
unsafe impl Send for BlasLt {}

impl Drop for BlasLt {
    fn drop(&mut self) {
        let _ = with_current(self.stream.context(), || {
            // SAFETY: the handle is live and not used again. Queued work keeps what it needs; the workspace's bytes are
            // used again in the order of the stream.
            let _ = unsafe { result::destroy_handle(self.handle) };
            Ok(())
        });
    }
}

impl BlasLt {
    /// A handle that queues its work on `stream` and works in `workspace`, of
    /// [`Blas::recommended_bytes`](super::Blas::recommended_bytes): with less, cuBLASLt has fewer algorithms to choose
    /// from. Make the workspace before the mark is set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for a workspace on another device than the stream;
    /// [`ErrorKind::Misaligned`](crate::ErrorKind::Misaligned) where it is not aligned to
    /// [`Alignment::CUBLAS_WORKSPACE`](crate::Alignment::CUBLAS_WORKSPACE);
    /// [`DeviceErrorKind::Unavailable`](crate::DeviceErrorKind::Unavailable) when the loader finds no cuBLASLt; or the
    /// refusal of cuBLASLt or of the driver.
    pub fn on(stream: &Arc<CudaStream>, workspace: Persistent<u8, Cuda>) -> Result<Self, Error> {
        let context = stream.context();
        // SAFETY: opening cuBLASLt runs no code but its own initialisation.
        if !unsafe { lt::is_culib_present() } {
            return Err(missing(context, "cublasLtCreate", "libcublasLt").into());
        }
        declare_workspace(&workspace, stream)?;
        let handle = current(context, || {
            let made = result::create_handle();
            made.map_err(|CublasError(status)| {
                refused(context, "cublasLtCreate", &status, status as u32, Some(&workspace))
            })
        })?;
        Ok(Self { handle, stream: Arc::clone(stream), workspace })
    }

    /// The handle, for other calls of cuBLASLt with the context of [`stream`](Self::stream) current. It must not be
    /// destroyed.
    #[must_use]
    pub const fn handle(&self) -> lt::cublasLtHandle_t {
        self.handle
    }

    /// The stream that the work is queued on.
    #[must_use]
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The device address of the workspace, for other calls of cuBLASLt on the same stream.
    #[must_use]
    pub fn workspace_address(&self) -> u64 {
        self.workspace.address()
    }

    /// Bytes of the workspace.
    #[must_use]
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.len() as u64
    }

    /// Queues `c = activation(alpha * a * b + beta * c + bias)`, of matrices by columns, with the algorithm that
    /// cuBLASLt recommends. It adds up in full `f32` precision, where cudarc's `CudaBlasLT` rounds `f32` to TF32. The
    /// operands may be persistent, transient, lent, or of cudarc's.
    ///
    /// # Errors
    ///
    /// The refusal of cuBLASLt, which also finds no algorithm for some shapes; nothing is queued then.
    ///
    /// # Safety
    ///
    /// The matrices that `config` describes lie inside `a`, `b`, `c`, and `bias`, which has `m` elements for each
    /// product of the batch, or for all of them.
    pub unsafe fn matmul<T>(
        &mut self,
        config: &MatmulConfig,
        a: &dyn DevicePtr<T>,
        b: &dyn DevicePtr<T>,
        c: &mut dyn DevicePtrMut<T>,
        bias: Option<&dyn DevicePtr<T>>,
        activation: Option<&Activation>,
    ) -> Result<(), Error>
    where
        CudaBlasLT: Matmul<T>,
    {
        let (stream, workspace) = (&self.stream, &self.workspace);
        let context = stream.context();
        let failed = |(call, CublasError(status)): (&'static str, CublasError)| {
            refused(context, call, &status, status as u32, Some(workspace))
        };
        let element = <CudaBlasLT as Matmul<T>>::matrix_type();
        let queued = current(context, || {
            let (bias, _bias) = bias.map(|bias| bias.device_ptr(stream)).unzip();
            let product = Product::new(element, config, bias, activation).map_err(failed)?;
            let algorithm = product.algorithm(self.handle, workspace.len()).map_err(failed)?;
            let (a, _a) = a.device_ptr(stream);
            let (b, _b) = b.device_ptr(stream);
            let (c, _c) = c.device_ptr_mut(stream);
            // On another stream than the arena's, the workspace's reuse is ordered by its declaration.
            let work = pointer(workspace.address());
            // SAFETY: all descriptions are live, and what they describe lies inside the operands by the caller's
            // promise; the workspace has the bytes that the algorithm was chosen for, and is this handle's. The factors
            // are read before the call returns.
            let status = unsafe {
                result::matmul(
                    self.handle,
                    product.description.handle,
                    (&raw const config.alpha).cast(),
                    (&raw const config.beta).cast(),
                    pointer(a),
                    product.a.handle,
                    pointer(b),
                    product.b.handle,
                    pointer(c),
                    product.c.handle,
                    pointer(c),
                    product.c.handle,
                    &raw const algorithm.algo,
                    work,
                    workspace.len(),
                    stream.cu_stream().cast(),
                )
            };
            status.map_err(|error| failed(("cublasLtMatmul", error)))
        });
        Ok(queued?)
    }
}

/// Something of cuBLASLt's that a product is described by.
struct Described<H: Copy> {
    /// Live until the drop.
    handle: H,
    destroy: unsafe fn(H) -> Result<(), CublasError>,
}

impl<H: Copy> Drop for Described<H> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and not used again.
        let _ = unsafe { (self.destroy)(self.handle) };
    }
}

type Failed = (&'static str, CublasError);
type Layout = Described<lt::cublasLtMatrixLayout_t>;

/// The description of a product.
struct Product {
    description: Described<lt::cublasLtMatmulDesc_t>,
    a: Layout,
    b: Layout,
    c: Layout,
}

impl Product {
    fn new(
        element: lt::cudaDataType,
        config: &MatmulConfig,
        bias: Option<u64>,
        activation: Option<&Activation>,
    ) -> Result<Self, Failed> {
        let MatmulConfig { m, n, k, .. } = *config;
        let layout = |transposed, rows, cols, leading, stride| {
            let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
            layout(element, rows, cols, leading, config.batch_size.zip(stride))
        };
        let product = Self {
            description: describe()?,
            a: layout(config.transa, m, k, config.lda, config.stride_a)?,
            b: layout(config.transb, k, n, config.ldb, config.stride_b)?,
            c: layout(false, m, n, config.ldc, config.stride_c)?,
        };
        use lt::cublasLtMatmulDescAttributes_t as attribute;
        product.set(attribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(config.transa))?;
        product.set(attribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(config.transb))?;
        product.set(attribute::CUBLASLT_MATMUL_DESC_TRANSC, i32::from(config.transc))?;
        product
            .set(attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(bias.is_some(), activation))?;
        if let Some(address) = bias {
            product.set(attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, address)?;
            if let Some(stride) = config.stride_bias {
                product.set(attribute::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, stride)?;
            }
        }
        Ok(product)
    }

    fn set<V>(
        &self,
        attribute: lt::cublasLtMatmulDescAttributes_t,
        value: V,
    ) -> Result<(), Failed> {
        let (value, bytes) = ((&raw const value).cast(), size_of::<V>());
        // SAFETY: the description is live; the value is read before the call returns.
        let set = unsafe {
            result::set_matmul_desc_attribute(self.description.handle, attribute, value, bytes)
        };
        set.map_err(|error| ("cublasLtMatmulDescSetAttribute", error))
    }

    /// The algorithm that cuBLASLt recommends, among those that need no more than so many bytes.
    fn algorithm(
        &self,
        handle: lt::cublasLtHandle_t,
        workspace_bytes: usize,
    ) -> Result<lt::cublasLtMatmulHeuristicResult_t, Failed> {
        let made = result::create_matmul_pref();
        let handle_of_preference =
            made.map_err(|error| ("cublasLtMatmulPreferenceCreate", error))?;
        let preference =
            Described { handle: handle_of_preference, destroy: result::destroy_matmul_pref };
        // SAFETY: the preference is live; the value is read before the call returns.
        let set = unsafe {
            result::set_matmul_pref_attribute(
                preference.handle,
                lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace_bytes).cast(),
                size_of::<usize>(),
            )
        };
        set.map_err(|error| ("cublasLtMatmulPreferenceSetAttribute", error))?;
        let (a, b, c) = (self.a.handle, self.b.handle, self.c.handle);
        // SAFETY: all of them are live.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                handle,
                self.description.handle,
                a,
                b,
                c,
                c,
                preference.handle,
            )
        };
        found.map_err(|error| ("cublasLtMatmulAlgoGetHeuristic", error))
    }
}

fn describe() -> Result<Described<lt::cublasLtMatmulDesc_t>, Failed> {
    let (compute, scale) =
        (lt::cublasComputeType_t::CUBLAS_COMPUTE_32F, lt::cudaDataType_t::CUDA_R_32F);
    let made = result::create_matmul_desc(compute, scale);
    let handle = made.map_err(|error| ("cublasLtMatmulDescCreate", error))?;
    Ok(Described { handle, destroy: result::destroy_matmul_desc })
}

/// A matrix as it is stored, or a batch of them with the elements from one to the next.
fn layout(
    element: lt::cudaDataType,
    rows: u64,
    cols: u64,
    leading: i64,
    batch: Option<(c_int, i64)>,
) -> Result<Layout, Failed> {
    let made = result::create_matrix_layout(element, rows, cols, leading);
    let handle = made.map_err(|error| ("cublasLtMatrixLayoutCreate", error))?;
    let layout = Described { handle, destroy: result::destroy_matrix_layout };
    if let Some((count, stride)) = batch {
        use lt::cublasLtMatrixLayoutAttribute_t as attribute;
        let set = |attribute, value, bytes| {
            // SAFETY: the layout is live; the value is one of the two above, and read before the call returns.
            let set =
                unsafe { result::set_matrix_layout_attribute(handle, attribute, value, bytes) };
            set.map_err(|error| ("cublasLtMatrixLayoutSetAttribute", error))
        };
        let (count, stride) = (&raw const count, &raw const stride);
        let count_of = attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        let stride_of = attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        set(count_of, count.cast(), size_of::<c_int>())?;
        set(stride_of, stride.cast(), size_of::<i64>())?;
    }
    Ok(layout)
}

fn epilogue(has_bias: bool, activation: Option<&Activation>) -> lt::cublasLtEpilogue_t {
    use lt::cublasLtEpilogue_t as epilogue;
    match (activation, has_bias) {
        (None, false) => epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (None, true) => epilogue::CUBLASLT_EPILOGUE_BIAS,
        (Some(Activation::Relu), false) => epilogue::CUBLASLT_EPILOGUE_RELU,
        (Some(Activation::Relu), true) => epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Some(Activation::Gelu), false) => epilogue::CUBLASLT_EPILOGUE_GELU,
        (Some(Activation::Gelu), true) => epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}
