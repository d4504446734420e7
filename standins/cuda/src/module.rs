//! Modules of kernels, and launches of them.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::device::limits;
use crate::driver::Driver;
use crate::image::Cubin;
use crate::memory::{Kind, Owner, Phase, Visitor};
use crate::ptx::{self, Conditions, Grid, Kernel, Order, Program, Rounding};
use crate::raw;
use crate::work::Fault;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Handle,
    program: Arc<Program>,
    variables: BTreeMap<String, (Address, u64)>,
    functions: BTreeMap<String, Handle>,
}

/// A kernel of a loaded module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) context: Handle,
    pub(crate) name: CString,
    program: Arc<Program>,
    kernel: usize,
    /// What the caller allowed it beyond the default, in bytes.
    pub(crate) dynamic_shared_limit: u64,
    pub(crate) carveout: i32,
}

impl Function {
    pub(crate) fn kernel(&self) -> &Kernel {
        self.program.kernel(self.kernel)
    }

    /// The largest block that this kernel may be launched with.
    pub(crate) fn max_threads(&self) -> u32 {
        self.kernel().max_threads.unwrap_or(limits::THREADS_PER_BLOCK)
    }

    /// Blocks of this size that fit one multiprocessor at once.
    pub(crate) fn blocks_per_multiprocessor(
        &self,
        threads: u32,
        dynamic_shared: u64,
    ) -> CuResult<i32> {
        if threads == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let shared = self.kernel().shared_bytes + dynamic_shared;
        if threads > self.max_threads() || shared > limits::OPT_IN_SHARED_BYTES {
            return Ok(0);
        }
        let by_threads = limits::THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(32) as i32;
        let by_shared = (limits::OPT_IN_SHARED_BYTES + 1024) / (shared + 1024);
        Ok(by_threads.min(by_shared as i32).min(limits::BLOCKS_PER_MULTIPROCESSOR))
    }
}

/// A launch with its arguments copied.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    function: Handle,
    grid: Grid,
    arguments: Arc<[u8]>,
}

/// The instruction set that the text is written in: `.version 8.7` is 8 and 7.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let version = text.lines().find_map(|line| line.trim_start().strip_prefix(".version"))?;
    let (major, minor) = version.split("//").next()?.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The devices that the text is for: `sm_90` is 90.
fn target_of(text: &str) -> Option<u32> {
    let line = text.lines().find(|line| line.trim_start().starts_with(".target"))?;
    let digits = line.split("sm_").nth(1)?;
    digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

impl Driver {
    /// `cuModuleLoadData`: text in PTX, no compiled code.
    pub(crate) fn load_module(&mut self, image: &[u8]) -> CuResult<Handle> {
        self.refuse_in_capture()?;
        let context = self.current()?;
        let device = self.current_device()?;
        let text = std::str::from_utf8(image).map_err(|_| Code::NO_BINARY_FOR_GPU)?;
        if !text.contains(".version") {
            self.last_fault = "the image is no PTX text".to_owned();
            return Err(Code::NO_BINARY_FOR_GPU);
        }
        let Some(version) = version_of(text) else {
            self.last_fault = "the PTX has no readable .version".to_owned();
            return Err(Code::INVALID_PTX);
        };
        let newest = self.settings.instruction_set().ok_or(Code::INVALID_PTX)?;
        if version > newest {
            self.last_fault = format!(
                "the PTX is version {}.{}, the driver compiles {}.{} at most",
                version.0, version.1, newest.0, newest.1
            );
            return Err(Code::UNSUPPORTED_PTX_VERSION);
        }
        let (major, minor) = self.settings.capability;
        if target_of(text).is_some_and(|target| target as i32 > 10 * major + minor) {
            self.last_fault =
                format!("the PTX is for a newer device than compute capability {major}.{minor}");
            return Err(Code::INVALID_PTX);
        }
        let parsed = ptx::parse(text).map_err(|error| self.refuse_ptx(&error))?;
        let mut variables = BTreeMap::new();
        for variable in &parsed.variables {
            self.require_free(device, variable.bytes)?;
            let owner =
                Owner { device: Some(device), context, kind: Kind::Module, phase: Phase::Live };
            let base = self.memory.allocate(variable.bytes.max(1), owner)?;
            raw::fill(base, variable.bytes, &[0]);
            variables.insert(variable.name.to_owned(), (base, variable.bytes));
        }
        let addresses: BTreeMap<&str, Address> =
            variables.iter().map(|(n, (a, _))| (n.as_str(), *a)).collect();
        let program = match ptx::decode(&parsed, &addresses) {
            Ok(program) => program,
            Err(error) => {
                for (base, _) in variables.values() {
                    self.memory.remove(*base)?;
                }
                return Err(self.refuse_ptx(&error));
            }
        };
        for variable in &parsed.variables {
            let bytes = variable.initial_bytes(|name| addresses.get(name).copied());
            raw::write(variables[variable.name].0, &bytes);
        }
        let program = Arc::new(program);
        Ok(self.modules.add(Module { context, program, variables, functions: BTreeMap::new() }))
    }

    /// Machine code cannot be run here: always `CUDA_ERROR_NO_BINARY_FOR_GPU` for a CUBIN, with a device's own reason
    /// where it would have one.
    pub(crate) fn refuse_cubin(&mut self, header: &[u8; 64]) -> Code {
        match Cubin::read(header) {
            Ok(cubin) => {
                let refusal = cubin.refusal(self.settings.capability, self.settings.driver_version);
                self.last_fault = refusal
                    .unwrap_or_else(|| "the stand-in runs no machine code, only PTX".to_owned());
                Code::NO_BINARY_FOR_GPU
            }
            Err(code) => {
                self.last_fault = "the ELF file is not for CUDA".to_owned();
                code
            }
        }
    }

    fn refuse_ptx(&mut self, error: &ptx::PtxError) -> Code {
        self.last_fault = error.to_string();
        Code::INVALID_PTX
    }

    /// `cuModuleUnload`.
    pub(crate) fn unload_module(&mut self, handle: Handle) -> CuResult<()> {
        let module = self.modules.remove(handle)?;
        for (base, _) in module.variables.values() {
            self.memory.remove(*base)?;
        }
        self.functions.retain(|_, function| function.module != handle);
        Ok(())
    }

    /// `cuModuleGetFunction`: the same handle each time.
    pub(crate) fn module_function(&mut self, handle: Handle, name: &str) -> CuResult<Handle> {
        let module = self.modules.get_mut(handle)?;
        if let Some(function) = module.functions.get(name) {
            return Ok(*function);
        }
        let kernel = module.program.find(name).ok_or(Code::NOT_FOUND)?;
        let function = self.functions.add(Function {
            module: handle,
            context: module.context,
            name: CString::new(name).map_err(|_| Code::INVALID_VALUE)?,
            program: module.program.clone(),
            kernel,
            dynamic_shared_limit: limits::SHARED_BYTES,
            carveout: -1,
        });
        module.functions.insert(name.to_owned(), function);
        Ok(function)
    }

    /// `cuModuleGetGlobal`: address and bytes.
    pub(crate) fn module_variable(&self, handle: Handle, name: &str) -> CuResult<(Address, u64)> {
        self.modules.get(handle)?.variables.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    /// Checks a launch as a driver does before it queues it, and copies the arguments.
    pub(crate) fn prepare_launch(
        &self,
        function: Handle,
        grid: Grid,
        arguments: &dyn Fn(usize, u64) -> CuResult<Vec<u8>>,
    ) -> CuResult<Launch> {
        let found = self.functions.get(function)?;
        let kernel = found.kernel();
        let threads = grid.block.iter().map(|n| u64::from(*n)).product::<u64>();
        let shape_ok = grid.blocks.iter().all(|n| *n > 0)
            && grid.blocks[0] <= i32::MAX as u32
            && grid.blocks[1..].iter().all(|n| *n <= 65535)
            && grid.block[2] <= 64
            && (1..=u64::from(found.max_threads())).contains(&threads);
        let shared_ok = kernel.shared_bytes + grid.dynamic_shared
            <= found.dynamic_shared_limit.max(limits::SHARED_BYTES);
        if !shape_ok || !shared_ok {
            return Err(Code::INVALID_VALUE);
        }
        let mut bytes = vec![0; kernel.parameter_bytes as usize];
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            let at = parameter.offset as usize;
            let value = arguments(index, parameter.bytes)?;
            bytes[at..at + value.len()].copy_from_slice(&value);
        }
        Ok(Launch { function, grid, arguments: bytes.into() })
    }

    /// Runs a kernel on the memory that its device may touch.
    pub(crate) fn run_kernel(
        &mut self,
        launch: &Launch,
        visitor: Visitor<'_>,
    ) -> Result<(), Fault> {
        let Ok(function) = self.functions.get(launch.function) else {
            let text = "a launch of a kernel whose module is unloaded".to_owned();
            return Err(Fault { code: Code::INVALID_HANDLE, text });
        };
        let order = match self.settings.draws_threads {
            true => Order::drawn(self.schedule.draw_seed()),
            false => Order::by_number(),
        };
        let conditions = Conditions {
            ranges: self.memory.reachable(visitor),
            order,
            rounding: Rounding { seed: self.settings.rounding },
            clock: self.kernel_clock,
        };
        let outcome = ptx::execute(
            &function.program,
            function.kernel,
            &launch.grid,
            &launch.arguments,
            conditions,
        );
        let name = function.name.to_string_lossy();
        self.kernel_clock = outcome.map_err(|fault| {
            let code = match fault.kind {
                ptx::FaultKind::IllegalAddress => Code::ILLEGAL_ADDRESS,
                ptx::FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
                ptx::FaultKind::Trap => Code::LAUNCH_FAILED,
                ptx::FaultKind::Assert => Code::ASSERT,
                ptx::FaultKind::Stuck => Code::LAUNCH_TIMEOUT,
            };
            Fault { code, text: format!("kernel {name}: {}", fault.text) }
        })?;
        Ok(())
    }
}
