//! The caches that the watches of this replica fill.

use std::sync::Arc;

use super::changes::Changes;
use super::disruption_budgets::DisruptionBudgets;
use super::index::Index;
use super::objects::ObjectCaches;
use super::watch::UnreadableObjects;
use super::watch_health::WatchRegistry;
use super::webhook_registration::WebhookRegistration;
use crate::domain::rules::SkipAnnotation;

/// The caches of one replica. A clone shares them.
#[derive(Clone, Debug)]
pub struct Caches {
    /// The objects that decisions rest on: Pods, rules, namespaces and the owners of Pods.
    pub index: Arc<Index>,
    /// The objects that the controller of CollaSets reads besides Pods.
    pub objects: Arc<ObjectCaches>,
    /// PodDisruptionBudgets, for which the API server may refuse an eviction that all rules allow.
    pub disruption_budgets: Arc<DisruptionBudgets>,
    /// The stored webhook configurations of the server.
    pub registration: Arc<WebhookRegistration>,
    /// The objects that this replica cannot read.
    pub unreadable: Arc<UnreadableObjects>,
    /// When each watch last received anything from the API server.
    pub watch_registry: Arc<WatchRegistry>,
    /// Notifies the controllers of changes.
    pub changes: Changes,
}

impl Caches {
    /// Creates empty caches. `skips` says whether Pods can skip rules by an annotation.
    pub fn new(skips: SkipAnnotation) -> Caches {
        let index = Arc::new(Index::new(skips));
        Caches {
            changes: index.changes().clone(),
            index,
            objects: Arc::default(),
            disruption_budgets: Arc::default(),
            registration: Arc::default(),
            unreadable: Arc::default(),
            watch_registry: Arc::default(),
        }
    }
}

impl Default for Caches {
    fn default() -> Caches {
        Caches::new(SkipAnnotation::default())
    }
}
