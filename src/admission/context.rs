//! The state and the settings that all admission handlers share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use crate::cluster::deleted_collasets::DeletedCollaSets;
use crate::cluster::disruption_budgets::DisruptionBudgets;
use crate::cluster::events::EventRecorder;
use crate::cluster::identity::Identity;
use crate::cluster::index::Index;
use crate::cluster::objects::ObjectCaches;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::presence::ObjectLookup;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::traffic::Traffic;
use crate::domain::lifecycle::restarts::WriteTime;
use crate::domain::pod::Pod;
use crate::domain::rules::webhook::EndpointNetworks;
use crate::ledger::commit::{Disruption, Ledgers};
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::ClaimDetail;

/// Settings of admission.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// The `--request-timeout` of the API server. When this time has passed, an admitted request has had its effect or
    /// will never have it.
    pub request_timeout: Duration,
    /// Whether deletions and evictions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// Maximum number of PodTransitionRules in a namespace.
    pub max_rules: u32,
    /// Whether CollaSets are reviewed (feature gate `CollaSets`).
    pub collasets: bool,
    /// Size limit of a CollaSet, in bytes.
    pub collaset_bytes: usize,
    /// The networks in which endpoints of webhook rules may be.
    pub endpoints: EndpointNetworks,
}

/// Maximum number of owners of a Pod that one review looks up. A tenant can write thousands of owner references into a
/// Pod, and each look-up is a request to the API server.
pub const MAX_OWNER_LOOKUPS: usize = 8;

/// Default of [`AdmissionSettings::max_rules`].
pub const MAX_RULES_PER_NAMESPACE: u32 = 200;

/// The state that all admission handlers share.
pub struct AdmissionContext {
    /// Client for the live reads of admission: the Pod of an eviction, the rules of a namespace whose cache is empty or
    /// not trusted, and owners of Pods that are in doubt.
    pub client: Client,
    /// The identity of this program in the cluster.
    pub identity: Identity,
    /// The Pods, rules, owners and namespaces that this replica knows.
    pub index: Arc<Index>,
    /// Caches of the objects that belong to CollaSets.
    pub objects: Arc<ObjectCaches>,
    /// The objects whose traffic is managed.
    pub traffic: Arc<Traffic>,
    /// PodDisruptionBudgets, which can also refuse an eviction.
    pub disruption_budgets: Arc<DisruptionBudgets>,
    /// Looks up whether owners of Pods exist that no cache holds.
    pub object_lookup: ObjectLookup,
    /// Live reads of the owners of Pods.
    pub owners: Arc<LiveOwners>,
    /// Live reads that tell whether a CollaSet is being deleted.
    pub deleted_collasets: DeletedCollaSets,
    /// The ledgers of all rules, with the commit queues of this replica.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// Records Events for users.
    pub events: Arc<EventRecorder>,
    /// The settings of admission.
    pub settings: AdmissionSettings,
    /// The present time. It is a parameter so that tests can set it.
    pub now: fn() -> Timestamp,
    /// The earliest time that the present moment can be, see [`crate::cluster::clock::earliest_now`]. Decisions that
    /// wait for a delay to end use this clock: with a clock that is ahead they would count a Pod as available that is
    /// yet to go.
    pub earliest: fn() -> Timestamp,
}

impl AdmissionContext {
    /// The present time in nanoseconds since the epoch, which is the value of lifecycle labels.
    pub fn now_nanos(&self) -> u64 {
        u64::try_from((self.now)().as_nanosecond()).unwrap_or(0)
    }

    /// The time at which a restart is written or judged, by both clocks.
    pub fn restart_moment(&self) -> WriteTime {
        let nanos = |time: Timestamp| u64::try_from(time.as_nanosecond()).unwrap_or(0);
        WriteTime {
            now: self.now_nanos(),
            earliest: nanos((self.earliest)()),
        }
    }

    /// A disruption of a Pod that is asked for now.
    pub fn new_disruption(&self, pod: &Arc<Pod>, operation: ClaimOperation) -> Disruption {
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
impl AdmissionContext {
    /// For unit tests: a replica that has not seen any object yet, at the epoch.
    pub fn at_epoch(client: Client) -> AdmissionContext {
        let index = Arc::new(Index::default());
        let store = RuleStore::new(client.clone(), Arc::clone(&index), Default::default());
        AdmissionContext {
            events: EventRecorder::new(client.clone(), || Timestamp::UNIX_EPOCH),
            object_lookup: ObjectLookup::new(client.clone()),
            client,
            owners: LiveOwners::new(&index),
            deleted_collasets: DeletedCollaSets::default(),
            identity: Identity::default(),
            index,
            objects: Arc::default(),
            traffic: Arc::default(),
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
