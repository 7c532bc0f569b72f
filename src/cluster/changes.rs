//! Notifies listeners of changes in the caches.

use tokio::sync::broadcast;

use crate::domain::traffic::names::EmployerName;
use crate::ledger::store::Uid;

/// How many changes a slow listener may be behind. A listener that is further behind misses changes, and must look at
/// all objects again.
const CHANNEL_CAPACITY: usize = 16_384;

/// The object that has changed. Listeners read its present state from the caches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A Pod changed: namespace and UID.
    Pod(String, Uid),
    /// A rule object changed: namespace and name.
    Rule(String, String),
    /// A namespace changed: its name.
    Namespace(String),
    /// A workload of this namespace changed the number of Pods for which it asks.
    Workload(String),
    /// A CollaSet changed, or an object that it controls: namespace and name of the CollaSet.
    CollaSet(String, String),
    /// The watch shows a CollaSet, or an object that it controls, as this replica wrote it itself: the namespace. The
    /// controller of CollaSets knows its own writes from their responses, all other readers do not.
    CollaSetWritten(String),
    /// A PodDecoration changed, or a revision that it controls: namespace and name of the PodDecoration.
    PodDecoration(String, String),
    /// An OperationJob changed: namespace and name.
    OperationJob(String, String),
    /// An employer of ResourceConsist changed, or what its adapter is told of.
    Employer(EmployerName),
    /// A webhook configuration of the server changed.
    Registration,
}

/// The channel of changes. A clone shares it.
#[derive(Clone, Debug)]
pub struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Changes(broadcast::Sender::new(CHANNEL_CAPACITY))
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
