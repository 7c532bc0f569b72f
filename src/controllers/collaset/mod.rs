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

mod answers;
mod apply;
mod backoff;
mod call;
mod held;
mod leftover;
mod memory;
mod names;
mod observe;
mod owner;
mod refusals;
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

use super::{Context, SetName};
use crate::api::collaset::CollaSet;
use crate::cluster::objects::positions::{self, Positions};
use crate::cluster::queue::Outcome;
use crate::domain::collaset::planner;
use crate::ledger::store::Store;
use memory::Memory;

/// The controller.
pub struct CollaSets {
    context: Arc<Context>,
    memories: Mutex<HashMap<SetName, Arc<Memory>>>,
    /// The position of the Pods in etcd at the first look: what a former leader has written is at or below it. All other caches have
    /// what there was then.
    begun: OnceCell<Begun>,
    caught_up: OnceCell<()>,
}

/// A set whose Pods wait for rules is looked at again after this, for the words of its conditions.
const HELD_AGAIN: Duration = Duration::from_secs(10);

/// How far etcd was when a term began.
struct Begun {
    pods: u64,
    others: Positions,
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
    pub async fn reconcile(&self, name: SetName) -> Outcome {
        if !self.context.collasets {
            return Outcome::Done;
        }
        let Some(set) = self.context.objects.sets.get(&name.0, &name.1) else {
            self.memories.lock().remove(&name);
            return leftover::sweep(&self.context, &name).await;
        };
        let begun = match self.begun(&name.0).await {
            Ok(begun) => begun,
            Err(error) => {
                warn!(%error, "it is not known what a former leader has written; nothing is planned before");
                return Outcome::Retry;
            }
        };
        let memory = self.memory(name, &set);
        memory.wrote_pod(begun);
        let generation = set.metadata.generation.unwrap_or(0);
        if let Some(outcome) = memory.enter(Instant::now(), generation) {
            return outcome;
        }
        let observed = match observe::observe(&self.context, &set, &memory).await {
            Ok(observed) => observed,
            Err(outcome) => return outcome,
        };
        let mut plan = planner::plan(&observed);
        plan.events.extend(memory.canaries(plan.pause.as_ref()));
        let work = apply::Work::new(&self.context, &observed, &memory);
        let done = apply::apply(&work, plan).await;
        outcome(done, &memory, generation, !observed.held.is_empty())
    }

    async fn begun(&self, namespace: &str) -> anyhow::Result<u64> {
        let client = &self.context.client;
        let begin = async || -> anyhow::Result<Begun> {
            Ok(Begun {
                pods: self.context.ledgers.store().present(namespace).await?,
                others: positions::read(client, &self.context.pulses).await?,
            })
        };
        // Read once, however slow the API server is: caches that run after a position that moves on would never reach it.
        let begun = self.begun.get_or_try_init(begin).await?;
        let catch_up = async || {
            let reached = begun.others.reached();
            tokio::time::timeout(observe::CATCH_UP, reached).await
        };
        let caught_up = self.caught_up.get_or_try_init(catch_up).await;
        caught_up.context("a cache of what belongs to CollaSets trails")?;
        Ok(begun.pods)
    }

    fn memory(&self, name: SetName, set: &CollaSet) -> Arc<Memory> {
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut memories = self.memories.lock();
        let memory = memories.entry(name).or_default();
        if memory.uid() != uid {
            *memory = Arc::new(Memory::new(uid)); // another set of the same name
        }
        Arc::clone(memory)
    }
}

/// Between two looks that ask for Pods which no cache knows, however many names a spec has.
const ASKING: Duration = Duration::from_secs(1);

/// When to look again. `is_held` says whether rules hold Pods: what they say is in their status, which wakes no set.
fn outcome(done: apply::Done, memory: &Memory, generation: i64, is_held: bool) -> Outcome {
    match done {
        apply::Done::Failed => Outcome::After(memory.failed(Instant::now(), generation)),
        apply::Done::Moved => Outcome::Retry,
        apply::Done::All(again) => {
            memory.succeeded();
            let words = is_held.then_some(HELD_AGAIN);
            let answers = memory.has_more_to_ask().then_some(ASKING);
            let again = again.into_iter().chain(words).chain(answers).min();
            again.map_or(Outcome::Done, Outcome::After)
        }
    }
}
