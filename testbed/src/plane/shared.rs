//! One plane for all tests of a process.

use std::path::Path;

use anyhow::{Result, anyhow};
use tokio::sync::OnceCell;

use super::{Options, Plane};

static SHARED: OnceCell<Result<Plane, String>> = OnceCell::const_new();

/// The plane of this test process, started on first use; with `KUBECONFIG` set, the cluster that it names.
/// The plane ends with the process. Each test uses its own namespace ([`Plane::namespace`]). A test that
/// stops or pauses the API server starts its own plane.
///
/// # Errors
/// As [`Plane::start`]. After a failed start, further tests do not try again.
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
