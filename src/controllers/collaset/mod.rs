//! CollaSets: looks at the caches, plans, and writes what the plan says (contract 6). What is decided is decided
//! in [`crate::domain::collaset`]; here it is carried out, so that a lost answer, a refusal or a cache that trails never
//! makes two Pods of one instance ID.
//!
//! | File | What it does |
//! |---|---|
//! | `observe` | the caches, once they have seen this controller's own writes |
//! | `held` | which rules hold Pods that wait, and why |
//! | `unmanaged` | the Pods that are to be included and lack the control label |
//! | `answers` | what is remembered of them |
//! | `memory` | what is remembered between two looks: pace, versions written, Pods that are held |
//! | `refusals` | what the API server would not do, and how long it is left alone |
//! | `backoff` | when Pods that have ended are made again |
//! | `names` | names that have been given to what may or may not have been created |
//! | `apply` | the stages of a plan |
//! | `owner` | controller references |
//! | `leftover` | pools that are empty and that no set uses |
//! | `call` | a request, and what its failure means; many at once |

mod apply;
mod backoff;
mod blocking_rules;
mod gc;
mod names;
mod observe;
mod owner;
mod pod_lookups;
mod reconcile_state;
mod refusals;
mod requests;
#[cfg(test)]
mod tests;
mod unmanaged;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::warn;

use super::{CollaSetName, Context};
use crate::api::collaset::CollaSet;
use crate::cluster::objects::cache_positions::{self, CachePositions};
use crate::cluster::workqueue::ReconcileOutcome;
use crate::domain::collaset::planner;
use crate::ledger::store::LedgerStore;
use reconcile_state::ReconcileState;

/// The controller.
pub struct CollaSets {
    context: Arc<Context>,
    memories: Mutex<HashMap<CollaSetName, Arc<ReconcileState>>>,
    /// The position of the Pods in etcd at the first look: what a former leader has written is at or below it. All other caches have
    /// what there was then.
    begun: OnceCell<TermStart>,
    caught_up: OnceCell<()>,
}

/// A set whose Pods wait for rules is looked at again after this, for the words of its conditions.
const HELD_REQUEUE: Duration = Duration::from_secs(10);

/// How far etcd was when a term began.
struct TermStart {
    pods: u64,
    others: CachePositions,
}

impl CollaSets {
    /// A controller.
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(CollaSets {
            context,
            memories: Mutex::default(),
            begun: OnceCell::new(),
            caught_up: OnceCell::new(),
        })
    }

    /// One look at a CollaSet.
    pub async fn reconcile(&self, name: CollaSetName) -> ReconcileOutcome {
        if !self.context.collasets {
            return ReconcileOutcome::Done;
        }
        let Some(set) = self.context.objects.sets.get(&name.0, &name.1) else {
            self.memories.lock().remove(&name);
            return gc::delete_empty_resource_context(&self.context, &name).await;
        };
        let begun = match self.term_start_version(&name.0).await {
            Ok(begun) => begun,
            Err(error) => {
                warn!(%error, "it is not known what a former leader has written; nothing is planned before");
                return ReconcileOutcome::Retry;
            }
        };
        let memory = self.set_reconcile_state(name, &set);
        memory.record_pod_write(begun);
        let generation = set.metadata.generation.unwrap_or(0);
        if let Some(outcome) = memory.begin_reconcile(Instant::now(), generation) {
            return outcome;
        }
        let observed = match observe::observe_collaset(&self.context, &set, &memory).await {
            Ok(observed) => observed,
            Err(outcome) => return outcome,
        };
        let mut plan = planner::plan_set(&observed);
        plan.events.extend(memory.canary_event(plan.pause.as_ref()));
        let work = apply::PlanExecution::new(&self.context, &observed, &memory);
        let done = apply::apply_plan(&work, plan).await;
        requeue_outcome(done, &memory, generation, !observed.held.is_empty())
    }

    async fn term_start_version(&self, namespace: &str) -> anyhow::Result<u64> {
        let client = &self.context.client;
        let begin = async || -> anyhow::Result<TermStart> {
            Ok(TermStart {
                pods: self
                    .context
                    .ledgers
                    .store()
                    .read_present_position(namespace)
                    .await?,
                others: cache_positions::read_positions(client, &self.context.pulses).await?,
            })
        };
        // Read once, however slow the API server is: caches that run after a position that moves on would never reach it.
        let begun = self.begun.get_or_try_init(begin).await?;
        let catch_up = async || {
            let reached = begun.others.wait_reached();
            tokio::time::timeout(observe::CATCH_UP_TIMEOUT, reached).await
        };
        let caught_up = self.caught_up.get_or_try_init(catch_up).await;
        caught_up.context("a cache of what belongs to CollaSets trails")?;
        Ok(begun.pods)
    }

    fn set_reconcile_state(&self, name: CollaSetName, set: &CollaSet) -> Arc<ReconcileState> {
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut memories = self.memories.lock();
        let memory = memories.entry(name).or_default();
        if memory.uid() != uid {
            *memory = Arc::new(ReconcileState::new(uid)); // another set of the same name
        }
        Arc::clone(memory)
    }
}

/// Between two looks that ask for Pods which no cache knows, however many names a spec has.
const LOOKUP_REQUEUE: Duration = Duration::from_secs(1);

/// When to look again. `is_held` says whether rules hold Pods: what they say is in their status, which wakes no set.
fn requeue_outcome(
    done: apply::ApplyOutcome,
    memory: &ReconcileState,
    generation: i64,
    is_held: bool,
) -> ReconcileOutcome {
    match done {
        apply::ApplyOutcome::Failed => {
            ReconcileOutcome::After(memory.record_failure(Instant::now(), generation))
        }
        apply::ApplyOutcome::Moved => ReconcileOutcome::Retry,
        apply::ApplyOutcome::All(again) => {
            memory.record_success();
            let words = is_held.then_some(HELD_REQUEUE);
            let answers = memory.has_more_lookups().then_some(LOOKUP_REQUEUE);
            let again = again.into_iter().chain(words).chain(answers).min();
            again.map_or(ReconcileOutcome::Done, ReconcileOutcome::After)
        }
    }
}
