//! `docs/errors.md` has a table for each type that an error is made of. The tables name what the sources
//! declare: each variant of an enum with its fields, each field of a struct, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The types, each with the file that declares it.
const TYPES: &[(&str, &str)] = &[
    ("ErrorKind", "arena-core/src/error.rs"),
    ("Exhausted", "arena-core/src/exhausted.rs"),
    ("Cause", "arena-core/src/exhausted.rs"),
    ("ScopeFacts", "arena-core/src/exhausted.rs"),
    ("RecordFacts", "arena-core/src/exhausted.rs"),
    ("Repeats", "arena-core/src/exhausted.rs"),
    ("Holder", "arena-core/src/exhausted.rs"),
    ("PlanFacts", "arena-core/src/exhausted.rs"),
    ("ScopeId", "arena-core/src/error.rs"),
    ("Deviations", "arena-core/src/plan/deviations.rs"),
    ("DeviationSite", "arena-core/src/plan/sites.rs"),
    ("DeviationKind", "arena-core/src/plan/sites.rs"),
    ("DeviceError", "arena-core/src/error.rs"),
    ("DeviceErrorKind", "arena-core/src/error.rs"),
    ("Shortage", "arena-core/src/shortage.rs"),
    ("LimitedBy", "arena-core/src/shortage.rs"),
    ("GuardZone", "arena-core/src/error.rs"),
    ("BadAlignment", "arena-core/src/bytes.rs"),
    ("SlotTableError", "arena-core/src/plan/table.rs"),
    ("NotSteady", "arena-scope/src/steady_state.rs"),
    ("Growth", "arena-scope/src/growth.rs"),
    ("Again", "arena-scope/src/growth.rs"),
    ("Divergence", "arena-scope/src/steady_state.rs"),
    ("DivergenceAt", "arena-scope/src/steady_state.rs"),
];

/// What a table says, or a type: each variant or field, with the fields of the variant.
type Members = BTreeMap<String, Vec<String>>;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn named(fields: &syn::Fields) -> Vec<String> {
    fields.iter().filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect()
}

fn declared(source: &str, name: &str) -> Members {
    let file = syn::parse_file(source).expect("a source file");
    let members = file.items.iter().find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == name => {
            let variants = item.variants.iter();
            Some(variants.map(|each| (each.ident.to_string(), named(&each.fields))).collect())
        }
        syn::Item::Struct(item) if item.ident == name => {
            Some(named(&item.fields).into_iter().map(|field| (field, Vec::new())).collect())
        }
        _ => None,
    });
    members.unwrap_or_else(|| panic!("no {name} is declared"))
}

fn in_backticks(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The tables of a page by their headings, `### `Type``. Of a row the first cell names members; for a variant
/// the second names its fields.
fn tables(page: &str) -> BTreeMap<String, Members> {
    let mut tables: BTreeMap<String, Members> = BTreeMap::new();
    let mut heading = None;
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`'));
        } else if let (Some(heading), Some(row)) = (heading, line.strip_prefix("| `")) {
            let mut cells = row.split('|');
            let first = format!("`{}", cells.next().unwrap_or_default());
            let has_fields = row.starts_with(char::is_uppercase);
            let fields: Vec<_> =
                cells.next().filter(|_| has_fields).into_iter().flat_map(in_backticks).collect();
            let table = tables.entry(heading.to_owned()).or_default();
            for member in in_backticks(&first) {
                let before = table.insert(member.clone(), fields.clone());
                assert!(before.is_none(), "{heading}: {member} has two rows");
            }
        }
    }
    tables
}

#[test]
fn the_page_names_each_variant_and_each_field_and_no_other() {
    let found = tables(&read("docs/errors.md"));
    let expected: BTreeMap<_, _> = TYPES
        .iter()
        .map(|&(name, path)| (name.to_owned(), declared(&read(&format!("crates/{path}")), name)))
        .collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, members) in expected {
        assert_eq!(found[&name], members, "{name}: left is the page, right is the source");
    }
}

#[test]
fn a_table_gives_variants_with_fields_and_fields_alone() {
    let page = "### `E`\n| kind | fields | text |\n|---|---|---|\n| `A` | | `x` |\n| `B` | `c`, `d` | |\n\
                ## Other\n| `F` | | |\n### `S`\n| `a`, `b` | from `c` on |\n";
    let source = "enum E { A(u8), B { d: u8, c: u8 } } struct S { b: u8, a: u8 }";
    let found = tables(page);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["E", "S"]);
    assert_eq!(found["S"], declared(source, "S"));
    let variants = declared(source, "E");
    assert_eq!(found["E"]["A"], variants["A"]);
    assert_eq!(
        (&found["E"]["B"], &variants["B"]),
        (&vec!["c".into(), "d".into()], &vec!["d".into(), "c".into()])
    );
}
