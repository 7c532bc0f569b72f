//! What every handler works with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use crate::cluster::deleted_collasets::DeletedCollaSets;
use crate::cluster::disruptionbudgets::DisruptionBudgets;
use crate::cluster::events::EventRecorder;
use crate::cluster::identity::Identity;
use crate::cluster::index::Index;
use crate::cluster::objects::ObjectCaches;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::presence::ObjectLookup;
use crate::cluster::rulestore::RuleStore;
use crate::domain::lifecycle::restarts::WriteTime;
use crate::domain::pod::Pod;
use crate::domain::rules::webhook::EndpointNetworks;
use crate::ledger::commit::{Disruption, Ledgers};
use crate::ledger::protocol::Operation;
use crate::ledger::store::ClaimDetail;

/// Settings of admission.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// The API server's `--request-timeout`: after this long a request that was admitted has surely had its effect or
    /// never will.
    pub request_timeout: Duration,
    /// Whether deletions and evictions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// Most PodTransitionRules in a namespace.
    pub max_rules: u32,
    /// Whether CollaSets are reviewed (feature gate `CollaSets`).
    pub collasets: bool,
    /// Bytes of the largest CollaSet that is accepted.
    pub collaset_bytes: usize,
    /// Where the endpoints of webhook rules may be.
    pub endpoints: EndpointNetworks,
}

/// Owners of a Pod that one review looks up at most: a tenant may write thousands of references into a Pod, each to be
/// looked up at the API server.
pub const MAX_OWNER_LOOKUPS: usize = 8;

/// [`Settings::max_rules`] where nobody says otherwise.
pub const MAX_RULES_PER_NAMESPACE: u32 = 200;

/// What every handler works with.
pub struct Context {
    /// Client for the live reads that admission makes: the Pod of an eviction, the rules of a namespace that should have
    /// some and has none in the cache, owners of Pods that are in doubt.
    pub client: Client,
    /// Who this program is.
    pub identity: Identity,
    /// What this replica knows.
    pub index: Arc<Index>,
    /// What belongs to CollaSets.
    pub objects: Arc<ObjectCaches>,
    /// What an eviction is refused for beside the rules.
    pub disruption_budgets: Arc<DisruptionBudgets>,
    /// Whether owners of Pods exist that are in no cache.
    pub kinds: ObjectLookup,
    /// Live reads of the owners of Pods.
    pub owners: Arc<LiveOwners>,
    /// Live reads of CollaSets that are deleted.
    pub deleted_sets: DeletedCollaSets,
    /// The ledgers.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// For what users should know beside the verdict.
    pub events: Arc<EventRecorder>,
    /// Settings.
    pub settings: AdmissionSettings,
    /// The clock, a parameter so that tests can set it.
    pub now: fn() -> Timestamp,
    /// The earliest time that it may be, see [`crate::cluster::clock::earliest`]. What is believed when a while is over goes by
    /// this: to believe it too early would count a Pod as available that is yet to go.
    pub earliest: fn() -> Timestamp,
}

impl Context {
    /// Nanoseconds since the epoch: the value of lifecycle labels.
    pub fn now_nanos(&self) -> u64 {
        u64::try_from((self.now)().as_nanosecond()).unwrap_or(0)
    }

    /// When a restart is written or judged.
    pub fn restart_moment(&self) -> WriteTime {
        let nanos = |time: Timestamp| u64::try_from(time.as_nanosecond()).unwrap_or(0);
        WriteTime {
            now: self.now_nanos(),
            earliest: nanos((self.earliest)()),
        }
    }

    /// A disruption of a Pod, now.
    pub fn new_disruption(&self, pod: &Arc<Pod>, operation: Operation) -> Disruption {
        let since = (self.now)();
        let until = since
            .checked_add(self.settings.request_timeout)
            .unwrap_or(since);
        let detail = ClaimDetail {
            pod_name: pod.metadata.name.clone(),
            since,
            until,
            target: None,
            containers: Vec::new(),
            carried: None,
        };
        Disruption {
            pod: Arc::clone(pod),
            operation,
            detail,
            bypassed_rules: BTreeSet::new(),
            generations: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
impl Context {
    /// For unit tests: a replica that has seen nothing yet, at the epoch.
    pub fn at_epoch(client: Client) -> Context {
        let index = Arc::new(Index::default());
        let store = RuleStore::new(client.clone(), Arc::clone(&index), Default::default());
        Context {
            events: EventRecorder::new(client.clone(), || Timestamp::UNIX_EPOCH),
            kinds: ObjectLookup::new(client.clone()),
            client,
            owners: LiveOwners::new(&index),
            deleted_sets: DeletedCollaSets::default(),
            identity: Identity::default(),
            index,
            objects: Arc::default(),
            disruption_budgets: Arc::default(),
            ledgers: Ledgers::new(store),
            settings: AdmissionSettings {
                request_timeout: Duration::from_secs(60),
                grace_delete: false,
                max_rules: MAX_RULES_PER_NAMESPACE,
                collasets: true,
                collaset_bytes: 1 << 20,
                endpoints: EndpointNetworks::default(),
            },
            now: || Timestamp::UNIX_EPOCH,
            earliest: || Timestamp::UNIX_EPOCH,
        }
    }
}
