//! Sends one write, and remembers its refusal.

use kube::Error;
use tokio::time::Instant;

use super::apply::Execution;
use crate::controllers::collaset::refusals::RefusalKey;
use crate::controllers::requests::{RequestError, request_with_deadline};

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The write was made. The cache contains its answer.
    Done,
    /// The object is gone or has changed since the plan was made.
    Stale,
    /// The write was refused or not answered. It is tried again after a pause. Contains the object and the reason.
    Refused(String),
}

impl Execution<'_> {
    /// Sends a write. `description` names the object in messages.
    pub async fn send(
        &self,
        key: RefusalKey,
        description: &str,
        request: impl Future<Output = Result<(), Error>>,
    ) -> WriteResult {
        let result = request_with_deadline(description, request).await;
        self.record_result(key, result)
    }

    /// Remembers the refusal of a write, or forgets it after success.
    pub fn record_result(&self, key: RefusalKey, result: Result<(), RequestError>) -> WriteResult {
        match result {
            Ok(()) => {
                self.memory.clear_refusal(&key);
                WriteResult::Done
            }
            Err(RequestError::Moved | RequestError::Exists) => WriteResult::Stale,
            Err(
                RequestError::Held(message)
                | RequestError::Failed(message)
                | RequestError::Denied(message)
                | RequestError::Refused(message),
            ) => {
                let (now, generation) = (Instant::now(), self.generation());
                let memory = self.memory;
                memory.record_refusal(key, &message, now, generation);
                WriteResult::Refused(message)
            }
        }
    }
}
