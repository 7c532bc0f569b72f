//! What the writes of one plan need. Sends a write, and remembers its refusal.

use std::sync::Arc;

use kube::{Client, Error};
use tokio::time::Instant;

use super::memory::DecorationMemory;
use crate::api::poddecoration::PodDecoration;
use crate::cluster::objects::ObjectCaches;
use crate::controllers::ControllerContext;
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

/// What the writes of one plan need.
pub struct Execution<'a> {
    pub context: &'a ControllerContext,
    pub memory: &'a DecorationMemory,
    /// The PodDecoration that was planned.
    pub object: &'a Arc<PodDecoration>,
}

impl Execution<'_> {
    pub fn client(&self) -> &Client {
        &self.context.client
    }

    pub fn objects(&self) -> &ObjectCaches {
        &self.context.objects
    }

    pub fn namespace(&self) -> &str {
        let namespace = self.object.metadata.namespace.as_deref();
        namespace.unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.memory.uid()
    }

    pub fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or(0)
    }

    /// Sends a write. `description` names the object in messages.
    pub async fn send<T>(
        &self,
        key: RefusalKey,
        description: &str,
        request: impl Future<Output = Result<T, Error>>,
    ) -> WriteResult {
        let result = request_with_deadline(description, request).await;
        self.record_result(key, result.map(|_| ()))
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
