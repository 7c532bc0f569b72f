//! What is known of the owners of one namespace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::selector::Selector;
use crate::cluster::kind::WatchedKind;
use crate::domain::pod::{Owner, Pod};
use crate::ledger::store::Uid;

/// An owner of a watched kind, as far as a budget needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its kind.
    pub kind: WatchedKind,
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion` of the object that this was read from.
    pub version: u64,
    /// How many Pods it is to run itself; a ReplicaSet's own number, whatever its Deployment's is. `None` if the object
    /// does not say so yet, and for a Job that makes no more Pods: as many as are alive.
    pub replicas: Option<u32>,
    /// Its own controller, kept for a ReplicaSet only.
    pub controller: Option<Arc<Owner>>,
    /// Which Pods are its own, kept for a Deployment only.
    pub selector: Option<Selector>,
    /// Labels that its Pods are created with; `None` unless they make managed Pods.
    pub template_labels: Option<BTreeMap<String, String>>,
    /// Whether there are more of these labels than are kept. Any rule may then select the Pods.
    pub template_labels_dropped: bool,
    /// Whether the status shows Pods that are not of the newest revision. False for kinds without revisions.
    pub rolling: bool,
    /// Whether its strategy keeps Pods of older revisions: `OnDelete`, or a partition of a StatefulSet.
    pub keeps_old: bool,
    /// Whether it is a Deployment with strategy `Recreate`.
    pub recreates: bool,
    /// Whether it is a Deployment that is paused: it makes no ReplicaSet, and one that it has made counts by itself.
    pub paused: bool,
    /// When it was created, kept for a Job only.
    pub created: Option<Timestamp>,
    /// How many living Pods its controller has seen, managed or not; kept for a ReplicaSet and a ReplicationController. It
    /// may be behind.
    pub pods_seen: u32,
    /// Which revision of its Deployment it is ([`keys::DEPLOYMENT_REVISION`]); 0 for other kinds, and where nothing tells.
    pub revision: u64,
}

impl Workload {
    /// The owner as a reference to it names it.
    pub fn as_owner(&self, uid: &str) -> Owner {
        Owner {
            api_version: self.kind.api_version(),
            kind: self.kind.name().to_owned(),
            name: self.name.clone(),
            uid: uid.to_owned(),
            controller: true,
        }
    }

    /// Whether an owner reference means this object: by the garbage collector's way of looking it up, which asks for kind
    /// and name and compares the UID.
    pub fn is_referenced_by(&self, owner: &Owner) -> bool {
        WatchedKind::from_owner(owner) == Some(self.kind) && self.name == owner.name
    }

    /// Whether anything differs that a budget rests on.
    fn differs_from(&self, other: &Workload) -> bool {
        *other
            != Workload {
                version: other.version,
                pods_seen: other.pods_seen,
                ..self.clone()
            }
    }
}

/// What was read live of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveReading {
    /// `spec.replicas` of its `scale`.
    Count(u32),
    /// The owner has a `scale`, but sets no number of replicas.
    Unset,
    /// The owner's kind has no `scale`, or is not served at all.
    NoScale,
    /// There is no such owner, or its deletion has begun.
    Gone,
}

/// What a [`Reading`] rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadingBasis {
    /// The object of this UID: a watch or an earlier read has shown it. The reference leads to it; `None` if a watch told
    /// of the deletion and had not shown the object before.
    Object(Option<Arc<Owner>>),
    /// References that Pods and ReplicaSets hold. None of them led to an object of this UID. The reference that explains
    /// the reading is the first.
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

/// How many Pods an owner is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerSize {
    /// So many.
    Count(u32),
    /// As many as are alive, until the owner's status says more.
    Alive,
    /// The owner makes no Pods any more. Those that are alive count for themselves, as Pods without an owner do.
    Each,
    /// The owner could say, by a field of its spec, and does not: no decision can be made until somebody sets the field.
    Unset,
    /// The owner does not say.
    NoScale,
    /// The owner is gone or going.
    Gone,
    /// Nothing is known of the owner yet.
    Unread,
}

/// Readings and marks of deleted owners that are kept before the first sweep.
const SWEEP_THRESHOLD: usize = 64;

/// The owners of one namespace by UID.
#[derive(Debug, Default)]
pub struct Workloads {
    watched: HashMap<Uid, Workload>,
    /// Deployments in `watched` by name.
    deployments: HashMap<String, Uid>,
    /// Owners of other kinds, and those known to be gone.
    read: HashMap<Uid, LastRead>,
    /// Controllers of ReplicaSets that are gone. While such a Deployment is there, it still asks for the Pods.
    former: HashMap<Uid, Arc<Owner>>,
    sweep_at: usize,
}

impl Workloads {
    /// An owner of a watched kind.
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

    /// How many Pods an owner is to have.
    pub fn owner_size(&self, uid: &str) -> OwnerSize {
        if let Some(workload) = self.watched.get(uid) {
            return match (workload.replicas, workload.kind) {
                (Some(n), _) => OwnerSize::Count(n),
                (None, WatchedKind::Job) => OwnerSize::Each,
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

    /// The reference by which the object of this UID was found; `None` if it was not found yet.
    pub fn resolving_reference(&self, uid: &str) -> Option<Arc<Owner>> {
        if let Some(workload) = self.watched.get(uid) {
            return Some(Arc::new(workload.as_owner(uid)));
        }
        match &self.read.get(uid)?.basis {
            ReadingBasis::Object(owner) => owner.clone(),
            ReadingBasis::References(_) => None,
        }
    }

    /// Whether a reference to this UID leads to the object of this UID. True as long as the object was not found: then
    /// nothing tells a forged reference from the right one.
    pub fn is_reference_valid(&self, uid: &str, owner: &Owner) -> bool {
        if let Some(workload) = self.watched.get(uid) {
            return workload.is_referenced_by(owner);
        }
        match self.read.get(uid).map(|last| &last.basis) {
            Some(ReadingBasis::Object(Some(found))) => found.names_same_object(owner),
            _ => true,
        }
    }

    /// The reference to an owner that does not say how many Pods it is to have, for people to read.
    pub fn owner_without_replicas(&self, uid: &str) -> Option<&Arc<Owner>> {
        let last = self.read.get(uid)?;
        last.basis.references().first()
    }

    /// Whether no watch tells of a change to what is known of the owner.
    pub fn may_change_unseen(&self, uid: &str) -> bool {
        let unwatched = |last: &LastRead| {
            last.basis
                .references()
                .iter()
                .any(|o| WatchedKind::from_owner(o).is_none())
        };
        !self.watched.contains_key(uid) && self.read.get(uid).is_some_and(unwatched)
    }

    /// Controllers of ReplicaSets that have this UID, once for each ReplicaSet.
    pub fn replica_set_controllers<'a>(
        &'a self,
        uid: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Owner>> {
        let watched = self.watched.values().filter_map(|w| w.controller.as_ref());
        let all = watched.chain(self.former.values());
        all.filter(move |owner| owner.uid == uid)
    }

    /// A Pod or a ReplicaSet refers to an owner. Forgets a reading of the UID that did not follow this reference: the
    /// references that it followed may be forged, and this one may lead to the object. Returns whether a reading was
    /// forgotten.
    pub fn add_reference(&mut self, owner: &Owner) -> bool {
        let misses = |last: &LastRead| match &last.basis {
            ReadingBasis::Object(_) => false,
            ReadingBasis::References(all) => !all.iter().any(|known| **known == *owner),
        };
        self.read.get(owner.uid.as_str()).is_some_and(misses)
            && self.read.remove(owner.uid.as_str()).is_some()
    }

    /// The owner whose number counts for the Pods of `uid`: a ReplicaSet's own controller, else the owner itself. Never
    /// higher than that one step.
    pub fn root_owner<'a>(&'a self, uid: &'a Uid) -> RootOwner<'a> {
        let controller = self.watched.get(uid).and_then(|w| w.controller.as_ref());
        let controller = controller.or_else(|| self.former.get(uid));
        controller.map_or(RootOwner::Itself(uid), RootOwner::Controller)
    }

    /// Whether an owner of a watched kind that a Pod names is there, or the Deployment of a ReplicaSet that is gone.
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

    /// Whether this replica has seen the owner under this name, and its end. A reference alone proves nothing.
    fn was_seen_as(&self, owner: &Owner, name: &str) -> bool {
        let last = self.read.get(owner.uid.as_str());
        let ended = last.filter(|last| last.reading == LiveReading::Gone);
        ended.is_some_and(|last| match &last.basis {
            ReadingBasis::Object(Some(found)) => found.name == name,
            ReadingBasis::Object(None) => owner.name == name,
            ReadingBasis::References(_) => false,
        })
    }

    /// The controller whose number counts for a ReplicaSet: the one that it names, unless a Deployment that made it lives on.
    /// Whoever may edit the ReplicaSet can name any controller, and the Deployment goes on to ask for the Pods.
    fn replica_set_maker(&self, set: &Workload) -> Option<Arc<Owner>> {
        let named = set.controller.as_ref()?;
        let labels = set.template_labels.as_ref();
        let made = labels.and_then(|labels| self.deployment_of_replica_set(&set.name, labels));
        let made =
            made.filter(|made| made.uid != named.uid && !self.may_be_named_after(named, set, made));
        made.map(Arc::new).or_else(|| set.controller.clone())
    }

    /// Whether the controller that a ReplicaSet names may have made it rather than this Deployment, by its name: an earlier
    /// Deployment of the same name, or an object of a kind that is not watched, unless that has no number to give.
    fn may_be_named_after(&self, named: &Owner, set: &Workload, made: &Owner) -> bool {
        if WatchedKind::from_owner(named).is_some() {
            return self.was_seen_as(named, &made.name);
        }
        let rest = set.name.strip_prefix(named.name.as_str());
        let last = self.read.get(named.uid.as_str()).map(|last| last.reading);
        rest.is_some_and(|rest| rest.starts_with('-'))
            && !matches!(last, Some(LiveReading::NoScale | LiveReading::Gone))
    }

    /// The Deployment that made the ReplicaSet that a Pod names, told by the Pod alone.
    ///
    /// For a ReplicaSet that was deleted before this replica started. A forged reference can only name a Deployment that is
    /// there, which gains a Pod and asks for no more of them.
    fn deployment_of_pod(&self, owner: &Owner, pod: &Pod) -> Option<Owner> {
        if WatchedKind::from_owner(owner) != Some(WatchedKind::ReplicaSet) {
            return None;
        }
        self.deployment_of_replica_set(&owner.name, &pod.metadata.labels)
    }

    /// The Deployment that made a ReplicaSet of this name: the ReplicaSet's name is `DEPLOYMENT-HASH`, and the Deployment's
    /// selector matches the labels of its Pods. Their label `pod-template-hash` proves no more: whoever may edit a Pod can
    /// change it.
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

    /// A ReplicaSet that is gone, and that no watch has shown, has this Pod. Remembers the Deployment behind it, if the Pod
    /// tells. Returns whether that is news.
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

    /// An owner of a watched kind was seen. An older version than the known one, and an owner that is known to be gone,
    /// change nothing. Returns whether anything differs that a budget rests on.
    pub fn put_workload(&mut self, uid: &Uid, mut workload: Workload) -> bool {
        // A mark that the owner is gone may rest on a Pod's word for its name. If the owner is really gone and this event is
        // late, the watch says so again; until then more Pods are expected than need be.
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

    /// An owner was read live, or a watch told that it is gone. Returns whether that is news.
    pub fn put_live_reading(
        &mut self,
        uid: &Uid,
        reading: LiveReading,
        basis: ReadingBasis,
        has_pods: impl Fn(&str) -> bool,
    ) -> bool {
        let gone = match reading {
            LiveReading::Gone => self.watched.remove(uid),
            LiveReading::Count(_) | LiveReading::Unset | LiveReading::NoScale => None,
        };
        let watched = gone.is_some();
        let basis = match (basis, &gone) {
            (ReadingBasis::Object(None), Some(gone)) => {
                ReadingBasis::Object(Some(Arc::new(gone.as_owner(uid))))
            }
            (basis, _) => basis,
        };
        if let Some(workload) = &gone
            && self.deployments.get(&workload.name) == Some(uid)
        {
            self.deployments.remove(&workload.name);
        }
        if let Some(controller) = gone.and_then(|workload| self.replica_set_maker(&workload)) {
            self.former.insert(uid.clone(), controller);
        }
        let last = LastRead { reading, basis };
        let before = self.read.insert(uid.clone(), last.clone());
        self.sweep_readings(has_pods);
        watched || before != Some(last)
    }

    /// Forgets readings that no Pod and no ReplicaSet refers to any more. The cost is shared out among the readings.
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

/// Whose number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootOwner<'a> {
    /// The direct owner's.
    Itself(&'a Uid),
    /// That of the direct owner's controller.
    Controller(&'a Arc<Owner>),
}

impl RootOwner<'_> {
    /// UID of the owner whose number counts.
    pub fn uid(self) -> Uid {
        match self {
            RootOwner::Itself(uid) => uid.clone(),
            RootOwner::Controller(owner) => Uid::from(owner.uid.as_str()),
        }
    }
}

#[cfg(test)]
mod tests;
