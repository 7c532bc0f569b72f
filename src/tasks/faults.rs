//! Injects faults for tests. Only builds with debug assertions have this code, so no release has it.
//!
//! Each task creates a file with its name in the directory of the environment variable [`DIRECTORY_VARIABLE`]. A test
//! writes a fault into the file: `panic`, `end`, or `block`, which blocks the thread of the task until the content of
//! the file changes.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable that names the directory. If it is not set, there are no faults.
pub const DIRECTORY_VARIABLE: &str = "OPERATING_FAULTS";

const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Does the work of a task until a fault ends it.
pub(super) async fn run_with_faults(task: Cow<'static, str>, work: impl Future<Output = ()>) {
    tokio::select! { () = work => {}, () = wait_for_end(&task) => {} }
}

/// Completes when a fault ends the task.
async fn wait_for_end(task: &str) {
    let Some(file) = fault_file(task) else {
        return std::future::pending().await;
    };
    while apply_fault(&file) != "end" {
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// The file of a task. It is created if it does not exist.
pub fn fault_file(task: &str) -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY_VARIABLE)?);
    let file = directory.join(task);
    std::fs::create_dir_all(directory).ok()?;
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(&file)
        .ok()?;
    Some(file)
}

/// Returns the content of the file. Panics or blocks if the file says so.
#[allow(clippy::panic)] // panics on purpose
pub fn apply_fault(file: &PathBuf) -> String {
    loop {
        let content = std::fs::read_to_string(file).unwrap_or_default();
        match content.as_str() {
            "panic" => panic!("a fault on purpose"),
            "block" => std::thread::sleep(POLL_PERIOD),
            _ => return content,
        }
    }
}
