//! The CSV of google/minimalloc: one row per buffer, columns by name in any order.
//!
//! | column | other names | meaning |
//! |---|---|---|
//! | `id` | `buffer`, `buffer_id` | name of the buffer |
//! | `lower` | `start`, `begin` | birth; times may be negative |
//! | `upper` | | death, exclusive |
//! | `end` | | in place of `upper`: last moment alive, inclusive |
//! | `size` | | bytes |
//! | `alignment` | | optional, a power of two, 1 where empty |
//! | `offset` | | optional: fixed in an input, the solution in an output |
//! | `hint` | | ignored |
//! | `gaps` | | must be empty |

use std::collections::HashSet;
use std::io::{self, Write};

use super::table::{self, Column, Row, Table};
use super::{InputError, Labelled, Problem};
use crate::instance::{Buffer, Instance, InstanceError};

const ID: usize = 0;
const LOWER: usize = 1;
const UPPER: usize = 2;
const SIZE: usize = 3;
const END: usize = 4;
const ALIGNMENT: usize = 5;
const OFFSET: usize = 6;
const GAPS: usize = 8;

const COLUMNS: [Column; 9] = [
    Column { names: &["id", "buffer", "buffer_id"], required: true },
    Column { names: &["lower", "start", "begin"], required: true },
    Column { names: &["upper"], required: false },
    Column { names: &["size"], required: true },
    Column { names: &["end"], required: false },
    Column { names: &["alignment"], required: false },
    Column { names: &["offset"], required: false },
    Column { names: &["hint"], required: false },
    Column { names: &["gaps"], required: false },
];

/// Reads a problem; offsets in it are fixed.
///
/// # Errors
///
/// The first [`InputError`] in the text.
///
/// ```
/// use arena_plan::formats::minimalloc;
///
/// let read = minimalloc::read("id,lower,upper,size\na,0,4,100\nb,4,6,x\n");
/// assert_eq!(
///     read.unwrap_err().to_string(),
///     "line 3, column 7: \"x\" is not a whole number from 0 to 18446744073709551615"
/// );
/// ```
pub fn read(text: &str) -> Result<Labelled, InputError> {
    parse(text, Offsets::Obeyed).map(|(labelled, _)| labelled)
}

/// Reads a solution: every row must have an offset. The second value contains the offsets in bytes; in the
/// instance no buffer is fixed.
///
/// # Errors
///
/// The first [`InputError`] in the text. The offsets are not validated.
pub fn read_solution(text: &str) -> Result<(Labelled, Vec<u64>), InputError> {
    parse(text, Offsets::Judged)
}

/// What the offset column means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offsets {
    /// A part of the problem.
    Obeyed,
    /// An answer that every row must give.
    Judged,
}

fn parse(text: &str, meaning: Offsets) -> Result<(Labelled, Vec<u64>), InputError> {
    let table = Table::new(text, &COLUMNS)?;
    match (table.has(UPPER), table.has(END)) {
        (false, false) => return Err(Problem::MissingColumn("upper").at(table.header())),
        (true, true) => return Err(Problem::DoubleColumn("end".to_owned()).at(table.header())),
        _ => {}
    }
    if meaning == Offsets::Judged && !table.has(OFFSET) {
        return Err(Problem::MissingColumn("offset").at(table.header()));
    }
    let earlier = if text.contains('-') { earlier(&table)? } else { 0 };
    let mut seen = HashSet::new();
    let (mut labels, mut buffers, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    let mut offsets_bytes = Vec::new();
    for row in table.rows() {
        let row = row?;
        let id = row.text(ID).unwrap_or("");
        if !seen.insert(id) {
            return Err(Problem::DoubleId(id.to_owned()).at(row.position(ID)));
        }
        if row.text(GAPS).is_some() {
            return Err(Problem::Gaps.at(row.position(GAPS)));
        }
        let mut buffer = buffer(&row, table.has(END), earlier)?;
        if meaning == Offsets::Judged {
            let offset_bytes = buffer.fixed_offset_bytes.take();
            let place = row.position(OFFSET);
            offsets_bytes.push(offset_bytes.ok_or_else(|| Problem::NoOffset.at(place))?);
        }
        labels.push(table::name(id));
        buffers.push(buffer);
        rows.push(row);
    }
    let instance = Instance::new(buffers).map_err(|error| {
        let column = match error {
            InstanceError::EmptyLifetime { .. } if table.has(END) => END,
            InstanceError::EmptyLifetime { .. } => UPPER,
            InstanceError::BadAlignment { .. } => ALIGNMENT,
            InstanceError::MisalignedFixed { .. } | InstanceError::FixedOverlap { .. } => OFFSET,
            InstanceError::TooLarge | InstanceError::TooMany(_) => SIZE,
        };
        let row = error.buffer().and_then(|index| rows.get(index));
        let position = row.map_or(table.header(), |row| row.position(column));
        Problem::Instance(error).at(position)
    })?;
    Ok((Labelled { labels, instance, earlier }, offsets_bytes))
}

/// How far the first moment lies before 0.
fn earlier(table: &Table<'_>) -> Result<u64, InputError> {
    let mut first = 0;
    for row in table.rows() {
        let row = row?;
        let death = row.time(if table.has(END) { END } else { UPPER })?;
        first = row.time(LOWER)?.min(death).min(first);
    }
    Ok(u64::try_from(-first).unwrap_or(u64::MAX))
}

fn buffer(row: &Row<'_>, inclusive: bool, earlier: u64) -> Result<Buffer, InputError> {
    let moment = |column: usize, after: i128| {
        let time = row.time(column)?;
        u64::try_from(time + after + i128::from(earlier))
            .map_err(|_| Problem::NotANumber(time.to_string()).at(row.position(column)))
    };
    let death = if inclusive { moment(END, 1)? } else { moment(UPPER, 0)? };
    Ok(Buffer {
        birth: moment(LOWER, 0)?,
        death,
        size_bytes: row.number(SIZE)?,
        alignment_bytes: row.optional(ALIGNMENT)?.unwrap_or(1),
        fixed_offset_bytes: row.optional(OFFSET)?,
    })
}

/// Writes a solution: `id,lower,upper,size,offset`, and `alignment` before `offset` where one is not 1.
///
/// # Errors
///
/// When writing fails.
///
/// # Panics
///
/// When there are fewer offsets than buffers.
pub fn write_solution(
    mut to: impl Write,
    labelled: &Labelled,
    offsets_bytes: &[u64],
) -> io::Result<()> {
    let aligned = labelled.instance.alignment_bytes() > 1;
    writeln!(to, "id,lower,upper,size,{}offset", if aligned { "alignment," } else { "" })?;
    for (index, buffer) in labelled.instance.buffers().iter().enumerate() {
        let Buffer { birth, death, size_bytes, alignment_bytes, .. } = buffer;
        let time = |time: u64| i128::from(time) - i128::from(labelled.earlier);
        let (name, lower, upper) =
            (table::quoted(&labelled.labels[index]), time(*birth), time(*death));
        write!(to, "{name},{lower},{upper},{size_bytes},")?;
        if aligned {
            write!(to, "{alignment_bytes},")?;
        }
        writeln!(to, "{}", offsets_bytes[index])?;
    }
    to.flush()
}
