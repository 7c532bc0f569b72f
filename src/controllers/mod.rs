//! Thin reconcilers that finish the asynchronous phases: read the index, ask the domain, write. They run on the leader
//! only; nothing they do is needed for the guarantee.

pub mod collaset;
mod controller_stats;
mod dispatch;
mod headroom;
pub mod lifecycle;
pub mod namespaces;
mod pod_write_failures;
pub mod poddeletion;
pub mod rule_endpoints;
pub mod rules;
mod wait_events;
mod wait_queue;
mod written_versions;
mod yielder;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::{Client, Error};
use tracing::{Instrument, debug, error_span, warn};

use crate::apirequest::{self, Failure};
use crate::cluster::events::Recorder;
use crate::cluster::index::Index;
use crate::cluster::objects::Objects;
use crate::cluster::pods;
use crate::cluster::pulse::Pulses;
use crate::cluster::queue::{Outcome, Queue, Stop};
use crate::cluster::registration::Registration;
use crate::cluster::rulestore::RuleStore;
use crate::cluster::scalein::Beginnings;
use crate::cluster::sizes::LiveOwners;
use crate::cluster::tenure::Tenure;
use crate::domain::pod::Pod;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::Uid;

pub use controller_stats::{ControllerFigures, ControllerStats};
pub use pod_write_failures::PodWriteFailures;

/// No single write of a controller takes longer.
const API_CALL_TIMEOUT: Duration = Duration::from_secs(15);

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
    pub objects: Arc<Objects>,
    /// The stored webhook configurations of the server.
    pub registration: Arc<Registration>,
    /// How far each watch has come.
    pub pulses: Arc<Pulses>,
    /// Live reads of the owners of Pods.
    pub owners: Arc<LiveOwners>,
    /// The ledgers.
    pub ledgers: Arc<Ledgers<RuleStore>>,
    /// Events.
    pub events: Arc<Recorder>,
    /// Until when this process leads.
    pub tenure: Tenure,
    /// The API server's `--request-timeout`; a claim without effect lapses some time after it.
    pub request_timeout: Duration,
    /// Waits longer than this are worth an Event.
    pub wait_notice: Duration,
    /// Pods that can't be deleted.
    pub blocked_deletions: Arc<PodWriteFailures>,
    /// Which Pods that are scaled in have begun to go.
    pub beginnings: Arc<Beginnings>,
    /// Pods whose lifecycle can't go on.
    pub blocked_lifecycles: Arc<PodWriteFailures>,
    /// Calls to the endpoints of webhook rules.
    pub calls: Arc<rule_endpoints::EndpointPool>,
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
    fn at_epoch(client: Client) -> Arc<Context> {
        use crate::cluster::watch::CatchUp;
        let index = Arc::new(Index::default());
        let store = RuleStore::new(client.clone(), Arc::clone(&index), CatchUp::default());
        Arc::new(Context {
            client: client.clone(),
            namespace: "kusionstack-system".to_owned(),
            owners: LiveOwners::new(&index),
            index,
            objects: Arc::default(),
            registration: Arc::default(),
            pulses: Arc::default(),
            ledgers: Ledgers::new(store),
            events: Recorder::new(client, || Timestamp::UNIX_EPOCH),
            tenure: Tenure::always(),
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

/// The queues of all controllers.
pub struct Queues {
    /// Lifecycle of Pods.
    pub lifecycle: Arc<Queue<PodKey>>,
    /// Deletion of Pods through the lifecycle.
    pub poddeletion: Arc<Queue<PodKey>>,
    /// Rule objects.
    pub rules: Arc<Queue<RuleName>>,
    /// CollaSets.
    pub collasets: Arc<Queue<CollaSetName>>,
    /// Namespaces.
    pub namespaces: Arc<Queue<String>>,
}

/// Runs all controllers until the stop, e.g. because the lease was lost; `work` tells what they do.
pub async fn run(context: Arc<Context>, work: &ControllerStats, ends: Stop) {
    let stop = ends.begun.clone();
    let queues = work.begin_term();
    let turns = wait_queue::WaitQueue::new(&context, &queues, &stop);
    let lifecycle = lifecycle::Lifecycle::new(Arc::clone(&context), Arc::clone(&turns));
    let rules = rules::Rules::new(&context, &queues, &turns, &stop);
    let collasets = collaset::CollaSets::new(Arc::clone(&context));
    let deletion = context.clone();
    let namespaces = namespaces::Namespaces::new(Arc::clone(&context));
    let start = Arc::clone(&rules);
    tokio::join!(
        start.begin_term(&stop),
        wait_events::run_wait_events(Arc::clone(&context), stop.clone()),
        dispatch::run_dispatcher(
            Arc::clone(&context),
            Arc::clone(&queues),
            turns,
            stop.clone()
        ),
        Arc::clone(&queues.lifecycle).run(16, ends.clone(), move |key| {
            let lifecycle = Arc::clone(&lifecycle);
            async move { lifecycle.reconcile(key).await }
        }),
        Arc::clone(&queues.rules).run(8, ends.clone(), move |key| {
            let rules = Arc::clone(&rules);
            async move { rules.reconcile(key).await }
        }),
        Arc::clone(&queues.poddeletion).run(8, ends.clone(), move |key| {
            let context = Arc::clone(&deletion);
            async move { poddeletion::reconcile(&context, key).await }
        }),
        Arc::clone(&queues.collasets).run(8, ends.clone(), move |name| {
            let collasets = Arc::clone(&collasets);
            let span = error_span!("collaset", namespace = %name.0, name = %name.1);
            async move { collasets.reconcile(name).await }.instrument(span)
        }),
        Arc::clone(&queues.namespaces).run(2, ends.clone(), move |key| {
            let namespaces = Arc::clone(&namespaces);
            async move { namespaces.reconcile(key).await }
        }),
    );
    work.end_term();
}

/// A Pod with all that it has: read live where the cache has a part of its metadata alone, because the rest is too large or is
/// not understood. `None` if there is no ground to act on: a newer version brings the Pod back.
async fn read_whole_pod(context: &Context, cached: Arc<Pod>) -> Result<Option<Arc<Pod>>, Outcome> {
    if cached.is_readable() {
        return Ok(Some(cached));
    }
    let metadata = &cached.metadata;
    let read = async {
        match pods::get(&context.client, &metadata.namespace, &metadata.name).await {
            Err(Error::SerdeError(_)) => Ok(None),
            read => read,
        }
    };
    let live = call_api("read a Pod that is not in the cache", read).await?;
    let is_same = |live: &Pod| live.metadata.uid == metadata.uid;
    Ok(live.filter(is_same).map(Arc::new))
}

/// Awaits a write with a deadline and says what to do next: a conflict waits for the newer object, anything else is
/// tried again.
async fn call_api<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Outcome> {
    call_api_again(what, false, call).await
}

/// As [`write`]. `failing` says that the same write failed before, so that another failure is not worth a warning.
async fn call_api_again<T>(
    what: &'static str,
    failing: bool,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Outcome> {
    call_outcome(what, failing, with_api_deadline(call).await)
}

/// Awaits a write with a deadline.
async fn with_api_deadline<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    apirequest::within(API_CALL_TIMEOUT, call).await
}

/// What to do next after a write.
fn call_outcome<T>(
    what: &'static str,
    failing: bool,
    done: Result<T, Failure>,
) -> Result<T, Outcome> {
    match done {
        Ok(done) => return Ok(done),
        Err(Failure::Answered(status)) if matches!(status.code, 404 | 409) => {
            debug!(what, code = status.code, "the object has moved on");
        }
        Err(Failure::Answered(status)) if status.code == 429 => {
            debug!(what, message = %status.message, "held");
        }
        Err(e) if failing => debug!(what, error = e.text(), "write failed again"),
        Err(e) => warn!(what, error = e.text(), "write failed"),
    }
    Err(Outcome::Retry)
}
