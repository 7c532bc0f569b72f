//! Everything that the watches of this replica feed.

use std::sync::Arc;

use super::changes::Changes;
use super::disruptionbudgets::DisruptionBudgets;
use super::index::Index;
use super::objects::ObjectCaches;
use super::watch::UnreadableObjects;
use super::watch_health::WatchRegistry;
use super::webhook_registration::WebhookRegistration;
use crate::domain::rules::SkipAnnotation;

/// The caches of one replica. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Caches {
    /// What decisions rest on: Pods, rules, namespaces and the owners of Pods.
    pub index: Arc<Index>,
    /// What the controller of CollaSets reads besides Pods.
    pub objects: Arc<ObjectCaches>,
    /// What an eviction is refused for beside the rules.
    pub disruption_budgets: Arc<DisruptionBudgets>,
    /// The stored webhook configurations of the server.
    pub registration: Arc<WebhookRegistration>,
    /// The objects that cannot be read.
    pub unreadable: Arc<UnreadableObjects>,
    /// When each watch last heard of the API server.
    pub pulses: Arc<WatchRegistry>,
    /// Tells the controllers what has changed.
    pub changes: Changes,
}

impl Caches {
    /// Empty caches; `skips` says whether Pods can skip rules by an annotation.
    pub fn new(skips: SkipAnnotation) -> Caches {
        let index = Arc::new(Index::new(skips));
        Caches {
            changes: index.changes().clone(),
            index,
            objects: Arc::default(),
            disruption_budgets: Arc::default(),
            registration: Arc::default(),
            unreadable: Arc::default(),
            pulses: Arc::default(),
        }
    }
}

impl Default for Caches {
    fn default() -> Caches {
        Caches::new(SkipAnnotation::default())
    }
}
