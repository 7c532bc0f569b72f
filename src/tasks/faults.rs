//! Faults on purpose. Only tests build with the cargo feature `faults`; no release has this code.
//!
//! Each task makes a file with its name in the directory of the environment variable [`DIRECTORY`]. What is written into the
//! file happens to the task: `panic`, `end`, or `block`, which holds the task's thread until the file says something else.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

/// Names the directory. Without it there are no faults.
pub const DIRECTORY_VARIABLE: &str = "OPERATING_FAULTS";

const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Does the work of a task until a fault strikes.
pub(super) async fn run_with_faults(task: Cow<'static, str>, work: impl Future<Output = ()>) {
    tokio::select! { () = work => {}, () = wait_for_end(&task) => {} }
}

/// Returns when the task is to end.
async fn wait_for_end(task: &str) {
    let Some(file) = fault_file(task) else {
        return std::future::pending().await;
    };
    while apply_fault(&file) != "end" {
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// The file of a task, which is made if it is not there.
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

/// What the file says. Panics or blocks if that is what it says.
#[allow(clippy::panic)] // that is what it is for
pub fn apply_fault(file: &PathBuf) -> String {
    loop {
        let said = std::fs::read_to_string(file).unwrap_or_default();
        match said.as_str() {
            "panic" => panic!("a fault on purpose"),
            "block" => std::thread::sleep(POLL_PERIOD),
            _ => return said,
        }
    }
}
