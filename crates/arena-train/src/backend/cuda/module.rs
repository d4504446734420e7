//! The kernels as loaded functions, each with the types of its parameters.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, result};
use cudarc::nvrtc::Ptx;

use super::error::CudaError;

/// Threads of a block of the kernels that give each element a thread.
const BLOCK: u32 = 256;

/// Blocks and threads, in x and y.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: (u32, u32),
    pub(super) threads: (u32, u32),
}

impl Grid {
    /// A thread for each of `count` elements. Not for zero: a launch needs a block.
    pub(super) const fn flat(count: u32) -> Self {
        Self { blocks: (count.div_ceil(BLOCK), 1), threads: (BLOCK, 1) }
    }

    /// One block.
    pub(super) const fn block(threads: u32) -> Self {
        Self { blocks: (1, 1), threads: (threads, 1) }
    }
}

/// How PTX names the type of a parameter.
macro_rules! ptx_type {
    (u64) => {
        "u64"
    };
    (u32) => {
        "u32"
    };
    (f32) => {
        "f32"
    };
}

/// Declares the kernels: a field for each function, a method that launches it, and its signature.
macro_rules! kernels {
    ($($name:ident($($parameter:ident: $kind:ident),*);)*) => {
        /// The functions of the loaded module.
        #[derive(Debug)]
        pub(super) struct Module {
            stream: Arc<CudaStream>,
            $($name: CudaFunction,)*
        }

        /// Each kernel's name and the types of its parameters, as PTX writes them: what the
        /// launches in this program pass. A pointer is a `u64`.
        pub const SIGNATURES: &[(&str, &[&str])] =
            &[$((stringify!($name), &[$(ptx_type!($kind)),*])),*];

        impl Module {
            /// Loads the kernels into the stream's context; they will be queued on the stream.
            pub(super) fn load(
                context: &Arc<CudaContext>,
                stream: Arc<CudaStream>,
                code: Ptx,
            ) -> Result<Self, CudaError> {
                let module = context
                    .load_module(code)
                    .map_err(CudaError::driver("cuModuleLoadData"))?;
                $(let $name = module
                    .load_function(stringify!($name))
                    .map_err(CudaError::driver(stringify!($name)))?;)*
                Ok(Self { stream, $($name,)* })
            }

            $(
                /// Queues the kernel of this name.
                ///
                /// # Safety
                ///
                /// Every access that the kernel makes with these arguments lies in memory that the
                /// callers of [`Input::new`](super::Input::new) and
                /// [`Output::new`](super::Output::new) vouch for, and the grid has a block.
                #[allow(clippy::too_many_arguments, reason = "the kernel's own; not all have many")]
                pub(super) unsafe fn $name(
                    &self,
                    grid: Grid,
                    $($parameter: $kind,)*
                ) -> Result<(), CudaError> {
                    let mut parameters = [$((&raw const $parameter).cast_mut().cast()),*];
                    // SAFETY: the parameters are those of the kernel by number and type, which a
                    // test compares with the PTX; what they point at is the caller's promise.
                    unsafe { self.launch(&self.$name, stringify!($name), grid, &mut parameters) }
                }
            )*
        }
    };
}

kernels! {
    im2col(images: u64, patches: u64, in_rows: u32, in_cols: u32, channels: u32, kernel: u32, count: u32);
    col2im(patches: u64, images: u64, in_rows: u32, in_cols: u32, channels: u32, kernel: u32, count: u32);
    bias_relu_pool(sums: u64, bias: u64, output: u64, routes: u64, out_cols: u32, channels: u32, count: u32);
    unpool(gradient: u64, routes: u64, sums_gradient: u64, out_cols: u32, channels: u32, count: u32);
    bias_activation(values: u64, bias: u64, features: u32, relu: u32, count: u32);
    relu_mask(gradient: u64, relu_output: u64, count: u32);
    column_sums(values: u64, routes: u64, sums: u64, rows: u32, cols: u32, chunk_rows: u32);
    softmax_cross_entropy(logits: u64, labels: u64, mean: u64, hits: u64, gradient: u64, batch: u32, classes: u32);
    sgd(parameters: u64, gradients: u64, velocity: u64, rate: f32, momentum: f32, count: u32);
    sgd_scheduled(parameters: u64, gradients: u64, velocity: u64, rates: u64, momentum: f32, count: u32);
    adam(parameters: u64, gradients: u64, mean: u64, mean_square: u64, rate: f32, beta1: f32, beta2: f32, epsilon: f32, kept: f32, count: u32);
    adam_scheduled(parameters: u64, gradients: u64, mean: u64, mean_square: u64, rates: u64, beta1: f32, beta2: f32, count: u32);
    advance_sgd(steps: u64, rates: u64, learning_rate: f32, total: u64);
    advance_adam(steps: u64, rates: u64, learning_rate: f32, beta1: f32, beta2: f32, epsilon: f32, weight_decay: f32, total: u64);
    load_batch(bytes: u64, pixels: u64, labels: u64, scale: f32, shift: f32, pixel_count: u32, count: u32);
    fill(values: u64, value: f32, count: u32);
    layer_norm_forward(input: u64, weight: u64, bias: u64, output: u64, statistics: u64, width: u32, rows: u32);
    layer_norm_input_gradient(input: u64, statistics: u64, weight: u64, above: u64, residual: u64, gradient: u64, width: u32, rows: u32);
    layer_norm_weight_gradient(input: u64, statistics: u64, above: u64, weight_gradient: u64, bias_gradient: u64, width: u32, rows: u32);
    gelu_forward(input: u64, output: u64, count: u32);
    gelu_input_gradient(input: u64, above: u64, gradient: u64, count: u32);
    add(left: u64, right: u64, sum: u64, count: u32);
    add_scaled(sum: u64, values: u64, scale: f32, count: u32);
    dropout(values: u64, threshold: u32, scale: f32, seed_low: u32, seed_high: u32, step: u32, layer: u32, count: u32);
    embedding_forward(tokens: u64, token_table: u64, position_table: u64, output: u64, context: u32, vocabulary: u32, width: u32, count: u32);
    embedding_token_gradient(tokens: u64, above: u64, gradient: u64, token_count: u32, width: u32, count: u32);
    embedding_position_gradient(above: u64, gradient: u64, batch: u32, row: u32, count: u32);
    attention_forward(input: u64, output: u64, log_sums: u64, scale: f32, context: u32, heads: u32, width: u32, count: u32);
    attention_query_gradient(input: u64, output: u64, log_sums: u64, above: u64, gradient: u64, scale: f32, context: u32, heads: u32, width: u32, count: u32);
    attention_key_gradient(input: u64, output: u64, log_sums: u64, above: u64, gradient: u64, scale: f32, context: u32, heads: u32, width: u32, count: u32);
}

impl Module {
    pub(super) const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// # Safety
    ///
    /// `parameters` point at the kernel's parameters, in its order, and what these point at is as
    /// the kernel needs it.
    unsafe fn launch(
        &self,
        function: &CudaFunction,
        name: &'static str,
        grid: Grid,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // Not cudarc's launch builder: it puts the parameters on the heap, and a step allocates
        // nothing there.
        self.stream.context().bind_to_thread().map_err(CudaError::driver(name))?;
        let (function, stream) = (function.cu_function(), self.stream.cu_stream());
        let blocks = (grid.blocks.0, grid.blocks.1, 1);
        let threads = (grid.threads.0, grid.threads.1, 1);
        // SAFETY: the function's module is loaded as long as `self` lives, the stream too, and its
        // context is current; the parameters are as the caller says.
        unsafe { result::launch_kernel(function, blocks, threads, 0, stream, parameters) }
            .map_err(CudaError::driver(name))
    }
}
