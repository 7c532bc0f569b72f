//! Each layer of the library uses only the layers before it. `tls` and `telemetry` serve the outer layers, and `tasks`
//! uses no other layer. These tests read the sources, including the unit tests in them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use testbed::source_files::sources_below;

const INNER: &[&str] = &["api", "api_request", "domain", "ledger", "cluster", "tasks"];

/// Every layer, and the modules or paths of other layers that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("api_request", &[]),
    ("domain", &["api"]),
    ("tasks", &[]),
    ("ledger", &["api", "domain"]),
    (
        "cluster",
        &["api", "api_request", "domain", "ledger", "tasks"],
    ),
    ("admission", INNER),
    ("controllers", INNER),
    ("telemetry", &[]),
    ("tls", &["api_request", "telemetry"]),
    ("server", &["admission::review", "tls", "telemetry"]),
    (
        "cli",
        &[
            "api",
            "api_request",
            "domain",
            "ledger",
            "cluster",
            "admission",
            "controllers",
            "tasks",
            "telemetry",
            "tls",
            "server",
        ],
    ),
];

/// Names that a layer may not mention at all. `api` may name kube, because kube's derive macro declares the kinds.
/// `domain` gets time and identity as arguments and never waits. `ledger` reaches the cluster only through its store.
const BANNED: &[(&str, &[&str])] = &[
    ("api", &["tokio"]),
    (
        "domain",
        &[
            "kube",
            "tokio",
            "futures",
            "async",
            "await",
            "SystemTime",
            "Instant",
            "Timestamp::now",
        ],
    ),
    ("ledger", &["kube"]),
];

#[test]
fn every_layer_uses_only_those_before_it() {
    let mut layers = BTreeSet::new();
    let mut bad = Vec::new();
    for file in sources_below("src") {
        let names = file.path.iter().map(|name| name.to_str().unwrap());
        let names: Vec<_> = names.collect();
        if matches!(names[..], ["lib.rs" | "main.rs" | "fuzzing.rs"]) {
            continue;
        }
        let layer = names[0].trim_end_matches(".rs");
        let depth = names.len() - usize::from(names.ends_with(&["mod.rs"]));
        let found = violations(layer, depth, &file.text).into_iter();
        bad.extend(found.map(|violation| format!("{}: {violation}", file.path.display())));
        layers.insert(layer.to_owned());
    }
    assert!(bad.is_empty(), "against the layers:\n{}", bad.join("\n"));
    let known: BTreeSet<_> = LAYERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(
        layers, known,
        "give every directory of src a place in tests/layers.rs"
    );
}

#[test]
fn planted_violation_is_found() {
    for (layer, depth, source, found) in [
        (
            "api",
            1,
            "use crate::domain::pod::Pod;",
            "crate::domain::pod::Pod",
        ),
        ("api", 1, "tokio::spawn(async {});", "tokio"),
        ("domain", 2, "use crate::ledger;", "crate::ledger"),
        (
            "domain",
            2,
            "let n = crate::cluster::tally::count();",
            "crate::cluster::tally::count",
        ),
        ("domain", 2, "use kube::Client;", "kube"),
        (
            "domain",
            2,
            "let since = std::time::Instant::now();",
            "Instant",
        ),
        (
            "domain",
            2,
            "use std::time::{Duration, SystemTime};",
            "SystemTime",
        ),
        (
            "domain",
            2,
            "let now = jiff::Timestamp::now();",
            "Timestamp::now",
        ),
        (
            "ledger",
            2,
            "use crate::{api::keys, cluster::{self, index::Index}};",
            "crate::cluster::self",
        ),
        (
            "cluster",
            2,
            "use super::super::controllers::run;",
            "crate::controllers::run",
        ),
        ("cluster", 1, "use super::telemetry;", "crate::telemetry"),
        (
            "admission",
            3,
            "use crate::controllers::Context;",
            "crate::controllers::Context",
        ),
        (
            "admission",
            3,
            "use crate::tls::Resolver;",
            "crate::tls::Resolver",
        ),
        (
            "controllers",
            2,
            "use crate::admission::rule_check;",
            "crate::admission::rule_check",
        ),
        ("controllers", 2, "use crate::*;", "crate::"),
        (
            "server",
            2,
            "use crate::admission::routes::Route;",
            "crate::admission::routes::Route",
        ),
        ("telemetry", 2, "use crate::cli;", "crate::cli"),
    ] {
        let all = violations(layer, depth, source);
        assert!(
            all.iter().any(|violation| violation == found),
            "{layer}: {source}: {all:?}"
        );
    }
}

#[test]
fn allowed_imports_are_no_violations() {
    for (layer, depth, source) in [
        ("domain", 2, "use crate::api::{keys, selector::Selector};"),
        ("domain", 2, "use crate::domain::pod::Pod as Slim;"),
        (
            "domain",
            3,
            "use super::super::rules; // crate::cluster reads it at Timestamp::now",
        ),
        ("domain", 2, "fn at(now: jiff::Timestamp) {}"),
        (
            "api",
            2,
            "use super::ledger::Claim; use kube::CustomResource;",
        ),
        (
            "controllers",
            1,
            "pub(crate) mod rules; use crate::cluster::{index::Index as Known, *};",
        ),
        (
            "server",
            2,
            "use crate::admission::review::{self, Handler};",
        ),
        (
            "cli",
            2,
            "use crate::{admission, controllers, server::Limits};",
        ),
    ] {
        let none: Vec<String> = Vec::new();
        assert_eq!(violations(layer, depth, source), none, "{layer}: {source}");
    }
}

/// Where tasks and threads begin outside [`operating::tasks`], how many, and which code notices their end.
const BEGINNINGS: &[(&str, usize, &str)] = &[
    (
        "cli/completion/live.rs",
        1,
        "a read of names for a completion, which waits for it only for a short time",
    ),
    (
        "cli/operate/run.rs",
        1,
        "the command of the user, a process: the run waits for its end",
    ),
    ("tasks/mod.rs", 1, "the supervisor itself"),
    (
        "cli/serve/watchdog.rs",
        1,
        "the watchdog waits for its answer",
    ),
    (
        "cluster/events.rs",
        1,
        "of a recorder without a supervisor, for one decision of the command line",
    ),
    (
        "cluster/work_queue/mod.rs",
        2,
        "a worker's panic goes on to its controller; a timer only sleeps and adds its key",
    ),
    (
        "controllers/wait_queue/mod.rs",
        1,
        "a round that panics hands back who waits for it, and the namespace rests",
    ),
    (
        "controllers/rule_endpoints/http.rs",
        1,
        "the request over a connection fails with it",
    ),
    (
        "controllers/rule_endpoints/mod.rs",
        1,
        "a call that panics has failed",
    ),
    (
        "ledger/commit/queue.rs",
        1,
        "a batch that panics is denied, and the queue goes on",
    ),
    ("server/connections.rs", 2, "a connection ends alone"),
    ("server/log_limiter.rs", 1, "a line of the log"),
    ("telemetry/watchdog.rs", 1, "a thread; its panic is a fault"),
    (
        "tls/client_authorities.rs",
        1,
        "a read of a file, awaited by its keeper",
    ),
    (
        "tls/certificate_files.rs",
        1,
        "a read of files, awaited by their keeper",
    ),
];

#[test]
fn tasks_begin_where_their_end_is_noticed() {
    let mut found = Vec::new();
    for file in sources_below("src") {
        let path = file.path.to_str().unwrap();
        let count = beginnings(&file.text);
        if count > 0 && !path.contains("/tests/") && !path.ends_with("/tests.rs") {
            found.push((path.to_owned(), count));
        }
    }
    found.sort();
    let known = BEGINNINGS.iter();
    let mut known: Vec<_> = known
        .map(|(at, count, _)| ((*at).to_owned(), *count))
        .collect();
    known.sort();
    assert_eq!(
        found, known,
        "start tasks with Supervisor::spawn_supervised, or add an entry to BEGINNINGS that says who notices their end"
    );
}

#[test]
fn beginnings_of_tasks_are_found() {
    for (source, count) in [
        ("tokio::spawn(async {}); set.spawn(work);", 2),
        ("let read = task::spawn_blocking(read);", 1),
        ("fn spawn(self) {} // tokio::spawn(work)", 0),
        (
            "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(work); } }",
            0,
        ),
    ] {
        assert_eq!(beginnings(source), count, "{source}");
    }
}

/// How many tasks and threads a source starts, without its tests.
fn beginnings(source: &str) -> usize {
    let code = source
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let code = tokens(code);
    let begins = |window: &&[&str]| {
        let is_spawn = ["spawn", "spawn_blocking", "spawn_local"].contains(&window[1]);
        is_spawn && window[0] != "fn" && window[2] == "("
    };
    code.windows(3).filter(begins).count()
}

#[test]
fn no_release_has_faults_on_purpose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let tasks = read("src/tasks/mod.rs");
    assert!(tasks.contains("#[cfg(debug_assertions)]\npub(crate) mod faults;"));
    for file in ["Cargo.toml", ".cargo/config.toml", "Dockerfile"] {
        let text = read(file).to_lowercase().replace('_', "-");
        assert!(
            !text.contains("debug-assertions"),
            "{file}: a release has no debug assertions"
        );
    }
    assert!(read("Dockerfile").contains("cargo build --release "));
}

/// Cargo reads the manifest of every member, whatever it builds.
#[test]
fn image_context_has_every_workspace_member() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find(|line| line.starts_with("members = "));
    let members: Vec<_> = members.unwrap().split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"xtask"), "{members:?}");
    let ignore = read(".dockerignore");
    let allowed: Vec<_> = ignore.lines().filter_map(|l| l.strip_prefix('!')).collect();
    for member in members.into_iter().filter(|member| *member != ".") {
        assert!(
            allowed
                .iter()
                .any(|path| Path::new(member).starts_with(path)),
            ".dockerignore leaves out {member}"
        );
    }
}

/// The violations in the source of a module of `layer`, `depth` modules below the crate root.
fn violations(layer: &str, depth: usize, source: &str) -> Vec<String> {
    let code = tokens(source);
    let mut paths = Vec::new();
    for at in 0..code.len() {
        if let Some(begin) = root(&code, at, depth) {
            expand(&code, begin, &[], &mut paths);
        }
    }
    let paths = paths.iter().filter(|path| !allows(layer, path));
    let mut found: Vec<String> = paths
        .map(|path| format!("crate::{}", path.join("::")))
        .collect();
    let banned = BANNED.iter().filter(|(name, _)| *name == layer);
    for word in banned.flat_map(|(_, words)| *words) {
        let word_tokens = tokens(word);
        if code
            .windows(word_tokens.len())
            .any(|window| window == word_tokens)
        {
            found.push((*word).to_owned());
        }
    }
    found
}

/// Whether `layer` may use the item at `path` from the crate root.
fn allows(layer: &str, path: &[&str]) -> bool {
    let Some(first) = path.first() else {
        return false; // a glob over the whole crate
    };
    let is_layer = LAYERS.iter().any(|(name, _)| name == first);
    let may = LAYERS.iter().find(|(name, _)| *name == layer);
    let (_, may) = may.unwrap_or_else(|| panic!("{layer} has no place in tests/layers.rs"));
    let below = |allowed: &&str| {
        let allowed: Vec<_> = allowed.split("::").collect();
        path.starts_with(&allowed)
    };
    !is_layer || *first == layer || may.iter().any(below)
}

/// Words, `::` and other single characters, without comments.
fn tokens(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in source.lines() {
        let mut rest = line.split("//").next().unwrap_or_default();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(length);
            if !token.trim().is_empty() {
                found.push(token);
            }
            rest = after;
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where the path after `crate::` at `at` begins, or after the `super::` that lead out of the layer.
fn root(code: &[&str], at: usize, depth: usize) -> Option<usize> {
    if at > 0 && code[at - 1] == "::" {
        return None; // the middle of a path
    }
    let rest = &code[at..];
    if rest.starts_with(&["crate", "::"]) {
        return Some(at + 2);
    }
    let supers = rest
        .chunks(2)
        .take_while(|pair| **pair == ["super", "::"])
        .count();
    (supers > 0 && supers >= depth).then_some(at + 2 * supers)
}

/// Appends the path that begins at `at`, or every path of a `{group}`, to `found`; returns where it ends.
fn expand<'a>(
    code: &[&'a str],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Vec<Vec<&'a str>>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match code.get(at).copied() {
            Some("{") => {
                at += 1;
                while let Some(token) = code.get(at).copied() {
                    at = match token {
                        "}" => return at + 1,
                        "," => at + 1,
                        "as" => at + 2,
                        _ => expand(code, at, &path, found).max(at + 1),
                    };
                }
                return at;
            }
            Some(word) if word.starts_with(is_word) => {
                path.push(word);
                at += 1;
                if code.get(at) != Some(&"::") {
                    break;
                }
                at += 1;
            }
            _ => break, // a glob, or the end
        }
    }
    found.push(path);
    at
}
