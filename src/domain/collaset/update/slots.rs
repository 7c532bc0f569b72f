//! Limits how many Pods an update takes off traffic at a time, as far as the set itself decides. Rules may hold further
//! Pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::composition::composition_name_of;
use super::super::draft::Draft;
use super::super::headroom::Headroom;
use super::super::pool;
use super::super::set_facts::{SetFacts, Target};
use super::super::set_operations::{self, SetOperation};
use super::super::strategy::UpdatePolicy;
use super::slot_goals::SlotGoals;
use super::targets;
use crate::api::keys;
use crate::domain::lifecycle::{Phase, min_ready, stored_phase};
use crate::domain::pod::Pod;

/// Nanoseconds after its deletion timestamp at which a terminating Pod is overdue. The Pod should be gone at the
/// timestamp.
const OVERDUE_NANOS: u64 = 10_000_000_000;

/// Most nanoseconds for which other updates wait for a Pod that has come back from an update.
const RETURN_WAIT_NANOS: u64 = 60_000_000_000;

/// The slots that are free for updates.
///
/// - While the API server refuses to create a Pod of the updated revision, no other Pod is deleted for the update.
/// - Until a Pod of the updated revision has been created, one Pod at a time is deleted, because the template may be
///   refused.
/// - While deletions or changes are refused although their dry run has passed, one Pod at a time is off traffic for the
///   update.
/// - At most `maxUnavailable` of the wanted Pods are unavailable for an update. The update of a Pod that is already
///   unavailable does not count.
/// - At most `maxSurge` pairs are open for an update, or cancelled and not over, and at most as many as fit into the
///   pool.
#[derive(Debug)]
pub struct UpdateSlots {
    /// Why only one update at a time begins.
    doubts: UpdateDoubts,
    /// Number of updates that may begin and will delete their Pod.
    begin: usize,
    /// Number of Pods that may be deleted.
    delete: usize,
    /// Whether the API server refuses to create a Pod of the updated revision.
    is_refused: bool,
    /// Number of available Pods whose update may begin.
    available: usize,
    /// UIDs of serving Pods that wait for their rules and whose update must be withdrawn.
    excess: BTreeSet<String>,
    /// Number of pairs that may be opened by the space in the pool.
    pool_pairs: usize,
    /// Number of pairs that may be opened by `maxSurge`.
    surge: usize,
    /// UIDs of the origins of pairs that exceed `maxSurge` and whose new Pod does not exist.
    unmade: BTreeSet<String>,
}

impl UpdateSlots {
    /// Computes the slots of a plan. `underway` is the number of Pods whose update has begun and will delete them.
    /// `waiting` are the Pods whose update has begun and that serve and wait for their rules, in reverse order of
    /// updates. `unmade` is the result of [`origins_beyond_surge`].
    pub fn from_facts<'a>(
        facts: &SetFacts,
        draft: &mut Draft,
        counted: &[i64],
        goals: &SlotGoals,
        underway: usize,
        waiting: impl Iterator<Item = &'a Arc<Pod>>,
        unmade: BTreeSet<String>,
    ) -> UpdateSlots {
        let refused = &facts.observed.refused.creations;
        let is_refused = goals.vacant.iter().any(|id| refused.contains_key(id));
        let (mut begin, delete) = match is_refused {
            true => (0, 0),
            false => deletion_slots(facts, draft, goals, underway),
        };
        let (available, excess) = count_spare_available(facts, draft, counted);
        let excess = waiting.take(excess);
        let excess = excess.map(|pod| pod.metadata.uid.clone()).collect();
        let doubts = UpdateDoubts::from_refusals(facts, draft, counted);
        if doubts.deletions {
            begin = begin.min(1);
        }
        UpdateSlots {
            doubts,
            begin,
            delete,
            is_refused,
            available,
            excess,
            pool_pairs: pair_room(facts, draft),
            surge: surge_slots(facts, draft),
            unmade,
        }
    }

    /// Whether there is a slot for the update of a Pod to begin.
    pub fn has_update_slot(&self, pod: &Pod, deletes: bool) -> bool {
        let serves = pod.is_available();
        let is_held_up = self.available == 0 || self.doubts.holds_up_update(deletes);
        !(deletes && self.begin == 0 || serves && is_held_up)
    }

    /// Takes a slot for the update of a Pod to begin. Returns false if no slot is free.
    pub fn take_update_slot(&mut self, pod: &Pod, deletes: bool) -> bool {
        if !self.has_update_slot(pod, deletes) {
            return false;
        }
        let serves = pod.is_available();
        self.doubts.is_one_offline |= serves;
        self.begin -= usize::from(deletes);
        self.available -= usize::from(serves);
        true
    }

    /// Whether the update of a Pod that waits for its rules must be withdrawn: `maxUnavailable` is lower now, or the
    /// Pod was down when the update began and serves again.
    pub fn must_withdraw_update(&self, pod: &Pod) -> bool {
        self.excess.contains(&pod.metadata.uid)
    }

    /// Whether no Pod may be deleted for the update until the API server accepts the creation of a Pod of the updated
    /// revision.
    pub fn are_deletions_blocked(&self) -> bool {
        self.is_refused
    }

    /// Takes a slot for a deletion. Returns false if no slot is free.
    pub fn take_deletion_slot(&mut self) -> bool {
        take_slot(&mut self.delete)
    }

    /// Takes a slot for a pair. Returns false if no slot is free.
    pub fn take_pair_slot(&mut self) -> bool {
        self.surge > 0 && take_slot(&mut self.pool_pairs) && take_slot(&mut self.surge)
    }

    /// Whether a pair exceeds `maxSurge`, which is lower now, and its new Pod has not been created.
    pub fn is_pair_beyond_surge(&self, origin: &Pod) -> bool {
        self.unmade.contains(&origin.metadata.uid)
    }

    /// Takes a slot for a pair whose new Pod already exists. Returns false if no slot is free.
    pub fn take_reopened_pair_slot(&mut self) -> bool {
        take_slot(&mut self.surge)
    }
}

/// Whether Pods may go off traffic for an update in vain, because some deletions are refused or a change is refused
/// although its dry run has passed. One Pod at a time then tries.
#[derive(Debug)]
struct UpdateDoubts {
    deletions: bool,
    changes: bool,
    /// Whether a Pod is off traffic for an update, or has come back and does not serve yet.
    is_one_offline: bool,
}

impl UpdateDoubts {
    fn from_refusals(facts: &SetFacts, draft: &mut Draft, counted: &[i64]) -> UpdateDoubts {
        let refused = &facts.observed.refused;
        let mut members = counted.iter().filter_map(|id| facts.members.get(id));
        let deletions = refused.late_deletions;
        let targets = targets::targets(facts, draft).values();
        let mut behind = targets.filter(|target| target.is_behind);
        let changes = refused.late.contains(&facts.history.updated.name)
            || behind.any(|target| refused.late.contains(target.name()));
        UpdateDoubts {
            deletions,
            changes,
            is_one_offline: (deletions || changes)
                && members.any(|pod| is_offline_for_update(facts, draft, pod)),
        }
    }

    /// Whether the update of an available Pod must wait until the Pod before it serves again.
    fn holds_up_update(&self, deletes: bool) -> bool {
        let is_doubted = if deletes {
            self.deletions
        } else {
            self.changes
        };
        is_doubted && self.is_one_offline
    }
}

/// Whether a Pod that is not updated yet is off traffic for its update, or came back from it recently. The wait is
/// limited, because a Pod that crashes or whose node is lost may never serve again.
fn is_offline_for_update(facts: &SetFacts, draft: &mut Draft, pod: &Pod) -> bool {
    if pod.is_available()
        || !is_behind(facts, draft, pod)
        || SetOperation::ScaleIn.is_in_progress(pod)
    {
        return false;
    }
    match stored_phase(pod, set_operations::LIFECYCLE_ID) {
        Phase::PreCheck => return false, // its rules delay it
        Phase::Idle => {}
        _ => {
            draft.requeue_after(RETURN_WAIT_NANOS); // no watch reports that the doubts are over
            return true;
        }
    }
    let (refused, now) = (&facts.observed.refused, facts.observed.now_nanos);
    let uid = &pod.metadata.uid;
    if !refused.deletions.contains(uid) && !refused.changes.contains_key(uid) {
        return false;
    }
    let mut conditions = pod.status.conditions.iter();
    let ready = conditions.find(|c| c.type_ == "Ready" && c.status == "False");
    let since = ready.and_then(|c| parse_time_nanos(c.last_transition_time.as_deref()));
    let remaining = since.map(|since| since.saturating_add(RETURN_WAIT_NANOS).saturating_sub(now));
    let remaining = remaining.or_else(|| min_ready::remaining_nanos(pod, now));
    let Some(remaining) = remaining.filter(|remaining| *remaining > 0) else {
        return false;
    };
    draft.requeue_after(remaining);
    true
}

/// Whether a Pod does not have its target yet. A Pod out of the scope of the rollout may be on its way back.
fn is_behind(facts: &SetFacts, draft: &Draft, pod: &Pod) -> bool {
    let id = facts.instance_id_of(pod);
    let target = id.and_then(|id| targets::targets(facts, draft).get(&id));
    !facts.is_updated(pod) || target.is_some_and(|target| target.is_behind)
}

/// Parses a timestamp of an object into nanoseconds since 1970.
fn parse_time_nanos(time: Option<&str>) -> Option<u64> {
    let time: Timestamp = time?.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok()
}

fn take_slot(slots: &mut usize) -> bool {
    let free = *slots > 0;
    *slots = slots.saturating_sub(1);
    free
}

/// Returns how many updates may begin and how many Pods may be deleted, depending on whether the API server is known to
/// accept Pods of the updated revision.
fn deletion_slots(
    facts: &SetFacts,
    draft: &mut Draft,
    goals: &SlotGoals,
    underway: usize,
) -> (usize, usize) {
    if goals.are_proven(facts) {
        return (usize::MAX, usize::MAX);
    }
    let mut vacant = goals.vacant.clone();
    // An overdue predecessor, or a finished Pod that waits in its backoff, must not delay others.
    vacant.retain(|id| {
        !is_predecessor_overdue(facts, draft, *id) && !facts.recreated_later.contains_key(id)
    });
    // Neither must an ID whose predecessor can't be deleted, whose Pod or PVCs enter or leave, or whose name another
    // Pod has.
    vacant.retain(|id| {
        let mut former = facts.former_pods(*id);
        let is_kept = former.any(|pod| is_deletion_refused(facts, pod));
        !is_kept && !draft.is_id_moving(*id) && !facts.is_name_taken(*id)
    });
    let one_but = |others: usize| 1usize.saturating_sub(others);
    (one_but(vacant.len() + underway), one_but(vacant.len()))
}

/// Whether the next Pod of an ID may have to wait long for the end of this Pod, for example on a lost node. The update
/// then deletes other Pods first to find out whether Pods of the updated revision can be created.
pub fn may_end_slowly(facts: &SetFacts, pod: &Pod) -> bool {
    let is_awaited = facts.strategy.sequence || !pod.spec.pvcs.is_empty();
    is_awaited && !pod.is_ready()
}

/// Whether the Pod that an ID waits for should have ended long ago. It may never end, for example on a lost node, and
/// must not delay all others. If it may still end in time, this function requests another plan.
fn is_predecessor_overdue(facts: &SetFacts, draft: &mut Draft, id: i64) -> bool {
    let named = facts.strategy.sequence.then(|| facts.terminating.get(&id));
    let mut named = named.flatten().into_iter().flatten();
    let awaited = named.next().or_else(|| {
        // A PVC without an owner counts too, because the next Pod of the ID takes it.
        let pvcs = facts.pvcs_with_id(id).iter();
        let mut pvcs = pvcs.filter(|pvc| !pvc.labels.contains_key(keys::ORPHANED));
        pvcs.find_map(|pvc| facts.pvc_writer(&pvc.name))
    });
    let Some(awaited) = awaited else {
        return false;
    };
    // A Pod that is not being deleted, such as an excluded Pod, holds its PVC for as long as it runs.
    let Some(due) = parse_time_nanos(awaited.metadata.deletion_timestamp.as_deref()) else {
        return true;
    };
    let remaining = due
        .saturating_add(OVERDUE_NANOS)
        .saturating_sub(facts.observed.now_nanos);
    if remaining > 0 {
        draft.requeue_after(remaining);
    }
    remaining == 0
}

/// Returns how many more available Pods may go off traffic for an update, in addition to those that are off traffic or
/// that this plan removes. The second number is how many Pods too many are on their way.
pub fn count_spare_available(facts: &SetFacts, draft: &Draft, counted: &[i64]) -> (usize, usize) {
    let Some(most) = facts.strategy.max_unavailable else {
        return (usize::MAX, 0);
    };
    let (leaving, wanted): (Vec<i64>, Vec<i64>) =
        counted.iter().partition(|id| draft.leaving.contains(id));
    let serving = |ids: &[i64]| {
        let pods = ids.iter().filter_map(|id| facts.members.get(id));
        pods.filter(|pod| stays_available(draft, pod)).count()
    };
    // A Pod that can't leave yet serves in place of the Pod that is created once it has left.
    let unmade = facts.strategy.replicas.saturating_sub(wanted.len());
    let needed = facts.strategy.replicas.saturating_sub(most);
    let staying = serving(&wanted) + serving(&leaving).min(unmade);
    (
        staying.saturating_sub(needed),
        needed.saturating_sub(staying),
    )
}

/// Whether a Pod serves and nothing removes it.
pub fn stays_available(draft: &Draft, pod: &Pod) -> bool {
    let goes =
        SetOperation::Update.is_in_progress(pod) || SetOperation::ScaleIn.is_in_progress(pod);
    pod.is_available() && !goes && !set_operations::is_leaving(pod) && !draft.removes_pod(pod)
}

fn pair_room(facts: &SetFacts, draft: &Draft) -> usize {
    if facts.strategy.policy != UpdatePolicy::Replace {
        return usize::MAX; // the update opens no pair
    }
    let members = facts.members.iter();
    let waiting = members.filter(|(id, pod)| {
        let data = draft.ids.get(id);
        let linked = data.is_some_and(|data| data.contains_key(pool::REPLACE_NEW));
        pod.label(keys::TO_REPLACE).is_some() && !linked
    });
    let pairs = Headroom::beside_draft(facts, draft).pairs_that_fit();
    pairs.saturating_sub(waiting.count())
}

fn surge_slots(facts: &SetFacts, draft: &Draft) -> usize {
    max_surge(facts).map_or(usize::MAX, |most| {
        most.saturating_sub(surging_origins(facts, draft).count())
    })
}

/// `maxSurge`, if the set is updated by pairs.
fn max_surge(facts: &SetFacts) -> Option<usize> {
    let most = facts.strategy.max_surge;
    most.filter(|_| facts.strategy.policy == UpdatePolicy::Replace)
}

/// The origins of the pairs that count for `maxSurge`: the pairs that an update has opened, and cancelled pairs while
/// both Pods exist.
pub fn surging_origins<'a>(
    facts: &'a SetFacts,
    draft: &Draft,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let members = facts.members.values();
    let open = members.filter(|pod| {
        let by_update = pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some();
        let timestamp = pod.label(keys::TO_REPLACE);
        timestamp.is_some_and(|timestamp| by_update || set_operations::is_set_timestamp(timestamp))
    });
    let cancelled = draft.ids.iter().filter_map(|(new, data)| {
        let origin = facts.members.get(&pool::origin_of(data)?)?;
        let half = facts.members.get(new)?;
        let is_cancelled =
            origin.label(keys::TO_REPLACE).is_none() && is_pair_of_update(origin, half);
        is_cancelled.then_some(origin)
    });
    open.chain(cancelled)
}

/// UIDs of the origins of pairs that an update has opened beyond `maxSurge` and whose new Pods do not exist. The
/// origins that are last in the order come first.
pub fn origins_beyond_surge(
    facts: &SetFacts,
    draft: &Draft,
    pods: &[(i64, &Arc<Pod>, &Target)],
) -> BTreeSet<String> {
    let Some(most) = max_surge(facts) else {
        return BTreeSet::new();
    };
    let excess = surging_origins(facts, draft).count().saturating_sub(most);
    let unmade = pods.iter().rev().filter(|(id, origin, _)| {
        let is_own = origin
            .label(keys::TO_REPLACE)
            .is_some_and(set_operations::is_set_timestamp);
        let new = draft.ids.get(id).and_then(pool::new_of);
        is_own && new.is_none_or(|new| !facts.is_id_held(new))
    });
    let uids = unmade.map(|(_, origin, _)| origin.metadata.uid.clone());
    uids.take(excess).collect()
}

/// Whether an update has opened a pair. The new Pod of a replacement that a user asked for has its origin's own
/// revision, and in most cases its origin's decorations.
pub fn is_pair_of_update(origin: &Pod, half: &Pod) -> bool {
    composition_name_of(origin) != composition_name_of(half)
}

/// Whether the API server refused to delete the Pod.
pub fn is_deletion_refused(facts: &SetFacts, pod: &Pod) -> bool {
    let refused = &facts.observed.refused.deletions;
    refused.contains(&pod.metadata.uid)
}
