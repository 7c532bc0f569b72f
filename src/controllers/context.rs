//! What every controller works with.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use super::pod_write_failures::PodWriteFailures;
use super::rule_endpoints::EndpointPool;
use crate::cluster::events::EventRecorder;
use crate::cluster::index::Index;
use crate::cluster::leadership::Leadership;
use crate::cluster::objects::ObjectCaches;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::rulestore::RuleStore;
use crate::cluster::scale_in::BegunPods;
use crate::cluster::watch_health::WatchRegistry;
use crate::cluster::webhook_registration::WebhookRegistration;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::Uid;

/// A Pod: namespace and UID.
pub type PodKey = (String, Uid);
/// A rule object: namespace and name.
pub type RuleName = (String, String);

/// A CollaSet: namespace and name.
pub type CollaSetName = (String, String);

/// What every controller works with.
pub struct Context {
    /// Client.
    pub client: Client,
    /// The namespace that the server runs in.
    pub namespace: String,
    /// What this replica knows.
    pub index: Arc<Index>,
    /// What belongs to CollaSets.
    pub objects: Arc<ObjectCaches>,
    /// The stored webhook configurations of the server.
    pub registration: Arc<WebhookRegistration>,
    /// How far each watch has come.
    pub pulses: Arc<WatchRegistry>,
    /// Live reads of the owners of Pods.
    pub owners: Arc<LiveOwners>,
    /// The ledgers.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// Events.
    pub events: Arc<EventRecorder>,
    /// Until when this process leads.
    pub tenure: Leadership,
    /// The API server's `--request-timeout`; a claim without effect lapses some time after it.
    pub request_timeout: Duration,
    /// Waits longer than this are worth an Event.
    pub wait_notice: Duration,
    /// Pods that can't be deleted.
    pub blocked_deletions: Arc<PodWriteFailures>,
    /// Which Pods that are scaled in have begun to go.
    pub beginnings: Arc<BegunPods>,
    /// Pods whose lifecycle can't go on.
    pub blocked_lifecycles: Arc<PodWriteFailures>,
    /// Calls to the endpoints of webhook rules.
    pub calls: Arc<EndpointPool>,
    /// Whether CollaSets are reconciled (feature gate `CollaSets`).
    pub collasets: bool,
    /// Whether deletions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// The clock.
    pub now: fn() -> Timestamp,
    /// The earliest time that it may be, see [`crate::cluster::clock::earliest`]. What is believed when a while is over goes by
    /// this: to believe it too early would count a Pod as available that is yet to go.
    pub earliest: fn() -> Timestamp,
}

#[cfg(test)]
impl Context {
    /// A context with an empty index, at the epoch.
    pub(in crate::controllers) fn at_epoch(client: Client) -> Arc<Context> {
        use crate::cluster::watch::CatchUpSignal;
        let index = Arc::new(Index::default());
        let store = RuleStore::new(client.clone(), Arc::clone(&index), CatchUpSignal::default());
        Arc::new(Context {
            client: client.clone(),
            namespace: "kusionstack-system".to_owned(),
            owners: LiveOwners::new(&index),
            index,
            objects: Arc::default(),
            registration: Arc::default(),
            pulses: Arc::default(),
            ledgers: Ledgers::new(store),
            events: EventRecorder::new(client, || Timestamp::UNIX_EPOCH),
            tenure: Leadership::permanent(),
            request_timeout: Duration::from_secs(60),
            wait_notice: Duration::from_secs(60),
            blocked_deletions: Arc::default(),
            beginnings: Arc::default(),
            blocked_lifecycles: Arc::default(),
            calls: Arc::default(),
            collasets: true,
            grace_delete: false,
            now: || Timestamp::UNIX_EPOCH,
            earliest: || Timestamp::UNIX_EPOCH,
        })
    }
}
