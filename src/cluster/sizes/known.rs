//! What is known of the owners of one namespace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Kind;
use crate::domain::pod::Owner;
use crate::ledger::store::Uid;

/// An owner of a watched kind, as far as a budget needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion` of the object that this was read from.
    pub version: u64,
    /// How many Pods it is to run itself; a ReplicaSet's own number, whatever its Deployment's is. `None` if the object
    /// does not say so yet: as many as are alive.
    pub replicas: Option<u32>,
    /// Its own controller, kept for a ReplicaSet only.
    pub controller: Option<Arc<Owner>>,
    /// Labels that its Pods are created with; `None` unless they make managed Pods.
    pub template_labels: Option<BTreeMap<String, String>>,
    /// Whether the status shows Pods that are not of the newest revision. False for kinds without revisions.
    pub rolling: bool,
    /// Whether it is a Deployment with strategy `Recreate`.
    pub recreates: bool,
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
    pub fn is_meant_by(&self, owner: &Owner) -> bool {
        Kind::of(owner) == Some(self.kind) && self.name == owner.name
    }

    fn differs(&self, other: &Workload) -> bool {
        let version = other.version;
        *other
            != Workload {
                version,
                ..self.clone()
            }
    }
}

/// What was read live of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// `spec.replicas` of its `scale`.
    Count(u32),
    /// The owner's kind has no `scale`, or is not served at all.
    NoScale,
    /// There is no such owner, or its deletion has begun.
    Gone,
}

/// How many Pods an owner is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many.
    Count(u32),
    /// As many as are alive, until the owner's status says more.
    Alive,
    /// The owner does not say.
    NoScale,
    /// The owner is gone or going.
    Gone,
    /// Nothing is known of the owner yet.
    Unread,
}

/// Readings and marks of deleted owners that are kept before the first sweep.
const SWEEP: usize = 64;

/// The owners of one namespace by UID.
#[derive(Debug, Default)]
pub struct Workloads {
    watched: HashMap<Uid, Workload>,
    /// Owners of other kinds, and those known to be gone.
    read: HashMap<Uid, Reading>,
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
    pub fn size(&self, uid: &str) -> Size {
        if let Some(workload) = self.watched.get(uid) {
            return workload.replicas.map_or(Size::Alive, Size::Count);
        }
        match self.read.get(uid) {
            Some(Reading::Count(n)) => Size::Count(*n),
            Some(Reading::NoScale) => Size::NoScale,
            Some(Reading::Gone) => Size::Gone,
            None => Size::Unread,
        }
    }

    /// The owner whose number counts for the Pods of `uid`: a ReplicaSet's own controller, else the owner itself. Never
    /// higher than that one step.
    pub fn root<'a>(&'a self, uid: &'a Uid) -> RootOf<'a> {
        let controller = self.watched.get(uid).and_then(|w| w.controller.as_ref());
        let controller = controller.or_else(|| self.former.get(uid));
        controller.map_or(RootOf::Itself(uid), RootOf::Controller)
    }

    /// Whether an owner of a watched kind is there, or the controller of a ReplicaSet that is gone.
    pub fn is_cared_for(&self, uid: &str) -> bool {
        let former = self.former.get(uid).map(|owner| owner.uid.as_str());
        self.watched.contains_key(uid) || former.is_some_and(|uid| self.watched.contains_key(uid))
    }

    /// An owner of a watched kind was seen. An older version than the known one, and an owner that is known to be gone,
    /// change nothing. Returns whether anything but the version differs.
    pub fn put(&mut self, uid: &Uid, workload: Workload) -> bool {
        // A mark that the owner is gone may rest on a Pod's word for its name. If the owner is really gone and this event is
        // late, the watch says so again; until then more Pods are expected than need be.
        self.read.remove(uid);
        self.former.remove(uid);
        let Some(known) = self.watched.get_mut(uid) else {
            self.watched.insert(uid.clone(), workload);
            return true;
        };
        if known.version > workload.version {
            return false;
        }
        let differs = known.differs(&workload);
        *known = workload;
        differs
    }

    /// An owner was read live. Returns whether that is news.
    pub fn put_reading(
        &mut self,
        uid: &Uid,
        reading: Reading,
        has_pods: impl Fn(&str) -> bool,
    ) -> bool {
        let gone = match reading {
            Reading::Gone => self.watched.remove(uid),
            Reading::Count(_) | Reading::NoScale => None,
        };
        let watched = gone.is_some();
        if let Some(controller) = gone.and_then(|workload| workload.controller) {
            self.former.insert(uid.clone(), controller);
        }
        let news = self.read.insert(uid.clone(), reading) != Some(reading);
        self.sweep(has_pods);
        news || watched
    }

    /// Forgets readings that no Pod and no ReplicaSet refers to any more. The cost is shared out among the readings.
    fn sweep(&mut self, has_pods: impl Fn(&str) -> bool) {
        if self.read.len() < self.sweep_at.max(SWEEP) {
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
pub enum RootOf<'a> {
    /// The direct owner's.
    Itself(&'a Uid),
    /// That of the direct owner's controller.
    Controller(&'a Arc<Owner>),
}

impl RootOf<'_> {
    /// UID of the owner whose number counts.
    pub fn uid(self) -> Uid {
        match self {
            RootOf::Itself(uid) => uid.clone(),
            RootOf::Controller(owner) => Uid::from(owner.uid.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(replicas: u32, version: u64) -> Workload {
        Workload {
            kind: Kind::ReplicaSet,
            name: "web".to_owned(),
            version,
            replicas: Some(replicas),
            controller: None,
            template_labels: None,
            rolling: false,
            recreates: false,
        }
    }

    #[test]
    fn older_version_does_not_overwrite_newer_reading() {
        let (mut known, uid) = (Workloads::default(), Uid::from("a"));
        assert!(known.put(&uid, workload(10, 5)));
        assert!(known.put(&uid, workload(100, 9)));
        assert!(!known.put(&uid, workload(50, 7)));
        assert_eq!(known.size("a"), Size::Count(100));
        assert!(!known.put(&uid, workload(100, 11)));
        assert!(!known.put(&uid, workload(10, 10)));
        assert_eq!(known.size("a"), Size::Count(100));
    }

    #[test]
    fn owner_that_the_watch_shows_is_not_gone() {
        let (mut known, uid) = (Workloads::default(), Uid::from("a"));
        known.put(&uid, workload(10, 5));
        assert!(known.put_reading(&uid, Reading::Gone, |_| true));
        assert_eq!(known.size("a"), Size::Gone);
        assert!(known.put(&uid, workload(10, 6)));
        assert_eq!(known.size("a"), Size::Count(10));
    }

    #[test]
    fn replica_set_that_is_gone_still_belongs_to_its_deployment() {
        let (mut known, set) = (Workloads::default(), Uid::from("set"));
        let deployment = Arc::new(Owner {
            uid: "deployment".to_owned(),
            ..Owner::default()
        });
        let controlled = Workload {
            controller: Some(Arc::clone(&deployment)),
            ..workload(10, 5)
        };
        known.put(&set, controlled);
        known.put(&"deployment".into(), workload(10, 4));
        known.put_reading(&set, Reading::Gone, |_| true);
        assert_eq!(known.root(&set).uid(), "deployment".into());
        assert!(known.is_cared_for("set"));
        known.put_reading(&"deployment".into(), Reading::Gone, |_| true);
        assert!(!known.is_cared_for("set"));
    }

    #[test]
    fn marks_of_deleted_owners_without_pods_are_forgotten() {
        let mut known = Workloads::default();
        for n in 0..1000 {
            let uid = Uid::from(format!("owner-{n}"));
            known.put_reading(&uid, Reading::Gone, |uid| uid == "owner-0");
        }
        assert!(known.read.len() <= SWEEP, "{}", known.read.len());
        assert_eq!(known.size("owner-0"), Size::Gone);
    }
}
