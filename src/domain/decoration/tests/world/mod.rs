//! A namespace in memory: one PodDecoration, its revisions, and CollaSets that do what the published value asks.

mod sim_objects;

pub use sim_objects::{SimPod, SimSet};

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::keys;
use crate::api::poddecoration::PodDecorationStatus;
use crate::api::resourcecontext::data;
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::effective::{self, Member as EffectiveMember};
use crate::domain::decoration::observed::{ObservedDecoration, RefusedWrites};
use crate::domain::decoration::plan::{DecorationPlan, RevisionWrite, plan_decoration};
use crate::domain::decoration::{Decoration, DecorationRevisions, labels};

/// Name of the PodDecoration.
pub const NAME: &str = "log";

#[derive(Clone, Debug)]
pub struct World {
    pub spec: Value,
    pub generation: i64,
    pub finalizers: Vec<String>,
    pub is_deleting: bool,
    pub status: Option<PodDecorationStatus>,
    pub revisions: Vec<Arc<Revision>>,
    pub sets: BTreeMap<String, SimSet>,
    pub others: Vec<Arc<Decoration>>,
    pub last: Option<Arc<Decoration>>,
    pub refused: RefusedWrites,
    pub made: u32,
}

impl World {
    /// A world with a PodDecoration that selects all Pods with the label `app=x`, and without sets.
    pub fn new() -> World {
        World {
            spec: json!({
                "selector": { "matchLabels": { "app": "x" } },
                "template": { "metadata": [{ "patchPolicy": "Retain", "annotations": { "v": "1" } }] },
            }),
            generation: 1,
            finalizers: Vec::new(),
            is_deleting: false,
            status: None,
            revisions: Vec::new(),
            sets: BTreeMap::new(),
            others: Vec::new(),
            last: None,
            refused: RefusedWrites::default(),
            made: 0,
        }
    }

    /// Adds a set whose instances all have an available Pod.
    pub fn with_set(mut self, name: &str, size: i64) -> World {
        let set = SimSet {
            spec: json!({
                "selector": { "matchLabels": { "app": "x" } },
                "template": { "metadata": { "labels": { "app": "x" } }, "spec": {} },
            }),
            status: json!({ "updatedRevision": "t1", "currentRevision": "t1" }),
            ..SimSet::default()
        };
        self.sets.insert(name.to_owned(), set);
        for id in 0..size {
            self.add_entry(name, id, &[]);
            self.add_pod(name, id, None);
        }
        self
    }

    pub fn set(&mut self, name: &str) -> &mut SimSet {
        self.sets.get_mut(name).unwrap()
    }

    pub fn add_entry(&mut self, set: &str, id: i64, marks: &[(&str, &str)]) {
        let own = [(data::OWNER, set), (data::REVISION, "t1")];
        let marks = own
            .iter()
            .chain(marks)
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let marks = marks.collect();
        self.set(set).entries.insert(id, marks);
    }

    pub fn add_pod(&mut self, set: &str, id: i64, revision: Option<&str>) {
        self.made += 1;
        let pod = SimPod {
            revision: revision.map(str::to_owned),
            is_available: true,
            number: self.made,
            ..SimPod::default()
        };
        self.set(set).pods.insert(id, pod);
    }

    pub fn change_spec(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.spec);
        self.generation += 1;
    }

    pub fn set_partition(&mut self, partition: usize) {
        self.change_spec(|spec| {
            spec["updateStrategy"] = json!({ "rollingUpdate": { "partition": partition } });
        });
    }

    pub fn change_template(&mut self, version: &str) {
        self.change_spec(|spec| {
            spec["template"]["metadata"][0]["annotations"]["v"] = json!(version)
        });
    }

    pub fn observe(&self) -> ObservedDecoration {
        let mut object = json!({
            "metadata": {
                "name": NAME, "namespace": "n", "uid": "u-log", "generation": self.generation,
                "finalizers": self.finalizers,
            },
            "spec": self.spec,
        });
        if self.is_deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if let Some(status) = &self.status {
            object["status"] = json!(status);
        }
        ObservedDecoration {
            referring_pods: Vec::new(),
            object: serde_json::from_value(object).unwrap(),
            revisions: self.revisions.clone(),
            sets: self
                .sets
                .iter()
                .map(|(name, set)| set.observe(name))
                .collect(),
            others: self.others.clone(),
            last: self.last.clone(),
            refused: self.refused.clone(),
            now_nanos: 1_700_000_000_000_000_000,
        }
    }

    /// Plans once, publishes the value and makes the writes.
    pub fn reconcile(&mut self) -> DecorationPlan {
        let plan = plan_decoration(&self.observe());
        self.last = Some(Arc::new(plan.publish.clone()));
        if plan.add_finalizer && self.refused.finalizer.is_none() {
            self.finalizers.push(keys::PROTECTED_FINALIZER.to_owned());
        }
        match &plan.revision {
            Some(_) if self.refused.revision.is_some() => {}
            Some(RevisionWrite::Create(revision)) => self.revisions.push(Arc::clone(revision)),
            Some(RevisionWrite::Renumber(revision, number)) => {
                self.revisions.retain(|stored| stored.name != revision.name);
                let revision = Revision {
                    revision: *number,
                    ..(**revision).clone()
                };
                self.revisions.push(Arc::new(revision));
            }
            None => {}
        }
        let deleted =
            |stored: &Arc<Revision>| plan.delete_revisions.iter().any(|r| r.name == stored.name);
        self.revisions.retain(|stored| !deleted(stored));
        if let Some(status) = &plan.status {
            self.status = Some(status.clone());
        }
        if plan.remove_finalizer {
            self.finalizers.clear();
        }
        plan
    }

    /// Reconciles until nothing is left to write.
    pub fn settle(&mut self) -> DecorationPlan {
        for _ in 0..20 {
            let plan = self.reconcile();
            if plan.is_empty() {
                return plan;
            }
        }
        panic!(
            "the PodDecoration does not come to rest: {:?}",
            self.reconcile()
        );
    }

    /// The revision that an instance should have, as the plan of its set finds it in the published value.
    pub fn wanted(&self, set: &str, id: i64) -> Option<String> {
        let decoration = self.last.as_ref()?;
        let sim = self.sets.get(set).unwrap();
        let entry = sim.entries.get(&id);
        let origin = entry
            .and_then(data::origin_of)
            .filter(|o| sim.entries.contains_key(o));
        let held = |id: i64| match sim.pods.get(&id).filter(|pod| !pod.is_terminating) {
            Some(pod) => pod.revision.clone(),
            None => sim.recorded(id),
        };
        let stable = held(origin.unwrap_or(id)).map(|revision| (NAME.to_owned(), revision));
        let is_new = entry.is_some_and(|entry| entry.contains_key(data::JUST_CREATE));
        let mut labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        labels.insert(keys::INSTANCE_ID.to_owned(), id.to_string());
        let member = EffectiveMember {
            unscoped: None,
            is_running: false,
            key: &(set.to_owned(), origin.unwrap_or(id)),
            labels: &labels,
            stable: &stable.into_iter().collect(),
            is_new: is_new && origin.is_none() && !sim.pods.contains_key(&id),
        };
        effective::effective_revision(decoration, member).map(str::to_owned)
    }

    /// The set records in its pool what an instance should have.
    pub fn record(&mut self, set: &str, id: i64) {
        let wanted = self.wanted(set, id);
        let wanted: DecorationRevisions = wanted
            .map(|revision| (NAME.to_owned(), revision))
            .into_iter()
            .collect();
        let entry = self.set(set).entries.get_mut(&id).unwrap();
        entry.insert(data::DECORATIONS.to_owned(), labels::to_json(&wanted));
    }

    /// The set gives an instance what it should have: it updates the Pod, or creates it.
    pub fn update_pod(&mut self, set: &str, id: i64) {
        self.record(set, id);
        let wanted = self.wanted(set, id);
        match self
            .set(set)
            .pods
            .get_mut(&id)
            .filter(|pod| !pod.is_terminating)
        {
            Some(pod) => pod.revision = wanted,
            None => self.add_pod(set, id, wanted.as_deref()),
        }
        let entry = self.set(set).entries.get_mut(&id).unwrap();
        entry.remove(data::JUST_CREATE);
    }

    /// All instances by set and ID.
    pub fn instances(&self) -> Vec<(String, i64)> {
        let sets = self.sets.iter();
        let ids =
            sets.flat_map(|(name, set)| set.entries.keys().map(move |id| (name.clone(), *id)));
        ids.collect()
    }

    /// All sets give all their instances what they should have, until nothing changes.
    pub fn roll_out(&mut self) -> DecorationPlan {
        for _ in 0..20 {
            self.settle();
            let before: Vec<_> = self.carried();
            for (set, id) in self.instances() {
                self.update_pod(&set, id);
            }
            if self.carried() == before {
                return self.settle();
            }
        }
        panic!("the sets do not come to rest");
    }

    /// The revision on each Pod, by set and ID.
    pub fn carried(&self) -> Vec<(String, i64, Option<String>)> {
        let instances = self.instances().into_iter();
        let carried = instances.map(|(set, id)| {
            let pods = &self.sets.get(&set).unwrap().pods;
            let pod = pods.get(&id).filter(|pod| !pod.is_terminating);
            (set, id, pod.and_then(|pod| pod.revision.clone()))
        });
        carried.collect()
    }

    /// Number of instances whose Pod has this revision.
    pub fn count(&self, revision: &str) -> usize {
        let carried = self.carried().into_iter();
        carried
            .filter(|(_, _, on_pod)| on_pod.as_deref() == Some(revision))
            .count()
    }

    pub fn stored_status(&self) -> PodDecorationStatus {
        self.status.clone().unwrap_or_default()
    }

    /// Status, reason and message of a condition.
    pub fn condition(&self, type_: &str) -> Option<(String, String, String)> {
        let conditions = self.stored_status().conditions;
        let found = conditions.into_iter().find(|c| c.type_ == type_);
        found.map(|c| (c.status, c.reason, c.message))
    }
}
