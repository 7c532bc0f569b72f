//! Paths of requests are built in `cluster/request_path.rs` alone, which lets no name lead to another resource.
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
const EXEMPT: [&str; 2] = ["cluster/request_path.rs", "cluster/lease/mod.rs"];

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
        "use cluster::request_path, which checks and encodes, in:\n{}",
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

/// The tests that SECURITY.md names, each a file or a directory in `tests`, or a path of the repository.
#[test]
fn tests_that_the_threat_model_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let mut named = 0;
    for cell in cells {
        let mut room = "";
        for name in cell.split('`').skip(1).step_by(2) {
            let own = root.join(name);
            let (dir, _) = name.split_once('/').unwrap_or((room, name));
            let file = name.rsplit('/').next().unwrap();
            let of_tests = root.join("tests").join(dir).join(format!("{file}.rs"));
            let whole = root.join("tests").join(name);
            assert!(
                own.exists() || of_tests.exists() || whole.exists(),
                "{name}"
            );
            room = if name.contains('/') { dir } else { room };
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}
