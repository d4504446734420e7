//! `docs/scenarios.md` names tests that exist, and all that are marked.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A number such as `B019` at the start of `text`.
fn number(text: &str) -> Option<&str> {
    let candidate = text.get(..4)?;
    let digits = candidate.strip_prefix('B')?;
    let ends = !text[4..].starts_with(|next: char| next.is_ascii_alphanumeric());
    (ends && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(candidate)
}

/// The rows of the table: a scenario, and the tests or files that hold it.
fn rows(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (name, _fault, tests) = (number(cells.next()?)?, cells.next()?, cells.next()?);
        Some((name, tests.split('`').skip(1).step_by(2).collect()))
    });
    let all: Vec<_> = rows.collect();
    let rows: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(rows.len(), all.len(), "a scenario has one row");
    rows
}

fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

/// The scenarios that comments mark, each with the first test behind it, or with its file where
/// nothing may compile.
fn marks(path: &Path, text: &str) -> Vec<(String, String)> {
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    let compiles = !path.components().any(|part| part.as_os_str() == "compile_fail");
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let mut marks = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let is_mark = line.starts_with("// ") || line.starts_with("/// ") || !compiles;
        if !line.starts_with("//") || !is_mark {
            continue;
        }
        let numbers = line.char_indices().filter_map(|(at, _)| number(&line[at..]));
        for number in numbers {
            let test = lines[n..].iter().find_map(|line| line.strip_prefix("fn "));
            let name = |test: &str| test.split(['(', '<']).next().unwrap_or(test).to_owned();
            let holder = if compiles { test.map(name) } else { Some(file.clone()) };
            let holder = holder.unwrap_or_else(|| panic!("{file}: `{line}` marks no test"));
            marks.push((number.to_owned(), holder));
        }
    }
    marks
}

#[test]
fn every_scenario_has_a_row_and_every_row_names_the_tests_that_are_marked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/scenarios.md")).unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let mut marked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| !path.ends_with("scenario_table.rs")) {
        for (number, test) in marks(path, text) {
            marked.entry(number).or_default().push(test);
        }
    }
    let rows = rows(&page);
    assert_eq!(rows.len(), 61);
    for (scenario, tests) in &rows {
        let marked = marked.remove(*scenario).unwrap_or_default();
        assert_eq!(tests.is_empty(), page.contains(&format!("{scenario} does not apply:")));
        for test in tests {
            assert!(marked.iter().any(|name| name == test), "{scenario}: no `{test}` is marked");
        }
        for test in &marked {
            assert!(tests.contains(&test.as_str()), "{scenario}: `{test}` is not in its row");
        }
    }
    assert!(marked.is_empty(), "without a row: {marked:?}");
}
