//! Asks the rules of a stage whether an operation passes.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::PodMutator;
use crate::admission::bypass::BypassCheck;
use crate::admission::pods::wait_messages;
use crate::domain::lifecycle::{LifecycleWrite, Stage};
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{new_candidate, operation_rejections};
use crate::domain::rules::webhook::Candidate;

/// What an operation waits for while the cache may lack rules.
const UNKNOWN_RULES: &str = "waiting: it is not known which rules hold the operation, because this replica has not yet \
                             read all PodTransitionRules; try again in a moment";

impl PodMutator {
    /// What these operations wait for by the rules of a stage, as texts; empty if they pass. The second part has the
    /// names of the rule objects that keep them waiting; it is complete only with `all`.
    fn stage_waits(
        &self,
        stage: Stage,
        pod: &Pod,
        waiting: &[Candidate],
        all: bool,
    ) -> (Vec<String>, BTreeSet<String>) {
        let state = self.0.index.read_state();
        let namespace = state.namespace(&pod.metadata.namespace).into_iter();
        let rules = namespace.flat_map(|namespace| namespace.rules.values());
        let objects = RefCell::new(BTreeSet::new());
        let mut rejections = rules.flat_map(|entry| {
            let rejections =
                operation_rejections(&entry.snapshot.rules, stage, pod, waiting, &entry.verdicts);
            rejections.inspect(|rejection| {
                objects.borrow_mut().insert(rejection.object.clone());
            })
        });
        let waits = wait_messages::describe_waits(rejections.by_ref());
        if all {
            rejections.for_each(drop);
        }
        (waits, objects.take())
    }

    /// Whether an ID passes the rules of a stage: the rule objects that were bypassed for it, or the texts of what it
    /// waits for. `knows_rules` says whether the cache has all rules.
    pub(super) async fn check_stage(
        &self,
        bypass: &BypassCheck<'_>,
        run: &LifecycleWrite<'_>,
        stage: Stage,
        id: &str,
        knows_rules: bool,
    ) -> Result<BTreeSet<String>, Vec<String>> {
        if !knows_rules || !self.0.index.listed_kinds().has_decision_kinds() {
            return Err(vec![UNKNOWN_RULES.to_owned()]);
        }
        let pod = bypass.carrier;
        // By the stored label. A value from the request does not count.
        let since = run.waits_since(stage, id);
        let waiting: Vec<_> = since
            .map(|since| new_candidate(pod, id, since))
            .into_iter()
            .collect();
        let (mut waits, objects) = self.stage_waits(stage, pod, &waiting, bypass.is_requested());
        if waits.is_empty() {
            return Ok(BTreeSet::new());
        }
        if bypass.is_requested() {
            match bypass.may_bypass_all(&objects).await {
                Ok(()) => return Ok(objects),
                Err(note) => waits.extend(note),
            }
        }
        Err(waits)
    }
}
