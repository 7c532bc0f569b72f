//! Runs the controllers while this replica is the leader. If it loses the Lease, only the controllers stop, and the
//! webhooks go on.

use std::sync::Arc;

use futures::FutureExt;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cli::args::ServeArgs;
use crate::cluster::caches::Caches;
use crate::cluster::clock;
use crate::cluster::events::EventRecorder;
use crate::cluster::leadership::Leadership;
use crate::cluster::lease::{DRAIN_TIMEOUT, ElectionStops, LeaderElector};
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::traffic::Traffic;
use crate::cluster::work_queue::StopTokens;
use crate::controllers::rule_endpoints::EndpointCaller;
use crate::controllers::{self, ControllerContext, ControllerStats};
use crate::ledger::commit::Ledgers;
use crate::tasks::Supervisor;

/// What the controllers need, and the metrics and signals by which others see them.
pub struct ControllerParts<'a> {
    pub args: &'a ServeArgs,
    pub client: &'a Client,
    pub caches: &'a Caches,
    pub owners: &'a Arc<LiveOwners>,
    pub ledgers: &'a Arc<Ledgers<RuleStore>>,
    /// Calls to the endpoints of webhook rules.
    pub endpoint_caller: &'a Arc<EndpointCaller>,
    /// The adapters of ResourceConsist.
    pub traffic: &'a Arc<Traffic>,
    pub controller_stats: &'a Arc<ControllerStats>,
    /// Sends whether this replica is the leader.
    pub leading: watch::Sender<bool>,
    /// Cancelled when this replica begins to end.
    pub candidacy: CancellationToken,
    pub supervisor: &'a Supervisor,
}

/// Starts the leader election, or leads at once if it is off. The task ends after the supervisor stops.
pub fn start_controllers(parts: ControllerParts<'_>) -> JoinHandle<()> {
    let ControllerParts { args, client, .. } = parts;
    let events = EventRecorder::new_supervised(client.clone(), clock::now, parts.supervisor);
    let tenure = match args.controllers.leader_elect {
        true => Leadership::default(),
        false => Leadership::permanent(),
    };
    let context = Arc::new(ControllerContext {
        client: client.clone(),
        namespace: args.cluster.namespace.clone(),
        index: Arc::clone(&parts.caches.index),
        objects: Arc::clone(&parts.caches.objects),
        registration: Arc::clone(&parts.caches.registration),
        watch_registry: Arc::clone(&parts.caches.watch_registry),
        owners: Arc::clone(parts.owners),
        ledgers: Arc::clone(parts.ledgers),
        events: Arc::clone(&events),
        leadership: tenure.clone(),
        request_timeout: args.webhooks.request_timeout,
        wait_notice: args.controllers.wait_notice,
        blocked_deletions: Arc::default(),
        begun_pods: Arc::default(),
        blocked_lifecycles: Arc::default(),
        endpoint_caller: Arc::clone(parts.endpoint_caller),
        traffic: Arc::clone(parts.traffic),
        collasets: args.features.collasets(),
        restart_method: args.controllers.restart_by,
        grace_delete: args.features.grace_delete(),
        now: clock::now,
        earliest: clock::earliest_now,
    });
    let (leading, controller_stats) = (parts.leading, Arc::clone(parts.controller_stats));
    leading.send_replace(!args.controllers.leader_elect);
    let is_leading = leading.subscribe();
    let candidate = args.controllers.leader_elect.then(|| {
        let identity = format!("{}_{:016x}", replica_identity(args), rand::random::<u64>());
        let namespace = &args.cluster.namespace;
        let tells = (leading.clone(), tenure);
        LeaderElector::new(client.clone(), namespace, identity, tells, events)
    });
    let stop = parts.supervisor.stop().clone();
    let stops = ElectionStops {
        candidacy: parts.candidacy,
        leadership: stop.clone(),
    };
    parts
        .supervisor
        .spawn_supervised("the lead of the controllers", async move {
            let (followed, ended) = tokio::sync::oneshot::channel::<()>();
            let ended = ended.map(|_| ());
            let follow = run_when_leading(context, &controller_stats, is_leading, stop.clone());
            let follow = async {
                follow.await;
                drop(followed);
            };
            let election = async {
                match candidate {
                    Some(candidate) => candidate.run(stops, ended).await,
                    None => stop.cancelled().await,
                }
                drop(leading);
            };
            tokio::join!(election, follow);
            stop.cancelled().await; // the election of a replica that begins to end may be over before
        })
}

/// Name of this replica, for people. The caller makes it unique.
fn replica_identity(args: &ServeArgs) -> String {
    args.controllers
        .identity
        .clone()
        .unwrap_or_else(|| format!("operating-{}", std::process::id()))
}

async fn run_when_leading(
    context: Arc<ControllerContext>,
    controller_stats: &ControllerStats,
    mut is_leading: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        if !*is_leading.borrow_and_update() {
            tokio::select! { () = stop.cancelled() => return, changed = is_leading.changed() => if changed.is_err() { return } }
            continue;
        }
        context.blocked_deletions.clear_all_failures();
        context.blocked_lifecycles.clear_all_failures();
        let term = StopTokens {
            begun: stop.child_token(),
            dropped: CancellationToken::new(),
        };
        let term_work = controllers::run(Arc::clone(&context), controller_stats, term.clone());
        tokio::pin!(term_work);
        let ended = tokio::select! {
            biased;
            () = &mut term_work => true,
            // Requests in progress should end first, so that the next leader does not decide before they have taken
            // effect.
            () = stop.cancelled() => timeout(DRAIN_TIMEOUT, &mut term_work).await.is_ok(),
            () = wait_leadership_lost(&mut is_leading) => false, // another replica leads, or may lead soon
        };
        if !ended {
            term.begun.cancel();
            term.dropped.cancel();
            term_work.await;
        }
    }
}

/// Waits until this replica is not the leader any more.
async fn wait_leadership_lost(is_leading: &mut watch::Receiver<bool>) {
    while is_leading.changed().await.is_ok() && *is_leading.borrow_and_update() {}
}
