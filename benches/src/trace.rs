//! Reads recorded training steps (`op,id,size_bytes,stream,step`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::SCALE;

/// One event of a step.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// Ask for `bytes` bytes and put the handle into `slot`.
    Alloc {
        /// Where the handle goes.
        slot: usize,
        /// Scaled size in bytes, at least 1.
        bytes: usize,
    },
    /// Drop the handle in `slot`.
    Drop {
        /// Where the handle is.
        slot: usize,
    },
}

/// A recorded training step: its last one, when everything had warmed up.
#[derive(Debug, Clone)]
pub struct Step {
    /// The trace's name.
    pub name: String,
    /// Its events in order.
    pub ops: Vec<Op>,
    /// Its allocations.
    pub allocations: usize,
    /// Handles that it holds at once: a place is used again when its handle was dropped.
    pub slots: usize,
}

impl Step {
    /// The sizes asked for, in order.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        let size = |op: &Op| match *op {
            Op::Alloc { bytes, .. } => Some(bytes),
            Op::Drop { .. } => None,
        };
        self.ops.iter().filter_map(size).collect()
    }

    /// Bytes that hold the whole step at an alignment of 256, padding included.
    #[must_use]
    pub fn sum_bytes(&self) -> usize {
        self.sizes().iter().map(|bytes| bytes.next_multiple_of(256)).sum()
    }
}

#[derive(Debug, Deserialize)]
struct Row {
    op: String,
    id: u64,
    size_bytes: u64,
    step: u64,
}

/// The last step of a trace file.
///
/// # Errors
///
/// When the file cannot be read or a row is malformed.
pub fn last_step(path: &Path) -> Result<Step> {
    let context = || format!("reading {}", path.display());
    let mut reader = csv::Reader::from_path(path).with_context(context)?;
    let rows: Vec<Row> = reader.deserialize().collect::<Result<_, _>>().with_context(context)?;
    let last = rows.iter().map(|row| row.step).max().unwrap_or(0);
    let (mut ops, mut slot_of) = (Vec::new(), HashMap::new());
    let (mut free, mut slots, mut allocations) = (Vec::new(), 0, 0);
    for row in rows.iter().filter(|row| row.step == last) {
        match row.op.as_str() {
            "alloc" => {
                let slot = free.pop().unwrap_or_else(|| {
                    slots += 1;
                    slots - 1
                });
                slot_of.insert(row.id, slot);
                allocations += 1;
                let bytes = usize::try_from((row.size_bytes / SCALE).max(1))?;
                ops.push(Op::Alloc { slot, bytes });
            }
            // A buffer of an earlier step is not this step's business.
            "free" => {
                if let Some(slot) = slot_of.remove(&row.id) {
                    free.push(slot);
                    ops.push(Op::Drop { slot });
                }
            }
            _ => {}
        }
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Step { name, ops, allocations, slots })
}

/// The last step of each trace in `benches/traces`, by name.
///
/// # Errors
///
/// As for [`last_step`].
pub fn all() -> Result<Vec<Step>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    paths.sort();
    paths.iter().map(|path| last_step(path)).collect()
}
