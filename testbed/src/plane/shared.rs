//! One plane for all tests of a process.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use tokio::sync::OnceCell;

use super::{Options, Plane};

/// The kubeconfig of an existing cluster for tests and the demo: the variable `KUBECONFIG`, unless it is empty.
#[must_use]
pub fn existing_cluster() -> Option<PathBuf> {
    let value = std::env::var_os("KUBECONFIG");
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

static SHARED: OnceCell<Result<Plane, String>> = OnceCell::const_new();

/// The plane of this test process, started on first use; with `KUBECONFIG` set, the cluster that it names.
/// The plane ends with the process. Each test uses its own namespace ([`Plane::namespace`]). A test that
/// stops or pauses the API server starts its own plane.
///
/// # Errors
/// As [`Plane::start`]. After a failed start, further tests do not try again.
pub async fn shared() -> Result<&'static Plane> {
    let start = || async {
        let started = match existing_cluster() {
            Some(kubeconfig) => Plane::attach(&kubeconfig).await,
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
