//! Runs the controllers while this replica leads. Losing the lease stops them and never the webhooks.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::args::ServeArgs;
use crate::cluster::events::Recorder;
use crate::cluster::index::Index;
use crate::cluster::lease::Candidate;
use crate::cluster::rulestore::RuleStore;
use crate::cluster::sizes::LiveOwners;
use crate::controllers::webhooks::Pool;
use crate::controllers::{self, Context};
use crate::ledger::commit::Ledgers;

/// Starts the election (or leads at once without one); the task ends after `stop`.
pub fn start(
    args: &ServeArgs,
    client: &Client,
    index: &Arc<Index>,
    owners: &Arc<LiveOwners>,
    ledgers: &Arc<Ledgers<RuleStore>>,
    calls: &Arc<Pool>,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    let context = Arc::new(Context {
        client: client.clone(),
        namespace: args.cluster.namespace.clone(),
        index: Arc::clone(index),
        owners: Arc::clone(owners),
        ledgers: Arc::clone(ledgers),
        events: Recorder::new(client.clone(), Timestamp::now),
        request_timeout: args.request_timeout,
        wait_notice: args.wait_notice,
        calls: Arc::clone(calls),
        now: Timestamp::now,
    });
    let (leading, lead) = watch::channel(!args.leader_elect);
    let candidate = args.leader_elect.then(|| {
        let identity = format!("{}_{:016x}", identity(args), rand::random::<u64>());
        Candidate::new(
            client.clone(),
            &args.cluster.namespace,
            identity,
            leading.clone(),
        )
    });
    let stop = stop.clone();
    tokio::spawn(async move {
        let election = async {
            match candidate {
                Some(candidate) => candidate.run(stop.clone()).await,
                None => stop.cancelled().await,
            }
            drop(leading);
        };
        tokio::join!(election, follow(context, lead, stop.clone()));
    })
}

/// Name of this replica, for people; made unique by the caller.
fn identity(args: &ServeArgs) -> String {
    args.identity
        .clone()
        .unwrap_or_else(|| format!("operating-{}", std::process::id()))
}

async fn follow(context: Arc<Context>, mut lead: watch::Receiver<bool>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if !*lead.borrow_and_update() {
            tokio::select! { () = stop.cancelled() => return, changed = lead.changed() => if changed.is_err() { return } }
            continue;
        }
        let term = stop.child_token();
        let work = controllers::run(Arc::clone(&context), term.clone());
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => break,
                changed = lead.changed() => {
                    if changed.is_err() || !*lead.borrow_and_update() {
                        term.cancel();
                        work.await;
                        break;
                    }
                }
            }
        }
    }
}
