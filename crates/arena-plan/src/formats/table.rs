//! Comma-separated rows under a header, with the place of each cell.
//!
//! Every error must name its column, which a general CSV reader does not report. A cell ends with its line, also
//! between quotes.

use std::borrow::Cow;

use super::{InputError, Position, Problem};

pub(super) const BYTE_ORDER_MARK: char = '\u{feff}';

/// What a column is called, its other names, and whether it must be there.
pub(super) struct Column {
    pub(super) names: &'static [&'static str],
    pub(super) required: bool,
}

pub(super) struct Table<'t> {
    header: Position,
    rows: Vec<(usize, &'t str)>,
    /// For each wanted column its index in the rows.
    places: Vec<Option<usize>>,
    width: usize,
}

/// One row's cells, in the order of the wanted columns.
pub(super) struct Row<'t> {
    cells: Vec<Option<(&'t str, Position)>>,
    start: Position,
}

impl<'t> Table<'t> {
    pub(super) fn new(text: &'t str, columns: &[Column]) -> Result<Self, InputError> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let nowhere = Position { line: 1, column: 1 };
        let (number, header) = lines.next().ok_or_else(|| Problem::Empty.at(nowhere))?;
        let mut places = vec![None; columns.len()];
        let header_cells = cells(header, number + 1);
        for (index, &(name, position)) in header_cells.iter().enumerate() {
            let wanted = columns.iter().position(|column| column.names.contains(&name));
            let wanted =
                wanted.ok_or_else(|| Problem::UnknownColumn(name.to_owned()).at(position))?;
            if places[wanted].replace(index).is_some() {
                return Err(Problem::DoubleColumn(name.to_owned()).at(position));
            }
        }
        let header = Position { line: number + 1, column: 1 };
        for (column, place) in columns.iter().zip(&places) {
            if column.required && place.is_none() {
                return Err(Problem::MissingColumn(column.names[0]).at(header));
            }
        }
        let rows = lines.map(|(number, line)| (number + 1, line)).collect();
        Ok(Self { header, rows, places, width: header_cells.len() })
    }

    pub(super) fn header(&self) -> Position {
        self.header
    }

    pub(super) fn has(&self, column: usize) -> bool {
        self.places[column].is_some()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Result<Row<'t>, InputError>> + '_ {
        self.rows.iter().map(|&(number, line)| {
            let found = cells(line, number);
            let start = Position { line: number, column: 1 };
            if found.len() != self.width {
                let problem = Problem::CellCount { found: found.len(), expected: self.width };
                return Err(problem.at(start));
            }
            let cells = self.places.iter().map(|place| place.map(|index| found[index])).collect();
            Ok(Row { cells, start })
        })
    }
}

impl<'t> Row<'t> {
    /// The cell's text; `None` when the column is absent or the cell empty.
    pub(super) fn text(&self, column: usize) -> Option<&'t str> {
        self.cells[column].map(|(text, _)| text).filter(|text| !text.is_empty())
    }

    /// Where the cell begins; the row's start when the column is absent.
    pub(super) fn position(&self, column: usize) -> Position {
        self.cells[column].map_or(self.start, |(_, position)| position)
    }

    /// The number in a cell; `None` when the column is absent or the cell empty.
    pub(super) fn optional(&self, column: usize) -> Result<Option<u64>, InputError> {
        self.text(column).map(|_| self.number(column)).transpose()
    }

    /// The moment in a cell that must hold one: it may be negative.
    pub(super) fn time(&self, column: usize) -> Result<i128, InputError> {
        let text = self.text(column).unwrap_or("");
        match text.strip_prefix('-').map(str::parse::<u64>) {
            Some(Ok(before)) if text.as_bytes()[1].is_ascii_digit() => Ok(-i128::from(before)),
            _ => self.number(column).map(i128::from),
        }
    }

    /// The number in a cell that must hold one.
    pub(super) fn number(&self, column: usize) -> Result<u64, InputError> {
        let text = self.text(column).unwrap_or("");
        // `parse` would take a leading plus.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|_| digits)
            .ok_or_else(|| Problem::NotANumber(text.to_owned()).at(self.position(column)))
    }
}

/// The trimmed cells of a line, each with the place of its first character. Quotes around a cell are taken off,
/// and a comma between them is part of it.
fn cells(line: &str, number: usize) -> Vec<(&str, Position)> {
    let mut cells = Vec::new();
    let (mut rest, mut column) = (Some(line), 1);
    while let Some(from) = rest {
        let indent = from.chars().take_while(|c| c.is_whitespace()).count();
        let quoted = from.trim_start().starts_with('"');
        let mut inside = false;
        let end = from.find(|c| {
            inside ^= quoted && c == '"';
            c == ',' && !inside
        });
        let cell = end.map_or(from, |end| &from[..end]);
        let text = cell.trim();
        let unquoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        cells.push((unquoted.unwrap_or(text), Position { line: number, column: column + indent }));
        column += cell.chars().count() + 1;
        rest = end.map(|end| &from[end + 1..]);
    }
    cells
}

/// A name as it is meant: inside of quotes, two quotes stand for one.
pub(super) fn name(text: &str) -> String {
    text.replace("\"\"", "\"")
}

/// A name as it is written: in quotes where a comma or a quote is in it.
pub(super) fn quoted(name: &str) -> Cow<'_, str> {
    if name.contains([',', '"']) || name.trim() != name {
        Cow::Owned(format!("\"{}\"", name.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(name)
    }
}
