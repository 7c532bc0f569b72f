//! OperationJobs of `tests/golden/why-operationjob`: `NAME.yaml` is the stored job, `NAME.txt` and `NAME.json` are the
//! output of `operating why opj/NAME`. `UPDATE=1 cargo test --test why golden` rewrites the output.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use operating::api::operationjob::OperationJob;
use operating::cli::why::job_tree;
use operating::domain::diagnosis::operationjob::diagnose_job;
use serde::de::DeserializeOwned;

const NOW: &str = "2026-01-01T12:00:00Z";

#[test]
fn golden_files_match_diagnoses_of_jobs() {
    compare_with_golden_files("why-operationjob", 4, |job: OperationJob, now| {
        let diagnosis = diagnose_job(&job, now);
        let json = serde_json::to_string_pretty(&diagnosis).unwrap();
        (job_tree::render_job(&diagnosis, now), json)
    });
}

/// Compares the text and the JSON that `explain` makes of each file of a folder with the files beside it. The folder has
/// at least `fewest` such files.
pub fn compare_with_golden_files<T: DeserializeOwned>(
    folder: &str,
    fewest: usize,
    explain: impl Fn(T, Timestamp) -> (String, String),
) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(folder);
    let update = std::env::var_os("UPDATE").is_some();
    let now: Timestamp = NOW.parse().unwrap();
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    assert!(files.len() >= fewest, "situations are missing: {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let situation: T =
            serde_norway::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let (text, json) = explain(situation, now);
        for (extension, rendered) in [("txt", text), ("json", json + "\n")] {
            let golden = file.with_extension(extension);
            if update {
                fs::write(&golden, &rendered).unwrap();
            }
            let stored = fs::read_to_string(&golden).unwrap_or_default();
            assert_eq!(stored, rendered, "{}", golden.display());
        }
    }
}
