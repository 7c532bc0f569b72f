//! A cold start.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Bench;

/// Timeout for a replica to be ready again.
const LIMIT: Duration = Duration::from_secs(300);

/// Kills the server, starts it again, and returns the time until it is ready.
pub async fn cold(bench: &mut Bench) -> Result<Duration> {
    bench.server.kill().await?;
    let begin = Instant::now();
    bench.server.start_again()?;
    while begin.elapsed() < LIMIT {
        if bench.server.endpoints.is_ready().await {
            return Ok(begin.elapsed());
        }
        if !bench.server.runs() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!(
        "not ready after a restart; the end of the log:\n{}",
        bench.server.log_tail()
    )
}
