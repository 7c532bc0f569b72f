//! The context that all controllers share.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;

use super::pod_write_failures::PodWriteFailures;
use super::rule_endpoints::EndpointCaller;
use crate::cluster::events::EventRecorder;
use crate::cluster::index::Index;
use crate::cluster::leadership::Leadership;
use crate::cluster::objects::ObjectCaches;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::scale_in::BegunPods;
use crate::cluster::traffic::Traffic;
use crate::cluster::watch_health::WatchRegistry;
use crate::cluster::webhook_registration::WebhookRegistration;
use crate::domain::operationjob::restart::settings::RestartMethod;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::Uid;

/// A Pod: namespace and UID.
pub type PodKey = (String, Uid);
/// A rule object: namespace and name.
pub type RuleObjectName = (String, String);

/// A CollaSet: namespace and name.
pub type CollaSetName = (String, String);
/// A PodDecoration: namespace and name.
pub type DecorationName = (String, String);
/// An OperationJob: namespace and name.
pub type JobName = (String, String);

/// The shared state and clients of the controllers.
pub struct ControllerContext {
    /// Client for the API server.
    pub client: Client,
    /// The namespace that the server runs in.
    pub namespace: String,
    /// The Pods, rules, owners and namespaces that this replica knows.
    pub index: Arc<Index>,
    /// The caches of CollaSets, PodDecorations and the objects that belong to them, and of OperationJobs.
    pub objects: Arc<ObjectCaches>,
    /// The stored webhook configurations of the server.
    pub registration: Arc<WebhookRegistration>,
    /// The health of each watch: how far it has come, and when.
    pub watch_registry: Arc<WatchRegistry>,
    /// Live reads of the owners of Pods.
    pub owners: Arc<LiveOwners>,
    /// The ledgers of all rule objects.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// Records Events.
    pub events: Arc<EventRecorder>,
    /// Until when this process is the leader.
    pub leadership: Leadership,
    /// The API server's `--request-timeout`. A claim without effect lapses this time and
    /// [`LAPSE_MARGIN`](crate::ledger::evidence::LAPSE_MARGIN) after its last attempt.
    pub request_timeout: Duration,
    /// An operation that waits for longer than this gets an Event.
    pub wait_notice: Duration,
    /// Pods whose deletion is refused.
    pub blocked_deletions: Arc<PodWriteFailures>,
    /// Pods in a scale-in of their ReplicaSet whose lifecycle the leader has begun. The cache may not show this begin
    /// yet.
    pub begun_pods: Arc<BegunPods>,
    /// Pods whose lifecycle step is refused.
    pub blocked_lifecycles: Arc<PodWriteFailures>,
    /// Calls to the endpoints of webhook rules.
    pub endpoint_caller: Arc<EndpointCaller>,
    /// The adapters of ResourceConsist, and the objects whose traffic they manage.
    pub traffic: Arc<Traffic>,
    /// Whether CollaSets, PodDecorations and OperationJobs are reconciled (feature gate `CollaSets`).
    pub collasets: bool,
    /// How OperationJobs restart containers if the job does not say it.
    pub restart_method: RestartMethod,
    /// Whether deletions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// The present time.
    pub now: fn() -> Timestamp,
    /// The earliest time that the present may be, see [`crate::cluster::clock::earliest_now`]. Assumptions that are
    /// made after a waiting time use this clock: if an assumption were made too early, a Pod that has yet to restart
    /// would count as available.
    pub earliest: fn() -> Timestamp,
}

#[cfg(test)]
impl ControllerContext {
    /// A context with an empty index, whose clock is at the epoch.
    pub(in crate::controllers) fn at_epoch(client: Client) -> Arc<ControllerContext> {
        use crate::cluster::watch::CatchUpSignal;
        let index = Arc::new(Index::default());
        let store = RuleStore::new(client.clone(), Arc::clone(&index), CatchUpSignal::default());
        Arc::new(ControllerContext {
            client: client.clone(),
            namespace: "kusionstack-system".to_owned(),
            owners: LiveOwners::new(&index),
            index,
            objects: Arc::default(),
            registration: Arc::default(),
            watch_registry: Arc::default(),
            ledgers: Ledgers::new(store),
            events: EventRecorder::new(client, || Timestamp::UNIX_EPOCH),
            leadership: Leadership::permanent(),
            request_timeout: Duration::from_secs(60),
            wait_notice: Duration::from_secs(60),
            blocked_deletions: Arc::default(),
            begun_pods: Arc::default(),
            blocked_lifecycles: Arc::default(),
            endpoint_caller: Arc::default(),
            traffic: Arc::default(),
            collasets: true,
            restart_method: RestartMethod::default(),
            grace_delete: false,
            now: || Timestamp::UNIX_EPOCH,
            earliest: || Timestamp::UNIX_EPOCH,
        })
    }
}
