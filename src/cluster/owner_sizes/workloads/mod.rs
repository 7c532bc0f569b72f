//! Keeps what is known about the owners of Pods in one namespace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::selector::Selector;
use crate::cluster::kind::WatchedKind;
use crate::domain::pod::{Owner, Pod};
use crate::ledger::store::Uid;

/// The fields of an owner of a watched kind that a budget needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The kind of the owner.
    pub kind: WatchedKind,
    /// The name of the owner.
    pub name: String,
    /// The resourceVersion of the object from which this was read.
    pub version: u64,
    /// How many Pods the owner itself should run. For a ReplicaSet this is its own number, even if the number of its
    /// Deployment counts. `None` if the object does not say this yet, and for a Job that creates no more Pods: then the
    /// living Pods count.
    pub replicas: Option<u32>,
    /// The controller of the owner itself, kept for a ReplicaSet only.
    pub controller: Option<Arc<Owner>>,
    /// The selector of the owner's Pods, kept for a Deployment only.
    pub selector: Option<Selector>,
    /// The labels with which the owner creates its Pods. `None` unless these Pods are managed.
    pub template_labels: Option<BTreeMap<String, String>>,
    /// Whether there are more of these labels than are kept. Then any rule may select the Pods.
    pub template_labels_dropped: bool,
    /// Whether the status shows Pods that do not have the newest revision. False for kinds without revisions.
    pub rolling: bool,
    /// Whether its strategy keeps Pods of older revisions: `OnDelete`, or a `partition` of a StatefulSet.
    pub keeps_old: bool,
    /// Whether the owner is a Deployment with the strategy `Recreate`.
    pub recreates: bool,
    /// Whether the owner is a paused Deployment. It creates no ReplicaSet, and its existing ReplicaSets count by
    /// themselves.
    pub paused: bool,
    /// When the owner was created, kept for a Job only.
    pub created: Option<Timestamp>,
    /// How many living Pods its controller has seen, managed or not. Kept for a ReplicaSet and a ReplicationController.
    /// The number may be out of date.
    pub pods_seen: u32,
    /// The revision of its Deployment ([`DEPLOYMENT_REVISION`](crate::api::keys::DEPLOYMENT_REVISION)). 0 for other
    /// kinds, and if it is unknown.
    pub revision: u64,
}

impl Workload {
    /// A ReplicaSet, for tests.
    #[cfg(test)]
    pub fn replica_set(name: &str, version: u64, replicas: u32) -> Workload {
        Workload {
            kind: WatchedKind::ReplicaSet,
            name: name.to_owned(),
            version,
            replicas: Some(replicas),
            controller: None,
            selector: None,
            template_labels: None,
            template_labels_dropped: false,
            rolling: false,
            keeps_old: false,
            recreates: false,
            paused: false,
            created: None,
            pods_seen: 0,
            revision: 0,
        }
    }

    /// An owner reference to this object.
    pub fn as_owner(&self, uid: &str) -> Owner {
        Owner {
            api_version: self.kind.api_version(),
            kind: self.kind.name().to_owned(),
            name: self.name.clone(),
            uid: uid.to_owned(),
            controller: true,
        }
    }

    /// Whether an owner reference means this object. This is decided as in the Kubernetes garbage collector, which
    /// looks up kind and name; the caller compares the UID.
    pub fn is_referenced_by(&self, owner: &Owner) -> bool {
        WatchedKind::from_owner(owner) == Some(self.kind) && self.name == owner.name
    }

    /// Whether a field that a budget depends on differs.
    fn differs_from(&self, other: &Workload) -> bool {
        *other
            != Workload {
                version: other.version,
                pods_seen: other.pods_seen,
                ..self.clone()
            }
    }
}

/// The result of a live read of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveReading {
    /// The number `spec.replicas` in its `scale`.
    Count(u32),
    /// The owner has a `scale`, but its number of replicas is not set.
    Unset,
    /// The kind of the owner has no `scale`, or is not served at all.
    NoScale,
    /// The owner does not exist, or its deletion has begun.
    Gone,
}

/// The basis of a [`LiveReading`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadingBasis {
    /// The object with this UID: a watch or an earlier read has shown it. The reference leads to the object. `None` if
    /// a watch delivered the deletion of an object that it had not shown before.
    Object(Option<Arc<Owner>>),
    /// References in Pods and ReplicaSets. None of them led to an object with this UID. The first reference is the one
    /// that explains the reading.
    References(Vec<Arc<Owner>>),
}

impl ReadingBasis {
    fn references(&self) -> &[Arc<Owner>] {
        match self {
            ReadingBasis::Object(owner) => owner.as_slice(),
            ReadingBasis::References(all) => all,
        }
    }
}

/// The last live read of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastRead {
    reading: LiveReading,
    basis: ReadingBasis,
}

/// How many Pods an owner asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerSize {
    /// This number of Pods.
    Count(u32),
    /// As many Pods as are alive, until the owner's status has a number.
    Alive,
    /// The owner creates no more Pods. Each living Pod counts for itself, like a Pod without an owner.
    SelfCounted,
    /// The owner has a field for the number, and the field is not set. No decision is possible until a user sets the
    /// field.
    Unset,
    /// The owner has no number of Pods.
    NoScale,
    /// The owner is gone, or its deletion has begun.
    Gone,
    /// Nothing is known about the owner yet.
    Unread,
}

/// How many readings are kept before the first sweep.
const SWEEP_THRESHOLD: usize = 64;

/// The owners of one namespace, by UID.
#[derive(Debug, Default)]
pub struct Workloads {
    watched: HashMap<Uid, Workload>,
    /// The Deployments in `watched`, by name.
    deployments: HashMap<String, Uid>,
    /// Owners of other kinds, and owners that are known to be gone.
    read: HashMap<Uid, LastRead>,
    /// The controllers of ReplicaSets that are gone. While such a Deployment exists, it still asks for the Pods.
    former: HashMap<Uid, Arc<Owner>>,
    sweep_at: usize,
}

impl Workloads {
    /// An owner of a watched kind, by its UID.
    pub fn get(&self, uid: &str) -> Option<&Workload> {
        self.watched.get(uid)
    }

    /// All owners of watched kinds.
    pub fn iter(&self) -> impl Iterator<Item = (&Uid, &Workload)> {
        self.watched.iter()
    }

    /// Whether no owner of a watched kind is known.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// How many Pods an owner asks for.
    pub fn owner_size(&self, uid: &str) -> OwnerSize {
        if let Some(workload) = self.watched.get(uid) {
            return match (workload.replicas, workload.kind) {
                (Some(n), _) => OwnerSize::Count(n),
                (None, WatchedKind::Job) => OwnerSize::SelfCounted,
                (None, _) => OwnerSize::Alive,
            };
        }
        match self.read.get(uid).map(|last| last.reading) {
            Some(LiveReading::Count(n)) => OwnerSize::Count(n),
            Some(LiveReading::Unset) => OwnerSize::Unset,
            Some(LiveReading::NoScale) => OwnerSize::NoScale,
            Some(LiveReading::Gone) => OwnerSize::Gone,
            None => OwnerSize::Unread,
        }
    }

    /// The reference by which the object with this UID was found. `None` if it has not been found yet.
    pub fn resolving_reference(&self, uid: &str) -> Option<Arc<Owner>> {
        if let Some(workload) = self.watched.get(uid) {
            return Some(Arc::new(workload.as_owner(uid)));
        }
        match &self.read.get(uid)?.basis {
            ReadingBasis::Object(owner) => owner.clone(),
            ReadingBasis::References(_) => None,
        }
    }

    /// Whether a reference to this UID leads to the object with this UID. True while the object has not been found,
    /// because a forged reference cannot be told from the right one then.
    pub fn is_reference_valid(&self, uid: &str, owner: &Owner) -> bool {
        if let Some(workload) = self.watched.get(uid) {
            return workload.is_referenced_by(owner);
        }
        match self.read.get(uid).map(|last| &last.basis) {
            Some(ReadingBasis::Object(Some(found))) => found.names_same_object(owner),
            _ => true,
        }
    }

    /// The reference to an owner that has no number of Pods, for messages.
    pub fn owner_without_replicas(&self, uid: &str) -> Option<&Arc<Owner>> {
        let last = self.read.get(uid)?;
        last.basis.references().first()
    }

    /// Whether the owner may change without an event of a watch.
    pub fn may_change_unseen(&self, uid: &str) -> bool {
        let unwatched = |last: &LastRead| {
            last.basis
                .references()
                .iter()
                .any(|o| WatchedKind::from_owner(o).is_none())
        };
        !self.watched.contains_key(uid) && self.read.get(uid).is_some_and(unwatched)
    }

    /// The controllers of ReplicaSets that have this UID, once for each ReplicaSet.
    pub fn replica_set_controllers<'a>(
        &'a self,
        uid: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Owner>> {
        let watched = self.watched.values().filter_map(|w| w.controller.as_ref());
        let all = watched.chain(self.former.values());
        all.filter(move |owner| owner.uid == uid)
    }

    /// Records that a Pod or a ReplicaSet refers to an owner. Forgets a reading of the UID that did not follow this
    /// reference: the references that it followed may be forged, and this reference may lead to the object. Returns
    /// whether a reading was forgotten.
    pub fn add_reference(&mut self, owner: &Owner) -> bool {
        let misses = |last: &LastRead| match &last.basis {
            ReadingBasis::Object(_) => false,
            ReadingBasis::References(all) => !all.iter().any(|known| **known == *owner),
        };
        self.read.get(owner.uid.as_str()).is_some_and(misses)
            && self.read.remove(owner.uid.as_str()).is_some()
    }

    /// The owner whose number counts for the Pods of `uid`: the controller of a ReplicaSet, or else the owner itself.
    /// Controllers of that controller are never followed.
    pub fn root_owner<'a>(&'a self, uid: &'a Uid) -> RootOwner<'a> {
        let controller = self.watched.get(uid).and_then(|w| w.controller.as_ref());
        let controller = controller.or_else(|| self.former.get(uid));
        controller.map_or(RootOwner::Itself(uid), RootOwner::Controller)
    }

    /// Whether an owner of a watched kind that a Pod refers to exists, or the Deployment of a ReplicaSet that is gone.
    pub fn has_living_owner(&self, owner: &Owner, pod: &Pod) -> bool {
        if self.is_present(&owner.uid) {
            return true;
        }
        let behind = self.deployment_of_pod(owner, pod);
        match self.former.get(owner.uid.as_str()) {
            Some(controller) if self.is_present(&controller.uid) => true,
            Some(controller) => behind.is_some_and(|d| !self.was_seen_as(controller, &d.name)),
            None => behind.is_some(),
        }
    }

    fn is_present(&self, uid: &str) -> bool {
        self.watched.contains_key(uid)
    }

    /// Whether this replica has seen the owner under this name, and has seen its deletion. A reference alone proves
    /// nothing.
    fn was_seen_as(&self, owner: &Owner, name: &str) -> bool {
        let last = self.read.get(owner.uid.as_str());
        let ended = last.filter(|last| last.reading == LiveReading::Gone);
        ended.is_some_and(|last| match &last.basis {
            ReadingBasis::Object(Some(found)) => found.name == name,
            ReadingBasis::Object(None) => owner.name == name,
            ReadingBasis::References(_) => false,
        })
    }

    /// The controller whose number counts for a ReplicaSet: the Deployment that created it, if this Deployment still
    /// exists, or else the controller that the ReplicaSet names. Anybody who may edit the ReplicaSet can name any
    /// controller, but the Deployment still asks for the Pods.
    fn replica_set_maker(&self, set: &Workload) -> Option<Arc<Owner>> {
        let named = set.controller.as_ref()?;
        let labels = set.template_labels.as_ref();
        let made = labels.and_then(|labels| self.deployment_of_replica_set(&set.name, labels));
        let made =
            made.filter(|made| made.uid != named.uid && !self.may_be_named_after(named, set, made));
        made.map(Arc::new).or_else(|| set.controller.clone())
    }

    /// Whether, by its name, the controller that a ReplicaSet names may have created it instead of this Deployment.
    /// This may be an earlier Deployment of the same name, or an object of a kind that is not watched, unless that
    /// object has no number of Pods.
    fn may_be_named_after(&self, named: &Owner, set: &Workload, made: &Owner) -> bool {
        if WatchedKind::from_owner(named).is_some() {
            return self.was_seen_as(named, &made.name);
        }
        let rest = set.name.strip_prefix(named.name.as_str());
        let last = self.read.get(named.uid.as_str()).map(|last| last.reading);
        rest.is_some_and(|rest| rest.starts_with('-'))
            && !matches!(last, Some(LiveReading::NoScale | LiveReading::Gone))
    }

    /// The Deployment that created the ReplicaSet that a Pod refers to, derived from the Pod alone.
    ///
    /// This is for a ReplicaSet that was deleted before this replica started. A forged reference can only name an
    /// existing Deployment. This Deployment then has one more Pod, but its number of expected Pods stays the same.
    fn deployment_of_pod(&self, owner: &Owner, pod: &Pod) -> Option<Owner> {
        if WatchedKind::from_owner(owner) != Some(WatchedKind::ReplicaSet) {
            return None;
        }
        self.deployment_of_replica_set(&owner.name, &pod.metadata.labels)
    }

    /// The Deployment that created a ReplicaSet of this name: the name is `DEPLOYMENT-HASH`, and the selector of the
    /// Deployment matches the labels of the ReplicaSet's Pods. The label `pod-template-hash` of the Pods would prove
    /// nothing more, because anybody who may edit a Pod can change it.
    fn deployment_of_replica_set(
        &self,
        set: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<Owner> {
        let (name, hash) = set.rsplit_once('-')?;
        let uid = self.deployments.get(name).filter(|_| !hash.is_empty())?;
        let deployment = self.watched.get(uid)?;
        let selector = deployment.selector.as_ref()?;
        selector.matches(labels).then(|| deployment.as_owner(uid))
    }

    /// Remembers the Deployment behind a ReplicaSet that is gone and that no watch has shown, if the Pod shows this
    /// Deployment. Returns whether this changes anything.
    pub fn remember_deployment(&mut self, pod: &Pod) -> bool {
        let Some(owner) = pod.controller() else {
            return false;
        };
        let uid = Uid::from(owner.uid.as_str());
        let Some(deployment) = self.deployment_of_pod(owner, pod) else {
            return false;
        };
        let known = self.former.get(&uid);
        let is_sure =
            |of: &Arc<Owner>| self.is_present(&of.uid) || self.was_seen_as(of, &deployment.name);
        if self.is_present(&uid) || known.is_some_and(is_sure) {
            return false;
        }
        self.former.insert(uid, Arc::new(deployment));
        true
    }

    /// Stores an owner of a watched kind. A version that is older than the known one changes nothing. Returns whether a
    /// field that a budget depends on differs.
    pub fn put_workload(&mut self, uid: &Uid, mut workload: Workload) -> bool {
        // The reading that the owner is gone may rest on the name in a Pod's reference. If the owner is really gone and
        // this event is late, the watch delivers the deletion again. Until then, more Pods are expected than necessary.
        self.read.remove(uid);
        self.former.remove(uid);
        workload.controller = self.replica_set_maker(&workload);
        let Some(known) = self.watched.get_mut(uid) else {
            if workload.kind == WatchedKind::Deployment {
                self.deployments.insert(workload.name.clone(), uid.clone());
            }
            self.watched.insert(uid.clone(), workload);
            return true;
        };
        if known.version > workload.version {
            return false;
        }
        let differs = known.differs_from(&workload);
        *known = workload;
        differs
    }

    /// Stores that an owner was read live, or that a watch delivered its deletion. Returns whether this changes
    /// anything.
    pub fn put_live_reading(
        &mut self,
        uid: &Uid,
        reading: LiveReading,
        basis: ReadingBasis,
        has_pods: impl Fn(&str) -> bool,
    ) -> bool {
        let removed = match reading {
            LiveReading::Gone => self.watched.remove(uid),
            LiveReading::Count(_) | LiveReading::Unset | LiveReading::NoScale => None,
        };
        let watched = removed.is_some();
        let basis = match (basis, &removed) {
            (ReadingBasis::Object(None), Some(removed)) => {
                ReadingBasis::Object(Some(Arc::new(removed.as_owner(uid))))
            }
            (basis, _) => basis,
        };
        if let Some(workload) = &removed
            && self.deployments.get(&workload.name) == Some(uid)
        {
            self.deployments.remove(&workload.name);
        }
        if let Some(controller) = removed.and_then(|workload| self.replica_set_maker(&workload)) {
            self.former.insert(uid.clone(), controller);
        }
        let last = LastRead { reading, basis };
        let before = self.read.insert(uid.clone(), last.clone());
        self.sweep_readings(has_pods);
        watched || before != Some(last)
    }

    /// Forgets readings to which no Pod and no ReplicaSet refers. Sweeps run only when the number of readings has
    /// doubled, so their cost per reading stays constant.
    fn sweep_readings(&mut self, has_pods: impl Fn(&str) -> bool) {
        if self.read.len() < self.sweep_at.max(SWEEP_THRESHOLD) {
            return;
        }
        self.former.retain(|uid, _| has_pods(uid));
        let watched = self.watched.values().filter_map(|w| w.controller.as_ref());
        let controllers: HashSet<&str> = watched
            .chain(self.former.values())
            .map(|owner| owner.uid.as_str())
            .collect();
        self.read
            .retain(|uid, _| has_pods(uid) || controllers.contains(&**uid));
        self.sweep_at = self.read.len() * 2;
    }
}

/// The owner whose number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootOwner<'a> {
    /// The direct owner.
    Itself(&'a Uid),
    /// The controller of the direct owner.
    Controller(&'a Arc<Owner>),
}

impl RootOwner<'_> {
    /// The UID of the owner whose number counts.
    pub fn uid(self) -> Uid {
        match self {
            RootOwner::Itself(uid) => uid.clone(),
            RootOwner::Controller(owner) => Uid::from(owner.uid.as_str()),
        }
    }
}

#[cfg(test)]
mod tests;
