//! Only `cluster/request_path.rs` builds the paths of requests, so that no name leads to another resource. The files
//! that `SECURITY.md` and the workflows name exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod source_files;

use std::fs;
use std::path::Path;

use source_files::sources_below;

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

/// The paths that the workflows of CI name, comments aside.
#[test]
fn paths_that_the_workflows_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for entry in fs::read_dir(root.join(".github/workflows")).unwrap() {
        let workflow = entry.unwrap().path();
        let text = fs::read_to_string(&workflow).unwrap();
        for path in text.lines().flat_map(named_paths) {
            assert!(exists(root, path), "{}: {path}", workflow.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}

/// The words of a line that are paths in the repository. Absolute paths and words with a variable are left out.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split(" #").next().unwrap();
    let code = if code.trim_start().starts_with('#') {
        ""
    } else {
        code
    };
    let words = code.split(|c: char| c.is_whitespace() || "'\"(),;`".contains(c));
    words.filter(|word| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/*-".contains(c);
        let is_file = [".toml", ".lock", ".rs", ".mod", ".sum"]
            .iter()
            .any(|extension| word.ends_with(extension));
        word.chars().all(is_plain) && !word.starts_with('/') && (is_file || word.contains('/'))
    })
}

/// Whether a path exists, or a file that fits a pattern such as `testbed/plane/**/*.go`.
fn exists(root: &Path, path: &str) -> bool {
    let Some((folder, pattern)) = path.split_once("**") else {
        return root.join(path).exists();
    };
    let name = pattern.trim_start_matches('/');
    let fits = |file: &Path| match name.strip_prefix('*') {
        Some(end) => file.to_string_lossy().ends_with(end),
        None => name.is_empty() || file.ends_with(name),
    };
    fits_any(&root.join(folder), &fits)
}

fn fits_any(folder: &Path, fits: &dyn Fn(&Path) -> bool) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().path())
        .any(|path| match path.is_dir() {
            true => fits_any(&path, fits),
            false => fits(&path),
        })
}
