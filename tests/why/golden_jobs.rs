//! OperationJobs of `tests/golden/why-operationjob`: `NAME.yaml` is the stored job, `NAME.txt` and `NAME.json` are the
//! output of `operating why opj/NAME`. `UPDATE=1 cargo test --test why golden` rewrites the output.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use operating::api::operationjob::OperationJob;
use operating::cli::why::job_tree;
use operating::domain::diagnosis::operationjob::diagnose_job;

const NOW: &str = "2026-01-01T12:00:00Z";

#[test]
fn golden_files_match_diagnoses_of_jobs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/why-operationjob");
    let update = std::env::var_os("UPDATE").is_some();
    let now: Timestamp = NOW.parse().unwrap();
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    assert!(files.len() >= 4, "jobs are missing: {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let job: OperationJob = serde_norway::from_str(&text).unwrap();
        let diagnosis = diagnose_job(&job, now);
        let json = serde_json::to_string_pretty(&diagnosis).unwrap() + "\n";
        for (extension, rendered) in [
            ("txt", job_tree::render_job(&diagnosis, now)),
            ("json", json),
        ] {
            let golden = file.with_extension(extension);
            if update {
                fs::write(&golden, &rendered).unwrap();
            }
            let stored = fs::read_to_string(&golden).unwrap_or_default();
            assert_eq!(stored, rendered, "{}", golden.display());
        }
    }
}
