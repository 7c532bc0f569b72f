//! Waiting with a deadline.
//!
//! Commands wait with [`within`], which returns an error. Tests wait with [`until`] and [`value`], which panic after
//! [`PATIENCE`]: a test does not say how fast something must be. [`until_blocking`] is for tests without a runtime.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout};

const POLL: Duration = Duration::from_millis(50);
/// Timeout of one probe, so that a hanging probe does not use up the whole deadline.
pub const LOOK: Duration = Duration::from_secs(5);

/// Longer than every wait on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `probe` returns true.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn until(description: &str, mut probe: impl AsyncFnMut() -> bool) {
    value(description, async || probe().await.then_some(())).await;
}

/// As [`until`], for a test without an asynchronous runtime: blocks the thread.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until_blocking(description: &str, mut probe: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !probe() {
        assert!(
            start.elapsed() < PATIENCE,
            "waited {PATIENCE:?} for {description}"
        );
        std::thread::sleep(POLL);
    }
}

/// Waits until `probe` returns a value.
///
/// # Panics
/// After [`PATIENCE`].
#[allow(clippy::panic)] // a test fails by a panic
pub async fn value<T>(description: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    let found = found(probe).await;
    found.unwrap_or_else(|| panic!("waited {PATIENCE:?} for {description}"))
}

/// As [`value`]; `None` after [`PATIENCE`].
pub async fn found<T>(mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, looking).await.ok()
}

/// Waits until `probe` returns true, at most for `deadline`. An error of `probe` counts as "not yet"; the last error is
/// part of the message when the deadline passes.
///
/// # Errors
/// When the deadline passes.
pub async fn within<F, T>(description: &str, deadline: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> T,
    T: Future<Output = Result<bool>>,
{
    let end = Instant::now() + deadline;
    let mut last = None;
    while Instant::now() < end {
        match timeout(LOOK, probe()).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => last = None,
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(anyhow::anyhow!("no answer within {LOOK:?}")),
        }
        sleep(POLL).await;
    }
    let message = format!("waited {deadline:?} for {description}");
    match last {
        Some(error) => Err(error).context(message),
        None => bail!(message),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn timeout_names_condition_and_last_error() {
        let moment = Duration::from_millis(1);
        let error = within("rain", moment, || async { bail!("sunny") })
            .await
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 1ms for rain: sunny");
        let error = within("rain", moment, || async { Ok(false) }).await;
        assert_eq!(error.unwrap_err().to_string(), "waited 1ms for rain");
        within("rain", moment, || async { Ok(true) }).await.unwrap();
    }
}
