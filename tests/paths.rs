//! Only `cluster/request_path.rs` builds the paths of requests, so that no name leads to another resource. And the tests
//! that `SECURITY.md` names exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod source_files;

use std::fs;
use std::path::Path;

use source_files::library_sources;

/// The layers that send requests with names from objects.
const CHECKED: [&str; 3] = ["admission", "cluster", "controllers"];

/// Code that puts a namespace or a name into a path without a check.
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
    let mut bad = Vec::new();
    for file in library_sources() {
        let name = file.path.to_str().unwrap();
        let is_checked = CHECKED.iter().any(|layer| file.path.starts_with(layer));
        if !is_checked || name.contains("tests") || EXEMPT.contains(&name) {
            continue;
        }
        let banned = BANNED.iter().filter(|banned| file.text.contains(**banned));
        bad.extend(banned.map(|banned| format!("{name}: {banned}")));
    }
    assert!(
        bad.is_empty(),
        "use cluster::request_path, which checks and encodes, in:\n{}",
        bad.join("\n")
    );
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
        let mut directory = "";
        for name in cell.split('`').skip(1).step_by(2) {
            let own = root.join(name);
            let (parent, _) = name.split_once('/').unwrap_or((directory, name));
            let file = name.rsplit('/').next().unwrap();
            let of_tests = root.join("tests").join(parent).join(format!("{file}.rs"));
            let whole = root.join("tests").join(name);
            assert!(
                own.exists() || of_tests.exists() || whole.exists(),
                "{name}"
            );
            directory = if name.contains('/') {
                parent
            } else {
                directory
            };
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}
