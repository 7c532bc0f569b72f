//! One plane for all tests of a process.

use std::path::Path;

use anyhow::{Result, anyhow};
use tokio::sync::OnceCell;

use super::{Options, Plane};

static SHARED: OnceCell<Result<Plane, String>> = OnceCell::const_new();

/// The plane of this test process: started by the first who asks; with `KUBECONFIG` set, the
/// cluster it names. It ends with the process. Tests keep out of each other's way with
/// [`Plane::namespace`]; one that stops or pauses the API server starts a plane of its own.
///
/// # Errors
/// As [`Plane::start`]; a start that failed is not tried again by every further test.
pub async fn shared() -> Result<&'static Plane> {
    let start = || async {
        let started = match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
            Some(kubeconfig) => Plane::attach(Path::new(&kubeconfig)).await,
            None => Plane::start(Options::default()).await,
        };
        started.map_err(|error| format!("{error:#}"))
    };
    SHARED
        .get_or_init(start)
        .await
        .as_ref()
        .map_err(|error| anyhow!("the plane of this test run: {error}"))
}
