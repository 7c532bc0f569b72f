//! Paths of requests are built in `cluster/path.rs` alone, which lets no name lead to another resource.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// What would put a namespace or a name into a path unchecked.
const BANNED: [&str; 4] = [
    "Api::namespaced(",
    "Api::namespaced_with(",
    "Request::new(format!",
    "/namespaces/{",
];

/// The builder itself, and access by a namespace that a flag of the command line names.
const EXEMPT: [&str; 2] = ["cluster/path.rs", "cluster/lease.rs"];

#[test]
fn paths_of_requests_are_built_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut bad = Vec::new();
    for layer in ["admission", "cluster", "controllers"] {
        for file in sources(&src.join(layer)) {
            let name = file.strip_prefix(&src).unwrap().display().to_string();
            if name.contains("tests") || EXEMPT.contains(&&*name) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            for banned in BANNED.iter().filter(|banned| text.contains(**banned)) {
                bad.push(format!("{name}: {banned}"));
            }
        }
    }
    assert!(
        bad.is_empty(),
        "use cluster::path, which checks and encodes, in:\n{}",
        bad.join("\n")
    );
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}
