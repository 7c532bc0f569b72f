//! Checks at the start that the kinds of Operating are installed, so that a missing installation has its own error.

use std::time::Duration;

use anyhow::bail;
use kube::Client;

use crate::api::keys;
use crate::api_request::{self, ApiFailure};

const TIMEOUT: Duration = Duration::from_secs(10);

/// # Errors
/// If the API server does not know the API group. After any other failure the server goes on, because its watches try
/// again and report what is wrong.
pub(super) async fn check_installed(client: &Client) -> anyhow::Result<()> {
    let version = format!("{}/{}", keys::GROUP, keys::VERSION);
    let group = client.list_api_group_resources(&version);
    match api_request::within(TIMEOUT, group).await {
        Err(ApiFailure::Answered(status)) if status.code == 404 => bail!(
            "the API server does not know the kinds of {version}: run `operating install` first, or start the server with --install"
        ),
        Err(failure) => {
            tracing::warn!(
                error = failure.text(),
                "cannot see whether the kinds are installed"
            );
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
