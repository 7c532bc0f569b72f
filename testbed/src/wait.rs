//! Waiting with a deadline.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout};

const POLL: Duration = Duration::from_millis(50);
/// One look may take this long; a hanging one must not eat the whole deadline.
pub const LOOK: Duration = Duration::from_secs(5);

/// Looks until `probe` says true. An error of a single look is taken for "not yet" and is part
/// of the message when the deadline passes.
pub async fn until<F, T>(what: &str, deadline: Duration, mut probe: F) -> Result<()>
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
    let message = format!("waited {deadline:?} for {what}");
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
    async fn a_deadline_tells_what_was_waited_for_and_the_last_error() {
        let moment = Duration::from_millis(1);
        let error = until("rain", moment, || async { bail!("sunny") })
            .await
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 1ms for rain: sunny");
        let error = until("rain", moment, || async { Ok(false) }).await;
        assert_eq!(error.unwrap_err().to_string(), "waited 1ms for rain");
        until("rain", moment, || async { Ok(true) }).await.unwrap();
    }
}
