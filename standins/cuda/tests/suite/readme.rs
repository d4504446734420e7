//! The README's list of functions is complete.

use std::path::Path;

/// The names of exported functions in the sources of a folder.
fn exported(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let plain = text.split("extern \"C\" fn ").skip(1);
        let made = text
            .split("typed_gemm!(")
            .flat_map(|part| part.split("typed_vectors!("))
            .skip(1)
            .flat_map(|call| call.split(", ").take(4));
        let name = |text: &str| {
            text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
        };
        names.extend(
            plain
                .chain(made)
                .map(name)
                .filter(|name| name.starts_with("cu") || name.starts_with("nccl")),
        );
    }
    names
}

#[test]
fn every_exported_function_is_in_the_readme() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = include_str!("../../README.md");
    let folders = ["src/api", "../cublas/src", "../cublaslt/src", "../nccl/src"];
    let names = folders.map(|folder| exported(&root.join(folder))).concat();
    assert!(names.len() > 150, "{} functions", names.len());
    for name in names {
        assert!(readme.contains(&format!("`{name}`")), "{name} is missing");
    }
}
