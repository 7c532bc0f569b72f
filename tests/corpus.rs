//! Replays the corpus of the fuzz targets: inputs of real shapes, and inputs that once failed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use targets::TARGETS;

#[path = "../fuzz/targets/mod.rs"]
mod targets;

/// Limit for the whole corpus, which people review.
const MOST_BYTES: u64 = 300_000;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_target_holds_for_its_corpus() {
    let mut bad = Vec::new();
    for (name, run) in TARGETS {
        for file in entries(&corpus().join(name)) {
            let data = fs::read(&file).unwrap();
            println!("{}", file.display()); // shown when the test fails
            if catch_unwind(AssertUnwindSafe(|| run(&data))).is_err() {
                bad.push(file.display().to_string());
            }
        }
    }
    assert!(bad.is_empty(), "failed, see above:\n{}", bad.join("\n"));
}

#[test]
fn corpus_is_small_and_of_known_targets() {
    let names: BTreeSet<_> = TARGETS.map(|(name, _)| name.to_owned()).into();
    let found = entries(&corpus());
    let found: BTreeSet<_> = found
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, names, "a directory for each target");
    let files = names.iter().map(|name| entries(&corpus().join(name)));
    let files: Vec<_> = files
        .inspect(|of| assert!(!of.is_empty()))
        .flatten()
        .collect();
    let size: u64 = files.iter().map(|f| fs::metadata(f).unwrap().len()).sum();
    assert!(size <= MOST_BYTES, "{size} bytes in {}", corpus().display());
}
