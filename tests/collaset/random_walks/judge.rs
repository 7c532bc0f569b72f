//! Judges a walk: the invariants that must hold at every moment, by the API server's own watches in the order of the
//! writes.
//!
//! | What must never happen | When the judge checks it |
//! |---|---|
//! | two Pods mount one PVC | for Pods that have not ended |
//! | a PVC is deleted while a Pod mounts it | when its deletion timestamp appears |
//! | a rule's `maxUnavailable` is exceeded | when a Pod becomes unavailable without an action of the walk |
//! | the set's `maxUnavailable` is exceeded | when an update of a serving Pod begins: all wanted Pods must have served at some moment since the previous update began |
//! | the set's `maxSurge` is exceeded | when an update opens a pair: there must have been a moment without pairs since the previous one |
//! | `Ready` is untrue | when it becomes True: the Pods must have been as it says at some moment of the last [`LAG`] |
//! | two Pods share an instance ID | unless the walk edited IDs |
//!
//! The judge does not limit the number of Pods beyond the replicas: the new half of a cancelled pair waits for its
//! deletion, and counts for nothing until then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use operating::api::collaset::CollaSet;
use operating::api::keys::{self, Family};
use testbed::observer::{Change, describe_pod, serves};
use testbed::pods::is_available;

use super::Manner;
use super::acts::REPLICAS;
use crate::fixtures::{condition, label};
use crate::pvcs::mounted;

/// Upper bound for the lag of the controller's caches, much longer than the real lag.
const LAG: Duration = Duration::from_secs(20);

/// Changes that neither the server nor another controller decided.
#[derive(Debug, Default)]
pub struct Excuses {
    /// Writes by the walk, by UID and resourceVersion.
    pub writes: BTreeSet<(String, u64)>,
    /// UIDs of Pods that the walk may have written at an unknown time.
    pub lives: BTreeSet<String>,
    /// Ranges of versions in which the set did not exist.
    pub absences: Vec<(u64, u64)>,
}

impl Excuses {
    fn covers(&self, change: &Change<Pod>) -> bool {
        let mut absences = self.absences.iter();
        self.lives.contains(&change.uid)
            || self.writes.contains(&(change.uid.clone(), change.version))
            || absences.any(|(from, to)| (*from..=*to).contains(&change.version))
    }
}

/// Everything that the watches delivered.
pub struct History {
    pub pods: Vec<Change<Pod>>,
    pub pvcs: Vec<Change<PersistentVolumeClaim>>,
    pub sets: Vec<Change<CollaSet>>,
}

enum Event<'a> {
    Pod(&'a Change<Pod>),
    Pvc(&'a Change<PersistentVolumeClaim>),
    Set(&'a Change<CollaSet>),
}

/// The state after all events up to one moment.
struct Judge<'a> {
    manner: &'a Manner,
    excuses: &'a Excuses,
    deleted: &'a BTreeSet<String>,
    pods: BTreeMap<&'a str, &'a Pod>,
    pvcs: BTreeMap<&'a str, &'a PersistentVolumeClaim>,
    sets: BTreeMap<&'a str, &'a CollaSet>,
    /// Former states of all Pods, with the time when each ended.
    past: Vec<(Instant, BTreeMap<&'a str, &'a Pod>)>,
    /// Number of excused losses of availability since all Pods last served.
    excused: usize,
    /// Whether all Pods have served once. Before that, no limit applies.
    begun: bool,
    /// Whether all Pods have served since the last update of a serving Pod began.
    rested: bool,
    /// Whether there was a moment without pairs since the last pair was opened.
    unpaired: bool,
    story: Vec<String>,
}

/// Fails at the first moment that breaks an invariant.
pub fn judge(history: &History, manner: &Manner, excuses: &Excuses, deleted: &BTreeSet<String>) {
    let mut events: Vec<(u64, Event<'_>)> = Vec::new();
    events.extend(history.pods.iter().map(|c| (c.version, Event::Pod(c))));
    events.extend(history.pvcs.iter().map(|c| (c.version, Event::Pvc(c))));
    events.extend(history.sets.iter().map(|c| (c.version, Event::Set(c))));
    events.sort_by_key(|(version, _)| *version);
    let mut judge = Judge {
        manner,
        excuses,
        deleted,
        pods: BTreeMap::new(),
        pvcs: BTreeMap::new(),
        sets: BTreeMap::new(),
        past: Vec::new(),
        excused: 0,
        begun: false,
        rested: true,
        unpaired: true,
        story: Vec::new(),
    };
    for (_, event) in &events {
        match event {
            Event::Pod(change) => judge.pod(change),
            Event::Pvc(change) => judge.pvc(change),
            Event::Set(change) => judge.set(change),
        }
    }
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    ["Succeeded", "Failed"].contains(&phase.unwrap_or_default())
}

fn is_owned(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|o| o.kind == "CollaSet")
}

/// Whether rules and sets count the Pod.
fn is_covered(pod: &Pod) -> bool {
    label(pod, "app") == Some("web") && label(pod, keys::CONTROL) == Some(keys::CONTROL_VALUE)
}

/// Whether the Pod belongs to a set, and is neither terminating nor finished.
fn is_member(pod: &Pod) -> bool {
    is_owned(pod)
        && is_covered(pod)
        && pod.metadata.deletion_timestamp.is_none()
        && !is_finished(pod)
}

fn is_updated_now(pod: &Pod) -> bool {
    label(pod, &Family::Operating.key("collaset")).is_some()
        && label(pod, &Family::OperationType.key("collaset")) == Some("update")
}

fn is_origin_of_update(pod: &Pod) -> bool {
    is_member(pod)
        && [keys::TO_REPLACE, keys::REPLACED_BY_REPLACE_UPDATE]
            .iter()
            .all(|key| label(pod, key).is_some())
}

impl<'a> Judge<'a> {
    fn fail(&self, why: &str) -> ! {
        let last = &self.story[self.story.len().saturating_sub(40)..];
        panic!("{why}: {last:#?}")
    }

    fn pod(&mut self, change: &'a Change<Pod>) {
        let (uid, now) = (change.uid.as_str(), change.object.as_deref());
        let before = self.pods.get(uid).copied();
        self.past.push((change.at, self.pods.clone()));
        match now {
            Some(pod) => self.pods.insert(uid, pod),
            None => self.pods.remove(uid),
        };
        let name = now.or(before).map(ResourceExt::name_any);
        let line = describe_pod(&name.unwrap_or_default(), now);
        self.story.push(format!("{}: {line}", change.version));
        self.pvcs_have_one_writer(now);
        self.availability(change, before, now);
        self.pace(before, now);
        self.surge(before, now);
        self.ids(now);
    }

    fn pvcs_have_one_writer(&self, now: Option<&Pod>) {
        let Some(pod) = now.filter(|pod| !is_finished(pod)) else {
            return;
        };
        for pvc in mounted(pod) {
            let other = self.pods.values().find(|other| {
                other.uid() != pod.uid() && !is_finished(other) && mounted(other).contains(&pvc)
            });
            if let Some(other) = other {
                let (first, second) = (pod.name_any(), other.name_any());
                self.fail(&format!("{first} and {second} mount {pvc}"));
            }
        }
    }

    fn availability(&mut self, change: &Change<Pod>, before: Option<&Pod>, now: Option<&Pod>) {
        let counts = |pod: &Pod| is_covered(pod) && serves(pod);
        let available = self.pods.values().filter(|pod| counts(pod)).count();
        let wanted = usize::try_from(REPLICAS).unwrap();
        let lost = before.is_some_and(counts) && !now.is_some_and(counts);
        if available >= wanted {
            (self.begun, self.excused) = (true, 0);
        } else if lost && self.excuses.covers(change) {
            self.excused += 1;
        } else if lost && self.begun {
            let most = usize::try_from(self.manner.rule).unwrap();
            if available + self.excused + most < wanted {
                let why = format!(
                    "{available} are available, {} were lost by nobody's decision, {most} may be missing of {wanted}",
                    self.excused
                );
                self.fail(&why);
            }
        }
    }

    /// Applies to walks in which `maxUnavailable` always amounts to 1.
    fn pace(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        let begins = before.is_some_and(|pod| is_available(pod) && !is_updated_now(pod))
            && now.is_some_and(|pod| is_member(pod) && is_updated_now(pod));
        if begins {
            if self.manner.paced && !self.rested {
                self.fail("an update begins, and not all have served since the one before began");
            }
            self.rested = false;
        }
        let serving = self
            .pods
            .values()
            .filter(|pod| is_member(pod) && is_available(pod) && !is_updated_now(pod));
        self.rested |= serving.count() >= usize::try_from(REPLICAS).unwrap();
    }

    /// Applies to walks in which `maxSurge` always amounts to 1 and no user asks for a replacement.
    fn surge(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        let opens =
            !before.is_some_and(is_origin_of_update) && now.is_some_and(is_origin_of_update);
        if opens && before.is_some_and(is_member) {
            if self.manner.surge && !self.unpaired {
                self.fail("a pair is opened beside another");
            }
            self.unpaired = false;
        }
        let mut pods = self.pods.values();
        self.unpaired |= !pods.any(|pod| is_origin_of_update(pod));
    }

    fn ids(&self, now: Option<&Pod>) {
        if self.manner.edits_ids {
            return;
        }
        let owner = |pod: &Pod| {
            let mut owners = pod.owner_references().iter();
            let set = owners.find(|o| o.kind == "CollaSet");
            set.map(|o| o.uid.clone())
        };
        let id = |pod: &Pod| label(pod, keys::INSTANCE_ID).map(str::to_owned);
        let Some(pod) = now.filter(|pod| is_member(pod) && id(pod).is_some()) else {
            return;
        };
        let other = self.pods.values().find(|other| {
            let same = owner(other) == owner(pod) && id(other) == id(pod);
            is_member(other) && other.uid() != pod.uid() && same
        });
        if let Some(other) = other {
            let (first, second) = (pod.name_any(), other.name_any());
            self.fail(&format!("{first} and {second} have one instance ID"));
        }
    }

    fn pvc(&mut self, change: &'a Change<PersistentVolumeClaim>) {
        let uid = change.uid.as_str();
        let before = self.pvcs.get(uid).copied();
        match change.object.as_deref() {
            Some(pvc) => self.pvcs.insert(uid, pvc),
            None => self.pvcs.remove(uid),
        };
        let going = |pvc: &PersistentVolumeClaim| pvc.metadata.deletion_timestamp.is_some();
        let goes = change.object.as_deref().is_none_or(going) && !before.is_some_and(going);
        let Some(name) = change
            .object
            .as_deref()
            .or(before)
            .map(ResourceExt::name_any)
        else {
            return;
        };
        if !goes || self.deleted.contains(&name) {
            return;
        }
        self.story
            .push(format!("{}: PVC {name} is deleted", change.version));
        let mut pods = self.pods.values();
        let writer = pods.find(|pod| !is_finished(pod) && mounted(pod).contains(&name));
        if let Some(writer) = writer {
            self.fail(&format!(
                "{name} is deleted, {} mounts it",
                writer.name_any()
            ));
        }
    }

    fn set(&mut self, change: &'a Change<CollaSet>) {
        let uid = change.uid.as_str();
        let ready = |set: &CollaSet| {
            let status = set.status.as_ref();
            let is_current = status.map(|s| s.observed_generation) == set.metadata.generation;
            condition(set, "Ready").is_some_and(|c| c.status == "True") && is_current
        };
        let before = self.sets.get(uid).is_some_and(|set| ready(set));
        let Some(set) = &change.object else {
            self.sets.remove(uid);
            return;
        };
        self.sets.insert(uid, set);
        let ready_condition = condition(set, "Ready").map(|c| (&c.status, &c.reason, &c.message));
        self.story
            .push(format!("{}: the set: {ready_condition:?}", change.version));
        if before || !ready(set) || set.metadata.deletion_timestamp.is_some() {
            return;
        }
        let recent = |ended: &Instant| *ended + LAG >= change.at;
        let past = self.past.iter().rev();
        let mut states = past.take_while(|(ended, _)| recent(ended));
        let now = lacks(set, &self.pods);
        if let Some(why) = now
            && !states.any(|(_, pods)| lacks(set, pods).is_none())
        {
            self.fail(&format!("Ready became True: {why}"));
        }
    }
}

/// What the set lacks although a Ready set must have it; `None` if it lacks nothing.
fn lacks(set: &CollaSet, pods: &BTreeMap<&str, &Pod>) -> Option<String> {
    let own = |pod: &&&Pod| {
        let mut owners = pod.owner_references().iter();
        is_member(pod) && owners.any(|o| Some(&o.uid) == set.metadata.uid.as_ref())
    };
    let members: Vec<_> = pods.values().filter(own).collect();
    let replicas = usize::try_from(set.spec.replicas.unwrap_or_default()).unwrap_or_default();
    let available = members.iter().filter(|pod| is_available(pod)).count();
    if members.len() != replicas || available != replicas {
        return Some(format!(
            "{available} of {} are available, {replicas} are wanted",
            members.len()
        ));
    }
    let updated = set.status.as_ref().map(|s| s.updated_revision.as_str());
    let old = members
        .iter()
        .filter(|pod| label(pod, keys::REVISION) != updated);
    let strategy = set.spec.update_strategy.clone().unwrap_or_default();
    let rolling = strategy.rolling_update.unwrap_or_default();
    if rolling.by_label.is_some() {
        let chosen = old
            .filter(|pod| label(pod, keys::UPDATE_INCLUDED).is_some())
            .count();
        return (chosen > 0).then(|| format!("{chosen} that are chosen are not updated"));
    }
    let partition = rolling
        .by_partition
        .and_then(|by| by.partition)
        .unwrap_or(0);
    let old = old.count();
    (old > usize::try_from(partition).unwrap_or(0))
        .then(|| format!("{old} are not updated, {partition} may be"))
}
