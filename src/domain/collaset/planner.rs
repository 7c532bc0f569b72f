//! The plan: every step once, in order.

use super::draft::Draft;
use super::facts::Facts;
use super::observed::Observed;
use super::plan::{Event, Left, Plan, RevisionChange};
use super::revision::{self, history::Failure};
use super::rollout::{self, Rollout};
use super::strategy::Strategy;
use super::{
    claims, construct, create, doubles, membership, pool, reclaim, replace, scale, status, update,
};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::api::reserved;
use crate::api::selector::Selector;

/// What is to be written, given what is observed.
pub fn plan(observed: &Observed) -> Plan {
    let (corrected, mended) = claims::corrected(observed);
    let mut plan = plan_of(&corrected);
    let is_there = observed.set.metadata.deletion_timestamp.is_none();
    claims::give_back(&mut plan.claims, mended, is_there);
    plan
}

fn plan_of(observed: &Observed) -> Plan {
    let set = &observed.set;
    let deleting = set.metadata.deletion_timestamp.is_some();
    let protected = set
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == keys::PRE_RECLAIM_FINALIZER);
    let goes = deleting && !protected;
    let facts = match facts(observed) {
        Ok(facts) => facts,
        Err(_) if goes => return reclaim::unprotected(observed),
        Err(Failure::Invalid(why)) => return invalid(observed, &why),
        Err(Failure::NoRevision) => return nothing_yet(observed),
    };
    let mut draft = Draft::default();
    pool::load(&facts, &mut draft);
    let leaves = reclaim::leaves_its_pods(&set.metadata);
    if !leaves {
        doubles::step(&facts, &mut draft);
    }
    let mut reclaimed = false;
    if deleting {
        reclaimed = reclaim::step(&facts, &mut draft);
    } else if !membership::settle(&facts, &mut draft) {
        membership::tell_min_ready(&facts, &mut draft);
        replace::step(&facts, &mut draft);
        scale::step(&facts, &mut draft);
        update::step(&facts, &mut draft);
        scale::take_back(&facts, &mut draft);
        create::step(&facts, &mut draft);
        create::missing_claims(&facts, &mut draft);
        create::leftover_claims(&facts, &mut draft);
        create::tell_of_ending_claims(&facts, &mut draft);
    }
    let pool = pool::difference(&facts, &mut draft);
    let pool = pool.filter(|_| !deleting || observed.pool.is_some()); // a lost one is made for nobody
    let position = match deleting {
        true => None,
        false => rollout::step(&facts, &mut draft),
    };
    let mut status = status::of(&facts, &mut draft, position);
    if goes {
        // The garbage collector is at work, and it may be kept from it.
        return Plan {
            status: (set.status.as_ref() != Some(&status)).then_some(status),
            ..reclaim::unprotected(observed)
        };
    }
    let pause = status::pause(&facts, &status);
    status::look_again(&facts, &mut draft);
    if !deleting {
        without_revision(observed, &mut status, &draft.left);
    }
    let left = std::mem::take(&mut draft.left);
    let claims = std::mem::take(&mut draft.claims);
    let news = std::mem::take(&mut draft.news);
    let mut events = std::mem::take(&mut draft.events);
    events.extend(facts.history.problems.iter().map(|problem| Event {
        warning: true,
        reason: "TargetCurrentRevisionNotFound",
        message: problem.clone(),
    }));
    let revisions = match deleting {
        true => released(&mut draft),
        false => facts.history.changes.clone(),
    };
    let forget_command = draft.forget_command;
    let (pods, again_nanos) = draft.into_pods();
    Plan {
        add_finalizer: !deleting && !protected,
        revisions,
        pool,
        claims,
        pods,
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        left,
        forget_command,
        events,
        news,
        pause,
        remove_finalizer: reclaimed,
        again_nanos,
    }
}

fn facts(observed: &Observed) -> Result<Facts<'_>, Failure> {
    let set = &observed.set;
    let selector = set
        .spec
        .selector
        .as_ref()
        .ok_or("spec.selector is required: set it to labels that spec.template carries")
        .map_err(|why| Failure::Invalid(why.to_owned()))?;
    let selector =
        Selector::compile(selector).map_err(|e| Failure::Invalid(format!("spec.selector: {e}")))?;
    let in_use = Facts::revisions_in_use(observed, &selector);
    let deleting = set.metadata.deletion_timestamp.is_some();
    let refused = observed.refused.revision.is_some() && !deleting;
    let mut history = revision::history::plan(set, &observed.revisions, &in_use, refused)?;
    // Where no webhook looks, such a set is stored. Its Pods would be released at once, and others made, without end.
    let asked = set.spec.selector.as_ref().and_then(reserved::asked_by);
    if let Some(key) = asked.filter(|_| !deleting) {
        return Err(Failure::Invalid(format!(
            "spec.selector: must not ask for {key}, which is set on single Pods: make the CollaSet again with a selector of labels that \
             spec.template carries (`kubectl delete --cascade=orphan` leaves the Pods); until then no Pod is made, changed or deleted"
        )));
    }
    if !deleting && !construct::is_selected(&set.spec.template, &selector) {
        return Err(Failure::Invalid(format!(
            "spec.template.metadata.labels: must match spec.selector, which is {selector}: add these labels; until then no Pod is made, changed or deleted"
        )));
    }
    let mut strategy = Strategy::of(&set.spec);
    let rollout = Rollout::of(set, &history, &strategy);
    strategy.scope = rollout.scope();
    if rollout.is_aborted() {
        history.go_back();
    }
    Ok(Facts::of(observed, strategy, selector, history, rollout))
}

/// A spec that nothing can be made of, which only a stored one can be: nothing is touched, and the status says why. A
/// set that is being deleted lets its Pods be collected with it, and lets go of the claims that are to stay.
fn invalid(observed: &Observed, why: &str) -> Plan {
    let set = &observed.set;
    let refused = observed.refused.finalizer.as_ref();
    let refused = refused.map(|refused| {
        format!("; the finalizer can't be removed: {refused}; let the server update the CollaSet")
    });
    let why = format!("{why}{}", refused.unwrap_or_default());
    let status = status::invalid(observed, &why);
    let mut draft = Draft::default();
    let is_left = if reclaim::leaves_its_pods(&set.metadata) {
        reclaim::leave(observed, &mut draft)
    } else if set.metadata.deletion_timestamp.is_some() {
        draft.claims = reclaim::outlasting_claims(observed, Strategy::of(&set.spec).retain_deleted);
        draft.claims.is_empty()
    } else {
        false
    };
    Plan {
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        remove_finalizer: is_left,
        revisions: released(&mut draft),
        claims: std::mem::take(&mut draft.claims),
        pods: draft.into_pods().0,
        ..Plan::default()
    }
}

fn released(draft: &mut Draft) -> Vec<RevisionChange> {
    let released = std::mem::take(&mut draft.released);
    released.into_iter().map(RevisionChange::Release).collect()
}

/// Says why the revision of the template can't be written, if that is so.
fn without_revision(observed: &Observed, status: &mut CollaSetStatus, left: &Left) {
    let former = observed.set.status.iter().flat_map(|s| &s.conditions);
    let former: Vec<_> = former.cloned().collect();
    if let Some(why) = &observed.refused.revision {
        let now = status::time(observed.now_nanos);
        let what = (status::Step::Revisions, why.as_str());
        status::failed(status, &former, what, left, now);
    }
}

/// A set whose first revision can't be written: there is nothing to make Pods of yet.
fn nothing_yet(observed: &Observed) -> Plan {
    let set = &observed.set;
    let mut status = set.status.clone().unwrap_or_default();
    status.observed_generation = set.metadata.generation.unwrap_or(0);
    without_revision(observed, &mut status, &Left::default());
    Plan {
        status: (set.status.as_ref() != Some(&status)).then_some(status),
        ..Plan::default()
    }
}
