//! Tells who listens that something in the caches has changed.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ledger::store::Uid;

/// Changes that a slow listener may be behind. A listener that is further behind misses some, and has to look at everything
/// again.
const CHANNEL_CAPACITY: usize = 16_384;

/// What has changed. The caches say what it is now.
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

/// The channel of changes. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Changes(Arc<broadcast::Sender<Change>>);

impl Default for Changes {
    fn default() -> Self {
        Changes(Arc::new(broadcast::Sender::new(CHANNEL_CAPACITY)))
    }
}

impl Changes {
    /// Tells every listener.
    pub fn notify(&self, change: Change) {
        let _ = self.0.send(change); // nobody may be listening
    }

    /// The changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.0.subscribe()
    }
}
