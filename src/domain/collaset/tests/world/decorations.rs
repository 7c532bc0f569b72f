//! Plays the controller of PodDecorations: it plans each PodDecoration, publishes it, and makes the writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::World;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::is_released_later;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::status::condition_time;
use crate::domain::decoration::Decoration;
use crate::domain::decoration::observed::{ObservedDecoration, RefusedWrites, SetOfNamespace};
use crate::domain::decoration::plan::{RevisionWrite, plan_decoration};
use crate::domain::pod::Pod;

/// The PodDecorations of the namespace.
#[derive(Clone, Debug, Default)]
pub struct Decorations {
    pub objects: BTreeMap<String, PodDecoration>,
    pub revisions: BTreeMap<String, Revision>,
    /// Whether the API server refuses the revisions of PodDecorations.
    pub refuses_revisions: bool,
    /// The published values.
    pub board: BTreeMap<String, Arc<Decoration>>,
}

impl World {
    /// Creates a PodDecoration, or merges a patch into the spec of the existing one.
    pub fn decorate(&mut self, name: &str, patch: Value) {
        let now = self.tick();
        let objects = &mut self.decorations.objects;
        let object = objects.entry(name.to_owned()).or_insert_with(|| {
            let metadata = json!({ "name": name, "namespace": "shop", "uid": format!("uid-{name}-{now}"), "generation": 0 });
            serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).unwrap()
        });
        let mut raw = serde_json::to_value(&object.spec).unwrap();
        json_patch::merge(&mut raw, &patch);
        object.spec = serde_json::from_value(raw).unwrap();
        *object.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Deletes a PodDecoration. It exists until its finalizer is removed.
    pub fn delete_decoration(&mut self, name: &str) {
        let now = condition_time(self.clock);
        if let Some(object) = self.decorations.objects.get_mut(name) {
            let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
            object.metadata.deletion_timestamp.get_or_insert(time);
            *object.metadata.generation.as_mut().unwrap() += 1;
        }
        self.forget_ended_decorations();
    }

    /// Removes the PodDecorations without finalizer that are being deleted, with their revisions.
    fn forget_ended_decorations(&mut self) {
        let Decorations {
            objects, revisions, ..
        } = &mut self.decorations;
        objects.retain(|_, object| {
            let is_held = object.metadata.finalizers.iter().flatten().next().is_some();
            object.metadata.deletion_timestamp.is_none() || is_held
        });
        let uids: Vec<_> = objects.values().map(|o| o.metadata.uid.clone()).collect();
        revisions.retain(|_, revision| uids.contains(&revision.controller));
    }

    /// Plans every PodDecoration until there is nothing to do. Returns whether something was written.
    pub fn run_decorations(&mut self) -> bool {
        let mut written = false;
        for _ in 0..20 {
            let names: Vec<String> = self.decorations.objects.keys().cloned().collect();
            let is_busy = names
                .into_iter()
                .filter(|name| self.run_decoration(name))
                .count()
                > 0;
            let objects = &self.decorations.objects;
            self.decorations
                .board
                .retain(|name, _| objects.contains_key(name));
            if !is_busy {
                return written;
            }
            written = true;
        }
        panic!(
            "PodDecorations never come to rest: {:#?}",
            self.decorations.objects
        );
    }

    fn run_decoration(&mut self, name: &str) -> bool {
        let Some(observed) = self.observe_decoration(name) else {
            return false;
        };
        let plan = plan_decoration(&observed);
        let is_empty = plan.is_empty();
        self.decorations
            .board
            .insert(name.to_owned(), Arc::new(plan.publish));
        let uid = observed.object.metadata.uid.clone();
        let created = Some(condition_time(self.clock));
        let object = self.decorations.objects.get_mut(name).unwrap();
        let finalizers = object.metadata.finalizers.get_or_insert_default();
        if plan.add_finalizer {
            finalizers.push(keys::PROTECTED_FINALIZER.to_owned());
        }
        if plan.remove_finalizer {
            finalizers.retain(|finalizer| finalizer != keys::PROTECTED_FINALIZER);
        }
        if let Some(status) = plan.status {
            object.status = Some(status);
        }
        let revisions = &mut self.decorations.revisions;
        match plan
            .revision
            .filter(|_| observed.refused.revision.is_none())
        {
            Some(RevisionWrite::Create(revision)) => {
                let stored = Revision {
                    uid: format!("uid-{}", revision.name),
                    controller: uid,
                    creation_timestamp: created,
                    ..(*revision).clone()
                };
                let former = revisions.insert(revision.name.clone(), stored);
                assert_eq!(former, None, "created twice");
            }
            Some(RevisionWrite::Renumber(revision, number)) => {
                revisions.get_mut(&revision.name).unwrap().revision = number;
            }
            None => {}
        }
        for revision in plan.delete_revisions {
            revisions.remove(&revision.name).expect("is there");
        }
        self.forget_ended_decorations();
        !is_empty
    }

    fn observe_decoration(&self, name: &str) -> Option<ObservedDecoration> {
        let object = self.decorations.objects.get(name)?.clone();
        let revisions = self.decorations.revisions.values();
        let own = revisions.filter(|revision| revision.controller == object.metadata.uid);
        let is_own = |pod: &&Pod| pod.is_managed() && self.owns(pod);
        let pods = self.pods.values().filter(is_own);
        let set = SetOfNamespace {
            set: Arc::new(self.set.clone()),
            revisions: self.revisions.values().cloned().map(Arc::new).collect(),
            pods: pods.cloned().map(Arc::new).collect(),
            pool: self.pool.clone().map(Arc::new),
        };
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let refers = |pod: &&Pod| {
            let is_free = self.is_deleted || !self.owns(pod);
            let mut owners = pod.metadata.owner_references.iter();
            is_free && owners.any(|owner| owner.uid == uid) && is_released_later(pod)
        };
        let referring = self.pods.values().filter(refers).cloned();
        Some(ObservedDecoration {
            referring_pods: referring.map(Arc::new).collect(),
            revisions: own.cloned().map(Arc::new).collect(),
            sets: if self.is_deleted {
                Vec::new()
            } else {
                vec![set]
            },
            others: self.decorations.board.values().cloned().collect(),
            last: self.decorations.board.get(name).cloned(),
            refused: RefusedWrites {
                revision: self
                    .decorations
                    .refuses_revisions
                    .then(|| "policy".to_owned()),
                finalizer: None,
            },
            now_nanos: self.clock,
            object: Arc::new(object),
        })
    }
}
