//! One Pod on its way to a revision.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::claims;
use super::super::draft::Draft;
use super::super::facts::{self, Facts};
use super::super::lifecycle::{self, Operation, Turn};
use super::super::pool;
use super::super::replace as pair;
use super::super::revision::data;
use super::super::revision::inplace::{self, InPlace, Progress};
use super::super::strategy::Policy;
use super::places::{self, Places};
use crate::api::keys;
use crate::domain::inplace::restarting;
use crate::domain::pod::Pod;

/// The next step of one Pod.
pub fn step(
    facts: &Facts,
    draft: &mut Draft,
    places: &mut Places,
    (id, pod): (i64, &Arc<Pod>),
    in_scope: bool,
) {
    if !facts.strategy.paused {
        record(facts, draft, id, pod, in_scope);
    }
    let is_other = lifecycle::undo_other(pod).is_some();
    if is_other || Operation::ScaleIn.is_on(pod) {
        return;
    }
    let behind = needs_update(facts, id, pod);
    if lifecycle::is_leaving(pod) {
        if facts.may_stay(pod) {
            match in_scope && behind {
                // The template may ask for another revision by now than the pair is for.
                true if pod.label(keys::TO_REPLACE).is_some() => {
                    replace(facts, draft, places, pod);
                }
                true => {}
                false => stop_replacing(facts, draft, pod),
            }
        }
        // A Pod whose deletion a policy refuses may stay for good. Its update is undone, so that the Pod holds up no other.
        let stays = lifecycle::waits_to_leave(pod) || facts.undeleted(pod).is_some();
        if stays && Operation::Update.is_on(pod) {
            come_back(facts, draft, pod);
        }
        return;
    }
    let turn = Operation::Update.turn(pod, facts.strategy.update_delay, facts.observed.now_nanos);
    match (in_scope && behind, turn) {
        (true, _) if is_replaced(facts, pod) => replace(facts, draft, places, pod),
        (true, _)
            if turn != Turn::Idle
                && is_change_refused(facts, id, pod)
                && can_come_back(facts, pod) =>
        {
            come_back(facts, draft, pod);
        }
        (true, _)
            if turn != Turn::Idle
                && is_given_up(facts, id, pod)
                && is_kept(facts, places, id, pod)
                && can_come_back(facts, pod) =>
        {
            come_back(facts, draft, pod);
        }
        (true, Turn::Idle) => begin(facts, draft, places, id, pod),
        (true, Turn::Waiting) if places.call_back(pod) => {
            draft.labels(pod, Operation::Update.undo(pod));
        }
        (true, Turn::Waiting) => {
            let delay = facts.strategy.update_delay;
            if Operation::Update.is_let_by_its_write(pod, delay)
                && matches!(*way(facts, id, pod), InPlace::Yes { .. })
            {
                carry_out(facts, draft, places, id, pod);
            }
        }
        (true, Turn::Delayed(nanos)) => draft.again(nanos),
        (true, Turn::Allowed) => carry_out(facts, draft, places, id, pod),
        (false, turn) => {
            stop_replacing(facts, draft, pod);
            settle(facts, draft, places, (id, pod), turn);
        }
    }
}

/// Notes the revision that the Pod would be made again of.
fn record(facts: &Facts, draft: &mut Draft, id: i64, pod: &Pod, in_scope: bool) {
    let own = pod
        .label(keys::REVISION)
        .filter(|name| facts.history.find(name).is_some());
    let revision = match own {
        Some(own) if !in_scope => own,
        None if !in_scope => &facts.history.current.name,
        _ => &facts.history.updated.name,
    };
    pool::mark(draft, id, pool::REVISION, revision);
}

fn needs_update(facts: &Facts, id: i64, pod: &Pod) -> bool {
    !facts.is_updated(pod) || have_claims_changed(facts, id, pod)
}

/// Asked of the claims that the Pod mounts: others of its ID may be kept for a rollback.
fn have_claims_changed(facts: &Facts, id: i64, pod: &Pod) -> bool {
    let observed = facts.observed;
    let templates = data::claim_templates(&facts.history.updated.data);
    let claims = facts.claims_at(id).iter();
    let mounted = claims.filter(|claim| {
        pod.spec.claims.contains(&claim.name) && facts.contradicting(pod, claim).is_none()
    });
    let mounted: Vec<_> = mounted.cloned().collect();
    claims::changed(&observed.set, templates, id, &mounted, &facts.known_claims)
}

/// A Pod in a pair is updated by its new half, whatever the policy.
fn is_replaced(facts: &Facts, pod: &Pod) -> bool {
    facts.strategy.policy == Policy::Replace || pod.label(keys::TO_REPLACE).is_some()
}

fn replace(facts: &Facts, draft: &mut Draft, places: &mut Places, pod: &Arc<Pod>) {
    if places.is_beyond_surge(pod) {
        return stop_replacing(facts, draft, pod);
    }
    let revision = &facts.history.updated.name;
    if pod.label(keys::TO_REPLACE).is_none() {
        let opened = match pair::open_half(facts, draft, pod) {
            None => places.open_pair(),
            // A pair that an update had opened has its place.
            Some(half) => places::is_of_update(pod, half) || places.reopen_pair(),
        };
        if !opened {
            // It serves until it has a place.
            if Operation::Update.is_on(pod) {
                come_back(facts, draft, pod);
            }
            return;
        }
        let nanos = facts.observed.now_nanos.to_string();
        draft.label(pod, keys::TO_REPLACE, Some(nanos));
        let name = &pod.metadata.name;
        let message = format!("Pod {name} is to be replaced by a Pod of revision {revision}");
        draft.event_once_written(pod, "ReplaceUpdateTarget", message);
    }
    // An update of another kind that had begun is not needed any more.
    if Operation::Update.is_on(pod) {
        draft.labels(pod, Operation::Update.undo(pod));
    }
    draft.label(
        pod,
        keys::REPLACED_BY_REPLACE_UPDATE,
        Some(revision.clone()),
    );
}

/// A replacement that only an update had asked for goes with it: the Pod left the scope, or is of the updated
/// revision again. What users and jobs asked for goes on, with a Pod of the origin's own revision.
fn stop_replacing(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_none() || facts.strategy.paused {
        return;
    }
    draft.label(pod, keys::REPLACED_BY_REPLACE_UPDATE, None);
    if pod
        .label(keys::TO_REPLACE)
        .is_some_and(lifecycle::is_own_word)
    {
        draft.label(pod, keys::TO_REPLACE, None);
    }
}

fn begin(facts: &Facts, draft: &mut Draft, places: &mut Places, id: i64, pod: &Arc<Pod>) {
    if draft.takes_away(pod) {
        return; // by a step before
    }
    let way = way(facts, id, pod);
    let deletes = !matches!(*way, InPlace::Yes { .. });
    if deletes && is_unwritten(facts, id) {
        return;
    }
    let only_tried = is_refused(facts, id, pod);
    // What is only tried writes nothing: whatever else is to be written comes first.
    if only_tried && draft.changes(pod) {
        return;
    }
    let has_a_place = match only_tried {
        true => places.has_one(pod, deletes),
        false => places.begin(pod, deletes),
    };
    if !has_a_place {
        return;
    }
    draft.labels(
        pod,
        Operation::Update.begin(pod, deletes, facts.observed.now_nanos),
    );
    announce_resize(facts, draft, pod, &way);
    let patch = draft.patch(pod);
    (patch.deletes, patch.only_tried) = (deletes, only_tried);
    let refused = &facts.observed.refused;
    if !deletes && refused.is_untried(pod, &facts.history.updated.name) {
        draft.patch(pod).ahead = match facts.is_resized(pod) {
            true => facts.ahead(&way),
            false => facts.revision_of(pod).and_then(|r| facts.ahead_from(r)),
        };
    }
}

/// Whether the change in place that the Pod is to get was refused, or is in doubt while the Pod waits for its rules: it serves as it is
/// until a dry run says otherwise.
pub fn is_change_refused(facts: &Facts, id: i64, pod: &Pod) -> bool {
    let (refused, updated) = (&facts.observed.refused, &facts.history.updated.name);
    let waits = || Operation::Update.is_on(pod) && lifecycle::waits_for_rules(pod);
    (refused.refuses_change(pod, updated) || refused.is_in_doubt(updated) && waits())
        && matches!(*way(facts, id, pod), InPlace::Yes { .. })
}

/// Whether a Pod whose update deletes it can't go for now: none could be made in its place, its revision can't be written down, or the API
/// server does not let it be deleted. It serves meanwhile.
fn is_kept(facts: &Facts, places: &Places, id: i64, pod: &Pod) -> bool {
    // A Pod that waits for its rules serves: it need not begin anew each time that a quota is full for a moment.
    places.is_refused() && !lifecycle::waits_for_rules(pod)
        || is_deletion_refused(facts, pod)
        || is_unwritten(facts, id)
}

/// Whether the update of a Pod was refused, as a change or as a deletion. It is only tried by a dry run, takes no place for that from
/// others, and begins once it has passed.
pub fn is_refused(facts: &Facts, id: i64, pod: &Pod) -> bool {
    is_change_refused(facts, id, pod)
        || is_deletion_refused(facts, pod) && is_given_up(facts, id, pod)
}

/// Whether the API server did not let a Pod be deleted.
pub fn is_deletion_refused(facts: &Facts, pod: &Pod) -> bool {
    let refused = &facts.observed.refused.deletions;
    refused.contains(&pod.metadata.uid)
}

/// Whether the pool can't be written, and does not say that the next Pod of an ID is of the updated revision.
fn is_unwritten(facts: &Facts, id: i64) -> bool {
    let updated = &facts.history.updated.name;
    facts.observed.refused.pool && !pool::is_stored(facts, id, pool::REVISION, updated)
}

/// Whether the update of a Pod deletes it.
pub fn is_given_up(facts: &Facts, id: i64, pod: &Pod) -> bool {
    needs_update(facts, id, pod)
        && !is_replaced(facts, pod)
        && !matches!(*way(facts, id, pod), InPlace::Yes { .. })
}

/// How the Pod gets from its revision to the updated one.
fn way<'a>(facts: &'a Facts, id: i64, pod: &Pod) -> Cow<'a, InPlace> {
    let no = |why: String| Cow::Owned(InPlace::No(why));
    if facts.strategy.policy != Policy::InPlace {
        return no("podUpgradePolicy is not InPlaceIfPossible".into());
    }
    if have_claims_changed(facts, id, pod) {
        return no("volumeClaimTemplates have changed".into());
    }
    let Some(from) = facts.revision_of(pod) else {
        return no("the revision of the Pod is not known any more".into());
    };
    let mut way = facts.change_from(from);
    for resized in facts.resized_to(pod) {
        let back = facts.change_from(resized);
        way = Cow::Owned(way.into_owned().with_resize_of(&back));
    }
    let resizes = matches!(
        *way,
        InPlace::Yes {
            resize: Some(_),
            ..
        }
    );
    if facts.is_labelled_updated(pod)
        && let Progress::Refused(why) = inplace::progress(pod)
    {
        return no(why);
    }
    let refused = &facts.observed.refused;
    match refused.resize(pod, &facts.history.updated.name) {
        Some(why) if resizes => no(format!("its resize is refused: {why}")),
        _ => way,
    }
}

fn carry_out(facts: &Facts, draft: &mut Draft, places: &mut Places, id: i64, pod: &Arc<Pod>) {
    let way = way(facts, id, pod);
    if announce_resize(facts, draft, pod, &way) {
        return; // it is resized once that is stored
    }
    let before = inplace::last_status(pod, &way);
    let InPlace::Yes {
        labels,
        annotations,
        spec,
        resize,
        ..
    } = way.into_owned()
    else {
        if places.delete() {
            give_up(facts, draft, pod);
        }
        return;
    };
    let patch = draft.patch(pod);
    patch.leads_to = Some(facts.history.updated.name.clone());
    patch.spec = spec;
    patch.resize = resize;
    patch.annotations.extend(annotations);
    draft.annotation(pod, keys::LAST_POD_STATUS, Some(before));
    forget_resize(draft, pod); // the Pod is of the revision from now on
    draft.label(
        pod,
        keys::REVISION,
        Some(facts.history.updated.name.clone()),
    );
    draft.labels(pod, labels);
}

/// Notes on a Pod that it is going to be resized, unless that is there; whether it was to be noted. A resize is a request of its own, and
/// the one after it, which changes the revision of the Pod, may be refused.
fn announce_resize(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>, way: &InPlace) -> bool {
    let updated = &facts.history.updated.name;
    let resizes = matches!(
        way,
        InPlace::Yes {
            resize: Some(_),
            ..
        }
    );
    let news = resizes && facts::marked(pod).all(|(name, _)| name != updated);
    if news {
        let resized: Vec<&str> = facts.resized_to(pod).iter().map(|r| &*r.name).collect();
        let kept = facts::marked(pod).filter(|(name, _)| resized.contains(name));
        let marks = kept.chain([(&**updated, pod.metadata.generation)]);
        let marks: Vec<String> = marks.map(|(name, of)| format!("{name}@{of}")).collect();
        draft.annotation(pod, keys::RESIZING, Some(marks.join(",")));
    }
    news
}

/// Deletes a Pod, which is made again of the updated revision under its ID.
fn give_up(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>) {
    let refused = &facts.observed.refused;
    if let Some(why) = refused.resize(pod, &facts.history.updated.name) {
        tell_of_refusal(draft, pod, why);
    } else if let Progress::Refused(why) = inplace::progress(pod) {
        tell_of_refusal(draft, pod, &why);
    }
    draft.delete(pod);
}

fn tell_of_refusal(draft: &mut Draft, pod: &Pod, why: &str) {
    let name = &pod.metadata.name;
    let message = format!("Pod {name} is made again, as it can't be resized: {why}");
    draft.event(true, "ResizeRefused", message);
}

/// Whether an update has changed nothing of the Pod yet, or the kubelet has followed. A Pod that does not get to what it was changed to,
/// as to an image that can't be pulled, has no way but on: its next change is tried again.
fn can_come_back(facts: &Facts, pod: &Pod) -> bool {
    match pod.annotation(keys::LAST_POD_STATUS) {
        Some(_) => !matches!(inplace::progress(pod), Progress::Waiting(_)),
        None => !is_being_resized(facts, pod),
    }
}

/// Whether the kubelet is yet to make a resize of an update that came no further, and restarts containers for it.
fn is_being_resized(facts: &Facts, pod: &Pod) -> bool {
    let mut containers = pod.spec.containers.iter();
    containers.any(|container| restarting(container).next().is_some())
        && facts.is_resized(pod)
        && matches!(inplace::resize_progress(pod), Progress::Waiting(_))
}

/// Has a Pod serve that is to go or to leave, and can't yet, whatever of the set's operations had begun.
pub fn serve_meanwhile(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>) {
    if Operation::Update.is_on(pod) {
        come_back(facts, draft, pod);
    }
    if Operation::ScaleIn.is_on(pod) {
        draft.labels(pod, Operation::ScaleIn.undo(pod));
    }
}

/// Has a Pod serve again although it is not updated: it is to go, and its rules hold it, or its change is refused. An update that has
/// changed it is finished when the kubelet has followed, another is cancelled.
fn come_back(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.annotation(keys::LAST_POD_STATUS).is_none() {
        return cancel(facts, draft, pod);
    }
    match inplace::progress(pod) {
        Progress::Waiting(_) => {}
        // What its node never makes stays noted, for when the Pod stays.
        Progress::Refused(_) => draft.labels(pod, Operation::Update.finish(pod)),
        Progress::Done => finish(draft, pod, facts.is_updated(pod)),
    }
}

/// Cancels an update that has not changed the revision of the Pod. Where it has resized it, the kubelet may be about to restart
/// containers: it is waited for, and the Pod is still to get the resources of its revision.
fn cancel(facts: &Facts, draft: &mut Draft, pod: &Arc<Pod>) {
    if is_being_resized(facts, pod) {
        return;
    }
    if !facts.is_resized(pod) {
        forget_resize(draft, pod);
    }
    draft.labels(pod, Operation::Update.undo(pod));
}

fn forget_resize(draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.annotation(keys::RESIZING).is_some() {
        draft.annotation(pod, keys::RESIZING, None);
    }
}

/// Ends an update that the kubelet has done; `reached` says whether the Pod is where it is to be.
fn finish(draft: &mut Draft, pod: &Arc<Pod>, reached: bool) {
    draft.labels(pod, Operation::Update.finish(pod));
    if reached {
        draft.label(pod, keys::UPDATE_INCLUDED, None);
    }
    draft.annotation(pod, keys::LAST_POD_STATUS, None);
    forget_resize(draft, pod);
}

/// The Pod is where it is to be: an operation that is under way is finished when the kubelet has followed, and
/// cancelled when it has changed nothing yet.
fn settle(
    facts: &Facts,
    draft: &mut Draft,
    places: &mut Places,
    (id, pod): (i64, &Arc<Pod>),
    turn: Turn,
) {
    if turn == Turn::Idle {
        // While a rollout goes on, one that it has reached must not be dragged into the next. At rest the label is a choice
        // for the rollout to come.
        let labelled = pod.label(keys::UPDATE_INCLUDED).is_some() && facts.is_updated(pod);
        if labelled && facts.rolls && !facts.rollout.is_frozen() {
            draft.label(pod, keys::UPDATE_INCLUDED, None);
        }
        return;
    }
    if pod.annotation(keys::LAST_POD_STATUS).is_none() {
        cancel(facts, draft, pod);
        if facts.is_updated(pod) {
            draft.label(pod, keys::UPDATE_INCLUDED, None); // rolled back
        }
        return;
    }
    match inplace::progress(pod) {
        Progress::Waiting(_) => {}
        Progress::Refused(why) => {
            let stays = is_deletion_refused(facts, pod) || draft.is_moving(id);
            if !facts.strategy.paused && !stays && places.delete() {
                tell_of_refusal(draft, pod, &why);
                draft.delete(pod);
            } else {
                come_back(facts, draft, pod); // it serves until it can be made again
            }
        }
        Progress::Done => finish(draft, pod, true),
    }
}
