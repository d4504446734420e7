//! A finished plan: where each buffer lies, its peak, and the program that it is for.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bound::{Bound, lower_bound};
use crate::files::shortened;
use crate::instance::{Buffer, Instance, InstanceError};
use crate::validate::{Violation, validate};

const FORMAT: &str = "arena-plan";
const VERSION: u32 = 1;

/// Validated offsets for the buffers of one step, in allocation order.
///
/// ```
/// use arena_plan::{Buffer, Instance, Plan, PlanError};
///
/// let step = Instance::new(vec![Buffer::new(0, 2, 100), Buffer::new(2, 4, 80)]).unwrap();
/// let plan = Plan::new(step.clone(), vec![0, 0]).unwrap();
/// assert_eq!(plan.peak_bytes(), 100);
///
/// let mut file = Vec::new();
/// plan.save(&mut file).unwrap();
/// let loaded = Plan::load(file.as_slice()).unwrap();
/// loaded.check_for(&step).unwrap();
///
/// let other = Instance::new(vec![Buffer::new(0, 2, 100), Buffer::new(2, 4, 96)]).unwrap();
/// assert!(matches!(loaded.check_for(&other), Err(PlanError::OtherProgram { index: 1, .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    instance: Instance,
    offsets_bytes: Vec<u64>,
    peak_bytes: u64,
    bound: Bound,
}

/// Why a plan cannot be made, loaded or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file cannot be read, or [`Plan::save`] did not write it. The error says where.
    #[error("{}", shortened(&.0.to_string()))]
    Json(serde_json::Error),
    /// The file is of another kind or a later version.
    #[error(
        "the file has format {:?} version {version}; expected is format {FORMAT:?} version {VERSION}",
        shortened(format)
    )]
    Format {
        /// The kind that it states.
        format: String,
        /// The version that it states.
        version: u32,
    },
    /// The buffers are not a valid instance.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The offsets are not a valid plan.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A figure in the file does not match its buffers: the file was damaged or edited.
    #[error("the plan states {what} {}, but its buffers give {found}", shortened(stated))]
    Stated {
        /// Which figure.
        what: &'static str,
        /// The figure in the file.
        stated: String,
        /// The figure found.
        found: String,
    },
    /// The plan was made for another number of buffers.
    #[error(
        "the plan is for another program: buffers in the plan {planned}, in the program {asked}"
    )]
    OtherLength {
        /// Buffers in the plan.
        planned: usize,
        /// Buffers of the program.
        asked: usize,
    },
    /// The plan was made for another program or alignment.
    #[error(
        "the plan is for another program: buffer {index} of the program is {asked:?}, of the plan {planned:?}"
    )]
    OtherProgram {
        /// The first buffer that differs.
        index: usize,
        /// The buffer in the plan.
        planned: Buffer,
        /// The buffer of the program.
        asked: Buffer,
    },
}

// By hand: derived, the cause would also be the source, which `anyhow` prints a second time and not shortened.
impl From<serde_json::Error> for PlanError {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl From<PlanError> for io::Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Json(error) => error.into(),
            other => Self::other(other),
        }
    }
}

/// The file, field by field. Each buffer is `[birth, death, size, alignment, offset]`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    signature: String,
    alignment_bytes: u64,
    peak_bytes: u64,
    bound_bytes: u64,
    requested_bytes: u64,
    buffers: Vec<[u64; 5]>,
}

impl Plan {
    /// Validates the offsets (bytes, one per buffer) and keeps them with the instance.
    ///
    /// # Errors
    ///
    /// [`PlanError::Violation`] when they are not a valid plan for the instance.
    ///
    /// ```
    /// # use arena_plan::{Buffer, Instance, Plan};
    /// let instance = Instance::new(vec![Buffer::new(0, 2, 100), Buffer::new(1, 3, 50)])?;
    /// assert_eq!(Plan::new(instance.clone(), vec![0, 100])?.peak_bytes(), 150);
    /// assert!(Plan::new(instance, vec![0, 0]).is_err()); // both live at 1
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(instance: Instance, offsets_bytes: Vec<u64>) -> Result<Self, PlanError> {
        let bound = lower_bound(&instance);
        Self::with_bound(instance, offsets_bytes, bound)
    }

    /// [`new`](Self::new) with the bound already known.
    pub(crate) fn with_bound(
        instance: Instance,
        offsets_bytes: Vec<u64>,
        bound: Bound,
    ) -> Result<Self, PlanError> {
        let peak_bytes = validate(&instance, &offsets_bytes)?;
        Ok(Self { instance, offsets_bytes, peak_bytes, bound })
    }

    /// The buffers that were planned.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Where each buffer starts, in bytes from the plan's start.
    #[must_use]
    pub fn offsets_bytes(&self) -> &[u64] {
        &self.offsets_bytes
    }

    /// The largest end of a buffer, its size rounded up to the granule.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The lower bound of every plan for these buffers.
    #[must_use]
    pub fn bound(&self) -> Bound {
        self.bound
    }

    /// A hash over births, deaths, sizes and alignments in allocation order and the offsets: equal
    /// signatures, equal plans. The same on every platform.
    #[must_use]
    pub fn signature(&self) -> u64 {
        // FNV-1a, 64 bits.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for record in self.records() {
            for byte in record.into_iter().flat_map(u64::to_le_bytes) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }

    fn records(&self) -> impl Iterator<Item = [u64; 5]> + '_ {
        self.instance.buffers().iter().zip(&self.offsets_bytes).map(|(buffer, &offset)| {
            [buffer.birth, buffer.death, buffer.size_bytes, buffer.alignment_bytes, offset]
        })
    }

    /// Whether this plan was made for exactly these buffers.
    ///
    /// # Errors
    ///
    /// [`PlanError::OtherLength`] or [`PlanError::OtherProgram`] with the first difference. Whether an
    /// offset was fixed before planning makes no difference, unless the plan put it elsewhere.
    pub fn check_for(&self, program: &Instance) -> Result<(), PlanError> {
        let pairs = self.instance.buffers().iter().zip(program.buffers()).zip(&self.offsets_bytes);
        for (index, ((&planned, &asked), &offset)) in pairs.enumerate() {
            let fixed_offset_bytes = None;
            let elsewhere = asked.fixed_offset_bytes.is_some_and(|fixed| fixed != offset);
            if elsewhere
                || (Buffer { fixed_offset_bytes, ..planned })
                    != (Buffer { fixed_offset_bytes, ..asked })
            {
                return Err(PlanError::OtherProgram { index, planned, asked });
            }
        }
        if self.instance.len() == program.len() {
            Ok(())
        } else {
            Err(PlanError::OtherLength { planned: self.instance.len(), asked: program.len() })
        }
    }

    /// Writes the plan as JSON.
    ///
    /// [`files::write`](crate::files::write()) saves it to a file, whole or not at all.
    ///
    /// # Errors
    ///
    /// When writing fails.
    ///
    /// ```
    /// # use arena_plan::{Buffer, Instance, Options, Plan, solve};
    /// let instance = Instance::new(vec![Buffer::new(0, 2, 512), Buffer::new(1, 3, 256)])?;
    /// let plan = solve(&instance, &Options::default()).plan;
    /// let mut file = Vec::new();
    /// plan.save(&mut file)?;
    /// let loaded = Plan::load(&file[..])?;
    /// assert_eq!(loaded.offsets_bytes(), plan.offsets_bytes());
    /// loaded.check_for(&instance)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, mut to: impl Write) -> Result<(), PlanError> {
        let file = File {
            format: FORMAT.to_owned(),
            version: VERSION,
            signature: format!("{:016x}", self.signature()),
            alignment_bytes: self.instance.alignment_bytes(),
            peak_bytes: self.peak_bytes,
            bound_bytes: self.bound.rounded_bytes,
            requested_bytes: self.bound.requested_bytes,
            buffers: self.records().collect(),
        };
        serde_json::to_writer(&mut to, &file)?;
        writeln!(to).map_err(serde_json::Error::io)?;
        to.flush().map_err(serde_json::Error::io)?;
        Ok(())
    }

    /// Reads a plan and checks everything that the file states.
    ///
    /// # Errors
    ///
    /// Any [`PlanError`] except those of [`check_for`](Self::check_for). It never panics.
    pub fn load(from: impl Read) -> Result<Self, PlanError> {
        let file: File = serde_json::from_reader(io::BufReader::new(from))?;
        if file.format != FORMAT || file.version != VERSION {
            return Err(PlanError::Format { format: file.format, version: file.version });
        }
        let mut buffers = Vec::with_capacity(file.buffers.len());
        let mut offsets_bytes = Vec::with_capacity(file.buffers.len());
        for [birth, death, size_bytes, alignment_bytes, offset_bytes] in file.buffers {
            buffers.push(Buffer {
                birth,
                death,
                size_bytes,
                alignment_bytes,
                fixed_offset_bytes: None,
            });
            offsets_bytes.push(offset_bytes);
        }
        let plan = Self::new(Instance::new(buffers)?, offsets_bytes)?;
        let stated = |what, stated: u64, found: u64| {
            if stated == found {
                return Ok(());
            }
            let (stated, found) = (stated.to_string(), found.to_string());
            Err(PlanError::Stated { what, stated, found })
        };
        stated("alignment_bytes", file.alignment_bytes, plan.instance.alignment_bytes())?;
        stated("peak_bytes", file.peak_bytes, plan.peak_bytes)?;
        stated("bound_bytes", file.bound_bytes, plan.bound.rounded_bytes)?;
        stated("requested_bytes", file.requested_bytes, plan.bound.requested_bytes)?;
        let found = format!("{:016x}", plan.signature());
        if file.signature == found {
            Ok(plan)
        } else {
            Err(PlanError::Stated { what: "signature", stated: file.signature, found })
        }
    }
}
