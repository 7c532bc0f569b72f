//! Repeats requests after failures that pass by themselves, because a command that gives up half-way can leave a Pod off
//! traffic.

use std::time::Duration;

use tokio::time::Instant;

use super::output;
use crate::api_request::ApiFailure;

/// Pauses between attempts: each is twice the former one, up to the longest, and shortened by a random part.
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The attempts of one request.
pub struct Retries {
    /// When to give up; `None` never gives up.
    deadline: Option<Instant>,
    pause: Duration,
}

impl Retries {
    /// Attempts until the deadline, or without end.
    pub fn until(deadline: Option<Instant>) -> Retries {
        Retries {
            deadline,
            pause: MIN_PAUSE,
        }
    }

    /// One attempt only.
    pub fn none() -> Retries {
        Retries::until(Some(Instant::now()))
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    /// The failure, if another attempt would not help or comes too late.
    pub async fn pause_after(&mut self, failure: ApiFailure) -> Result<(), ApiFailure> {
        let is_late = self.deadline.is_some_and(|end| Instant::now() >= end);
        if is_late || !failure.is_passing() {
            return Err(failure);
        }
        if self.pause == MIN_PAUSE {
            output::write_stderr(&format!("warning: {}; trying again", failure.text()));
        }
        let pause = self.pause.mul_f64(rand::random_range(0.5..1.0));
        let next = Instant::now() + pause;
        tokio::time::sleep_until(self.deadline.map_or(next, |end| end.min(next))).await;
        self.pause = MAX_PAUSE.min(self.pause * 2);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answered(code: u16) -> ApiFailure {
        ApiFailure::Answered(Box::new(Status::failure("no", "Reason").with_code(code)))
    }

    #[tokio::test(start_paused = true)]
    async fn passing_failures_are_tried_again_until_deadline() {
        let mut retries = Retries::until(Some(Instant::now() + Duration::from_secs(60)));
        let mut attempts = 0;
        while retries
            .pause_after(ApiFailure::NoAnswer(MAX_PAUSE))
            .await
            .is_ok()
        {
            attempts += 1;
        }
        assert!(attempts > 10, "{attempts}");
        let mut endless = Retries::until(None);
        assert!(endless.pause_after(answered(503)).await.is_ok());
        assert!(endless.pause_after(answered(403)).await.is_err());
        assert!(Retries::none().pause_after(answered(503)).await.is_err());
    }
}
