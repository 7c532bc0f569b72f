//! The CollaSets and Pods of a world.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::NAME;
use crate::api::keys;
use crate::api::resourcecontext::{ContextDetail, data};
use crate::domain::collaset::observed::{InstancePool, Revision};
use crate::domain::decoration::labels;
use crate::domain::decoration::observed::SetOfNamespace;
use crate::domain::pod::Pod;

/// A Pod of the world.
#[derive(Clone, Debug, Default)]
pub struct SimPod {
    pub revision: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub is_available: bool,
    pub is_terminating: bool,
    /// The larger this number, the later the Pod was created.
    pub number: u32,
}

/// A CollaSet of the world. Instances without an entry in `pods` are vacant.
#[derive(Clone, Debug, Default)]
pub struct SimSet {
    pub spec: Value,
    pub status: Value,
    pub is_deleting: bool,
    pub entries: BTreeMap<i64, BTreeMap<String, String>>,
    pub pods: BTreeMap<i64, SimPod>,
}

impl SimSet {
    /// The revision that the pool records for an instance.
    pub fn recorded(&self, id: i64) -> Option<String> {
        let text = self.entries.get(&id)?.get(data::DECORATIONS)?;
        labels::from_json(text).remove(NAME)
    }

    pub fn observe(&self, name: &str) -> SetOfNamespace {
        let uid = format!("u-{name}");
        let mut set = json!({
            "metadata": { "name": name, "namespace": "n", "uid": uid },
            "spec": self.spec,
            "status": self.status,
        });
        if self.is_deleting {
            set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let revision = Revision {
            name: "t1".to_owned(),
            data: json!({ "spec": { "template": self.spec["template"] } }),
            controller: Some(uid),
            ..Revision::default()
        };
        let entries = self.entries.iter();
        let contexts = entries.map(|(id, data)| ContextDetail {
            id: *id,
            data: data.clone(),
        });
        let pool = InstancePool {
            contexts: contexts.collect(),
            ..InstancePool::default()
        };
        SetOfNamespace {
            set: serde_json::from_value(set).unwrap(),
            revisions: vec![revision.into()],
            pods: self
                .pods
                .iter()
                .map(|(id, pod)| pod.observe(name, *id))
                .collect(),
            pool: Some(pool.into()),
        }
    }
}

impl SimPod {
    pub fn observe(&self, set: &str, id: i64) -> Arc<Pod> {
        let mut labels = json!({
            "app": "x",
            (keys::CONTROL): keys::CONTROL_VALUE,
            (keys::INSTANCE_ID): id.to_string(),
            (keys::REVISION): "t1",
        });
        for (key, value) in &self.labels {
            labels[key] = json!(value);
        }
        if let Some(revision) = &self.revision {
            labels[labels::decoration_label(NAME)] = json!(revision);
        }
        let ready = if self.is_available { "True" } else { "False" };
        if self.is_available {
            labels[keys::SERVICE_AVAILABLE] = json!("true");
        }
        let time = format!(
            "2026-01-01T00:{:02}:{:02}Z",
            self.number / 60 % 60,
            self.number % 60
        );
        let mut pod = json!({
            "metadata": {
                "name": format!("{set}-{id}"), "namespace": "n", "uid": format!("{set}-{id}-{}", self.number),
                "labels": labels, "creationTimestamp": time,
            },
            "status": {
                "phase": "Running",
                "conditions": [
                    { "type": "PodScheduled", "status": "True" },
                    { "type": "Ready", "status": ready, "lastTransitionTime": time },
                ],
            },
        });
        if self.is_terminating {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }
}
