//! Only `cluster/request_path.rs` builds the paths of requests, so that no name leads to another resource.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use testbed::source_files::sources_below;

/// The layers that send requests with names from objects.
const CHECKED: [&str; 3] = ["admission", "cluster", "controllers"];

/// Code that puts a namespace or a name into a path without a check.
const BANNED: [&str; 4] = [
    "Api::namespaced(",
    "Api::namespaced_with(",
    "Request::new(format!",
    "/namespaces/{",
];

/// The builder itself, and access with a namespace from a command-line flag.
const EXEMPT: [&str; 2] = ["cluster/request_path.rs", "cluster/lease/mod.rs"];

#[test]
fn paths_of_requests_are_built_in_one_place() {
    let mut bad = Vec::new();
    for file in sources_below("src") {
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
