//! Notifies listeners of changes in the caches.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ledger::store::Uid;

/// How many changes a slow listener may be behind. A listener that is further behind misses changes, and must look at
/// all objects again.
const CHANNEL_CAPACITY: usize = 16_384;

/// The object that has changed. Listeners read its present state from the caches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A Pod: namespace and UID.
    Pod(String, Uid),
    /// A rule object: namespace and name.
    Rule(String, String),
    /// A namespace.
    Namespace(String),
    /// The number of Pods that a workload of the namespace should have.
    Workload(String),
    /// A CollaSet, or an object that it controls: namespace and name.
    CollaSet(String, String),
    /// A webhook configuration of the server.
    Registration,
}

/// The channel of changes. A clone shares it.
#[derive(Clone, Debug)]
pub struct Changes(Arc<broadcast::Sender<Change>>);

impl Default for Changes {
    fn default() -> Self {
        Changes(Arc::new(broadcast::Sender::new(CHANNEL_CAPACITY)))
    }
}

impl Changes {
    /// Notifies every listener.
    pub fn notify(&self, change: Change) {
        let _ = self.0.send(change); // nobody may be listening
    }

    /// Returns a receiver of the changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
