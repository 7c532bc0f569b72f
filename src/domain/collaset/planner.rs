//! Builds the plan of a CollaSet: runs every step once, in order.

use super::draft::Draft;
use super::observed::ObservedSet;
use super::plan::{RevisionChange, SetEvent, SetPlan, Shortfall};
use super::revision::{self, history::HistoryFailure};
use super::rollout::{self, StoredRollout};
use super::set_facts::SetFacts;
use super::strategy::ResolvedStrategy;
use super::{
    construct, decoration_owners, duplicates, instance_creation, membership, pairs, pool, pvcs,
    reclaim, scaling, status, update,
};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::api::reserved_labels;
use crate::api::selector::Selector;

/// Computes the writes that a CollaSet needs from the observed objects.
pub fn plan_set(observed: &ObservedSet) -> SetPlan {
    let (corrected, mended) = pvcs::with_corrected_labels(observed);
    let mut plan = plan_from_facts(&corrected);
    let is_there = observed.set.metadata.deletion_timestamp.is_none();
    pvcs::restore_labels(&mut plan.pvcs, mended, is_there);
    plan
}

fn plan_from_facts(observed: &ObservedSet) -> SetPlan {
    let set = &observed.set;
    let deleting = set.metadata.deletion_timestamp.is_some();
    let protected = set
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == keys::PRE_RECLAIM_FINALIZER);
    let goes = deleting && !protected;
    let facts = match collect_facts(observed) {
        Ok(facts) => facts,
        Err(_) if goes => return reclaim::plan_without_finalizer(observed),
        Err(HistoryFailure::Invalid(message)) => return plan_invalid_spec(observed, &message),
        Err(HistoryFailure::NoRevision) => return plan_without_history(observed),
    };
    let mut draft = Draft::default();
    let reclaimed = plan_instances(&facts, &mut draft, deleting);
    let pool = pool::changed_entries(&facts, &mut draft);
    // A set that is being deleted does not need a lost pool again.
    let pool = pool.filter(|_| !deleting || observed.pool.is_some());
    let position = match deleting {
        true => None,
        false => rollout::advance_rollout(&facts, &mut draft),
    };
    let mut status = status::build_status(&facts, &mut draft, position);
    if goes {
        // The garbage collector is deleting the set. A finalizer of somebody else may delay it, so the status is still
        // kept up to date.
        return SetPlan {
            status: (set.status.as_ref() != Some(&status)).then_some(status),
            ..reclaim::plan_without_finalizer(observed)
        };
    }
    let pause = status::rollout_pause(&facts, &status);
    status::requeue_under_way(&facts, &mut draft);
    if !deleting {
        report_missing_revision(observed, &mut status, &draft.shortfall);
    }
    let revisions = match deleting {
        true => released_revisions(&mut draft),
        false => facts.history.changes.clone(),
    };
    let plan = SetPlan {
        add_finalizer: !deleting && !protected,
        revisions,
        pool,
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        pause,
        remove_finalizer: reclaimed,
        ..SetPlan::default()
    };
    with_draft(plan, draft, &facts)
}

/// Runs the steps that plan Pods, PVCs and instance IDs. Returns whether a set that is being deleted needs its
/// finalizer no longer.
fn plan_instances(facts: &SetFacts, draft: &mut Draft, deleting: bool) -> bool {
    pool::load_ids(facts, draft);
    if !reclaim::orphans_its_pods(&facts.observed.set.metadata) {
        duplicates::delete_duplicates(facts, draft);
    }
    if deleting {
        let is_over = reclaim::reclaim_step(facts, draft);
        decoration_owners::correct_decoration_owners(facts, draft);
        return is_over;
    }
    if !membership::settle_membership(facts, draft) {
        membership::update_min_ready(facts, draft);
        pairs::reconcile_pairs(facts, draft);
        scaling::fit_replicas(facts, draft);
        update::update_instances(facts, draft);
        scaling::withdraw_deletions(facts, draft);
        instance_creation::create_instances(facts, draft);
        instance_creation::recreate_missing_pvcs(facts, draft);
        instance_creation::remove_leftover_pvcs(facts, draft);
        instance_creation::report_terminating_pvcs(facts, draft);
    }
    decoration_owners::correct_decoration_owners(facts, draft);
    false
}

/// Adds to a plan the changes of PVCs and Pods, and the Events, that the steps have drafted.
fn with_draft(plan: SetPlan, mut draft: Draft, facts: &SetFacts) -> SetPlan {
    let mut events = std::mem::take(&mut draft.events);
    events.extend(facts.history.problems.iter().map(|problem| SetEvent {
        warning: true,
        reason: "TargetCurrentRevisionNotFound",
        message: problem.clone(),
    }));
    let plan = SetPlan {
        pvcs: std::mem::take(&mut draft.pvcs),
        shortfall: std::mem::take(&mut draft.shortfall),
        clear_command: draft.forget_command,
        events,
        events_after_status: std::mem::take(&mut draft.events_after_status),
        ..plan
    };
    let (pods, requeue_after_nanos) = draft.into_pod_changes();
    SetPlan {
        pods,
        requeue_after_nanos,
        ..plan
    }
}

fn collect_facts(observed: &ObservedSet) -> Result<SetFacts<'_>, HistoryFailure> {
    let set = &observed.set;
    let selector = set
        .spec
        .selector
        .as_ref()
        .ok_or("spec.selector is required: set it to labels that spec.template carries")
        .map_err(|message| HistoryFailure::Invalid(message.to_owned()))?;
    let selector = Selector::compile(selector)
        .map_err(|e| HistoryFailure::Invalid(format!("spec.selector: {e}")))?;
    let in_use = SetFacts::revisions_in_use(observed, &selector);
    let deleting = set.metadata.deletion_timestamp.is_some();
    let refused = observed.refused.revision.is_some() && !deleting;
    let mut history = revision::history::plan_history(set, &observed.revisions, &in_use, refused)?;
    // The API server stores such a set if it does not call the webhook. The set would then release its Pods at once and
    // create others without end.
    let reserved_key = set
        .spec
        .selector
        .as_ref()
        .and_then(reserved_labels::reserved_key_in);
    if let Some(key) = reserved_key.filter(|_| !deleting) {
        return Err(HistoryFailure::Invalid(format!(
            "spec.selector: must not ask for {key}, which is set on single Pods: recreate the CollaSet with a selector of labels that \
             spec.template carries (`kubectl delete --cascade=orphan` leaves the Pods); until then no Pod is made, changed or deleted"
        )));
    }
    if !deleting && !construct::template_matches_selector(&set.spec.template, &selector) {
        return Err(HistoryFailure::Invalid(format!(
            "spec.template.metadata.labels: must match spec.selector, which is {selector}: add these labels; until then no Pod is made, changed or deleted"
        )));
    }
    let mut strategy = ResolvedStrategy::from_spec(&set.spec);
    let rollout = StoredRollout::from_set(set, &history, &strategy);
    strategy.scope = rollout.scope();
    if rollout.is_aborted() {
        history.target_current_revision();
    }
    Ok(SetFacts::from_observed(
        observed, strategy, selector, history, rollout,
    ))
}

/// Plans a set whose spec is invalid. Such a spec can only be one that is already stored. The plan changes nothing, and
/// the status says why. If the set is being deleted, the garbage collector deletes its Pods, and the plan releases the
/// PVCs that outlast the set.
fn plan_invalid_spec(observed: &ObservedSet, message: &str) -> SetPlan {
    let set = &observed.set;
    let refused = observed.refused.finalizer.as_ref();
    let refused = refused.map(|refused| {
        format!("; the finalizer can't be removed: {refused}; let the server update the CollaSet")
    });
    let message = format!("{message}{}", refused.unwrap_or_default());
    let status = status::invalid_spec_status(observed, &message);
    let mut draft = Draft::default();
    let is_left = if reclaim::orphans_its_pods(&set.metadata) {
        reclaim::release_dependents(observed, &mut draft)
    } else if set.metadata.deletion_timestamp.is_some() {
        draft.pvcs = reclaim::release_outlasting_pvcs(
            observed,
            ResolvedStrategy::from_spec(&set.spec).retain_deleted,
        );
        draft.pvcs.is_empty()
    } else {
        false
    };
    SetPlan {
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        remove_finalizer: is_left,
        revisions: released_revisions(&mut draft),
        pvcs: std::mem::take(&mut draft.pvcs),
        pods: draft.into_pod_changes().0,
        ..SetPlan::default()
    }
}

fn released_revisions(draft: &mut Draft) -> Vec<RevisionChange> {
    let released = std::mem::take(&mut draft.released);
    released.into_iter().map(RevisionChange::Release).collect()
}

/// Reports in the status why the revision of the template can't be written, if the API server has refused it.
fn report_missing_revision(
    observed: &ObservedSet,
    status: &mut CollaSetStatus,
    shortfall: &Shortfall,
) {
    let former = observed.set.status.iter().flat_map(|s| &s.conditions);
    let former: Vec<_> = former.cloned().collect();
    if let Some(message) = &observed.refused.revision {
        let now = status::condition_time(observed.now_nanos);
        let failure = (status::FailedStep::Revisions, message.as_str());
        status::report_failed_step(status, &former, failure, shortfall, now);
    }
}

/// Plans a set whose first revision can't be written: there is no template from which to create Pods yet.
fn plan_without_history(observed: &ObservedSet) -> SetPlan {
    let set = &observed.set;
    let mut status = set.status.clone().unwrap_or_default();
    status.observed_generation = set.metadata.generation.unwrap_or(0);
    report_missing_revision(observed, &mut status, &Shortfall::default());
    SetPlan {
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        ..SetPlan::default()
    }
}
