//! Carries a plan out, stage by stage in the order of its fields. A stage that fails ends the later ones but for the
//! status, which tells of it.

mod claims;
mod events;
mod finalizer;
mod look;
mod pods;
mod pool;
mod revisions;
mod status;

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;

use super::super::Context;
use super::call::Halt;
use super::memory::{Memory, SPACING};
use crate::api::collaset::CollaSet;
use crate::cluster::workloads::Objects;
use crate::domain::collaset::observed::{Observed, Pool};
use crate::domain::collaset::plan::Plan;
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
    again: Mutex<Option<Duration>>,
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
            again: Mutex::default(),
        }
    }

    fn client(&self) -> &Client {
        &self.context.client
    }

    fn objects(&self) -> &Objects {
        &self.context.index.objects
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

    /// Asks for another look after this time at the latest.
    fn again(&self, pause: Duration) {
        let mut again = self.again.lock();
        *again = Some(again.map_or(pause, |known| known.min(pause)));
    }
}

/// What came of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// All was written; when to look again although nothing changes.
    All(Option<Duration>),
    /// Something has changed meanwhile.
    Moved,
    /// Something failed.
    Failed,
}

/// Carries a plan out.
pub async fn apply(work: &Work<'_>, mut plan: Plan) -> Done {
    let to_caches = plan.add_finalizer
        || plan.pool.is_some()
        || !plan.revisions.is_empty()
        || !plan.claims.is_empty();
    if to_caches {
        work.again(SPACING); // no event brings it back: the caches know already
    }
    if let Some(nanos) = plan.again_nanos {
        work.again(Duration::from_nanos(nanos));
    }
    let mut result = stages(work, &mut plan).await;
    let status = status::write(work, plan.status.take(), &result).await;
    events::tell(work, &plan.events, &result);
    if plan.remove_finalizer && result.is_ok() {
        result = finalizer::remove(work).await;
    }
    match (result, status) {
        (Err(Halt::Failed(..)), _) => Done::Failed,
        (Err(Halt::Moved | Halt::Collision), _) | (_, Err(_)) => Done::Moved,
        (Ok(()), Ok(())) => Done::All(*work.again.lock()),
    }
}

async fn stages(work: &Work<'_>, plan: &mut Plan) -> Result<(), Halt> {
    if plan.add_finalizer {
        finalizer::add(work).await?;
    }
    let look = look::ahead(work, plan).await?;
    revisions::write(work, take(&mut plan.revisions)).await?;
    pool::write(work, plan.pool.take()).await?;
    claims::write(work, take(&mut plan.claims), &look).await?;
    pods::write(work, take(&mut plan.pods), &look).await
}
