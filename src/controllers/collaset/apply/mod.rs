//! Carries a plan out, stage by stage in the order of its fields. What the API server refuses is left out, with what depends
//! on it and nothing else; the status tells of it.

mod batch;
mod claims;
mod command;
mod events;
mod fence;
mod finalizer;
mod leave;
mod look;
mod pods;
mod pool;
mod revisions;
mod status;
mod trials;

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::Context;
use super::call::{Halt, worse};
use super::memory::{Memory, SPACING};
use crate::api::collaset::CollaSet;
use crate::cluster::objects::Objects;
use crate::domain::collaset::observed::{Claim, Observed, Pool};
use crate::domain::collaset::plan::{Event, Plan};
use crate::domain::collaset::poolless::without_pool;
use crate::domain::pod::Pod;

/// What the stages work with.
pub struct Work<'a> {
    context: &'a Context,
    set: &'a Arc<CollaSet>,
    /// The pool that the plan was made from.
    pool: Option<&'a Arc<Pool>>,
    /// The orphans that it was made with.
    orphans: &'a [Arc<Pod>],
    memory: &'a Memory,
    /// Whether the plan goes without the revision of the template, which is refused.
    without_revision: bool,
    /// Names of the Pods that have been created.
    created: Mutex<Vec<String>>,
    /// What is told of the patches of Pods that have been written.
    told: Mutex<Vec<Event>>,
    /// Names of the claims that have been deleted.
    deleted_claims: Mutex<Vec<String>>,
    /// Names of the claims that are kept since.
    kept: Mutex<Vec<String>>,
    /// Names of the claims that were kept and have been let go.
    let_go: Mutex<Vec<String>>,
    again: Mutex<Option<Duration>>,
    /// When the plan was made.
    at: Instant,
}

impl<'a> Work<'a> {
    /// Work on what was observed.
    pub fn new(context: &'a Context, observed: &'a Observed, memory: &'a Memory) -> Self {
        Work {
            context,
            set: &observed.set,
            pool: observed.pool.as_ref(),
            orphans: &observed.orphans,
            memory,
            without_revision: observed.refused.revision.is_some(),
            created: Mutex::default(),
            told: Mutex::default(),
            deleted_claims: Mutex::default(),
            kept: Mutex::default(),
            let_go: Mutex::default(),
            again: Mutex::default(),
            at: Instant::now(),
        }
    }

    fn client(&self) -> &Client {
        &self.context.client
    }

    fn objects(&self) -> &Objects {
        &self.context.objects
    }

    fn namespace(&self) -> &str {
        self.set.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.set.metadata.uid.as_deref().unwrap_or_default()
    }

    fn generation(&self) -> i64 {
        self.set.metadata.generation.unwrap_or(0)
    }

    /// Whether the plan is older than this.
    fn is_older_than(&self, age: Duration) -> bool {
        self.at.elapsed() > age
    }

    /// How long a claim is to be left alone that a Pod mounts which the caches do not know. A set that is being deleted lets go of it.
    fn spares(&self, claim: &Claim, now: Instant) -> Option<Duration> {
        let is_there = self.set.metadata.deletion_timestamp.is_none();
        let left = self.memory.held(&claim.uid, now);
        left.filter(|_| is_there)
    }

    /// Asks for another look if this write was done: no event brings it back, as the caches know already.
    fn again_if_written<E>(&self, done: Result<(), E>) -> Result<(), E> {
        if done.is_ok() {
            self.again(SPACING);
        }
        done
    }

    /// Asks for another look after this time at the latest.
    fn again(&self, pause: Duration) {
        let mut again = self.again.lock();
        *again = Some(again.map_or(pause, |known| known.min(pause)));
    }
}

/// What came of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// All was written but for what was refused; when to look again although nothing changes.
    All(Option<Duration>),
    /// Something has changed meanwhile.
    Moved,
    /// Nothing could be done.
    Failed,
}

/// Carries a plan out.
pub async fn apply(work: &Work<'_>, mut plan: Plan) -> Done {
    if let Some(nanos) = plan.again_nanos {
        work.again(Duration::from_nanos(nanos));
    }
    if plan.add_finalizer {
        let added = finalizer::add(work).await;
        if added.is_err() {
            return end(work, plan, added).await;
        }
    }
    let revisions = revisions::write(work, take(&mut plan.revisions)).await;
    if revisions::must_do_without(work) {
        // Nothing of this plan stands without its revision; the next one does without.
        work.again(SPACING);
        return Done::All(*work.again.lock());
    }
    let result = match revisions {
        Err(Halt::Moved | Halt::Collision) => revisions,
        revisions => worse(revisions, stages(work, &mut plan).await),
    };
    end(work, plan, result).await
}

/// What comes last: the status and what is told.
async fn end(work: &Work<'_>, plan: Plan, mut result: Result<(), Halt>) -> Done {
    if !work.context.tenure.holds() {
        events::written(work);
        return Done::Moved;
    }
    if plan.forget_command {
        // Before the status: it is removed on condition of the version that was looked at.
        result = worse(result, command::forget(work).await);
    }
    let status = status::write(work, (plan.status, &plan.left), &plan.news, &result).await;
    events::tell(work, &plan.events, &result);
    if plan.remove_finalizer && result.is_ok() {
        result = finalizer::remove(work).await;
    }
    match (result, status) {
        (Err(Halt::Failed(..)), _) if plan.add_finalizer || plan.remove_finalizer => Done::Failed,
        (Err(Halt::Moved | Halt::Collision), _) | (_, Err(_)) => Done::Moved,
        (Ok(()) | Err(Halt::Failed(..)), Ok(())) => Done::All(*work.again.lock()),
    }
}

async fn stages(work: &Work<'_>, plan: &mut Plan) -> Result<(), Halt> {
    let (look, seen) = match look::ahead(work, plan).await {
        Ok(look) => (look, Ok(())),
        Err(Halt::Failed(step, message)) => {
            look::without(plan);
            (look::Look::default(), Err(Halt::Failed(step, message)))
        }
        Err(halt) => return Err(halt),
    };
    let pool = pool::write(work, plan.pool.clone()).await;
    match pool {
        Err(Halt::Moved | Halt::Collision) => return pool,
        Err(Halt::Failed(..)) => {
            let whole = take(plan);
            *plan = without_pool(whole, work.pool.map(|pool| &**pool));
        }
        Ok(()) => {}
    }
    let unseen = leave::unseen(work, plan).await;
    let claims = claims::write(work, take(&mut plan.claims), &look).await;
    let pods = pods::write(work, take(&mut plan.pods), &look).await;
    [seen, pool, unseen, claims, pods]
        .into_iter()
        .fold(Ok(()), worse)
}
