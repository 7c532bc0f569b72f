//! The watches: one per kind, each feeding the index.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::index::Index;
use super::tally::Workload;
use super::watch::{self, Relist, Sink, Source};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// Starts every watch; they end when `stop` is cancelled. Returns the handle that lists the Pods again.
pub fn start(client: &Client, index: &Arc<Index>, stop: &CancellationToken) -> Relist {
    let relist = Relist::default();
    let pods = Source {
        path: "/api/v1/pods",
        labels: Some("kusionstack.io/control=true"),
    };
    spawn::<Pod, _>(
        client,
        pods,
        Arc::new(Pods(Arc::clone(index))),
        relist.clone(),
        stop,
    );
    let rules = Source {
        path: "/apis/apps.kusionstack.io/v1alpha1/podtransitionrules",
        labels: None,
    };
    spawn::<PodTransitionRule, _>(
        client,
        rules,
        Arc::new(Rules(Arc::clone(index))),
        Relist::default(),
        stop,
    );
    let namespaces = Source {
        path: "/api/v1/namespaces",
        labels: None,
    };
    spawn::<Object, _>(
        client,
        namespaces,
        Arc::new(Namespaces(Arc::clone(index))),
        Relist::default(),
        stop,
    );
    for (kind, path) in (0u8..).zip([
        "/apis/apps/v1/replicasets",
        "/apis/apps/v1/statefulsets",
        "/api/v1/replicationcontrollers",
        "/apis/apps.kusionstack.io/v1alpha1/collasets",
    ]) {
        let sink = Workloads {
            index: Arc::clone(index),
            kind,
            known: Mutex::default(),
        };
        spawn::<Object, _>(
            client,
            Source { path, labels: None },
            Arc::new(sink),
            Relist::default(),
            stop,
        );
    }
    relist
}

fn spawn<T, S>(
    client: &Client,
    source: Source,
    sink: Arc<S>,
    relist: Relist,
    stop: &CancellationToken,
) where
    T: serde::de::DeserializeOwned + Send + 'static,
    S: Sink<T>,
{
    tokio::spawn(watch::run::<T, S>(
        client.clone(),
        source,
        sink,
        relist,
        stop.clone(),
    ));
}

struct Pods(Arc<Index>);

impl Sink<Pod> for Pods {
    fn replace(&self, objects: Vec<Pod>, version: u64) {
        self.0.replace_pods(objects, version);
    }
    fn apply(&self, object: Pod) {
        self.0.apply_pod(object);
    }
    fn delete(&self, object: Pod) {
        self.0.delete_pod(&object);
    }
    fn bookmark(&self, version: u64) {
        self.0.bookmark_pods(version);
    }
}

struct Rules(Arc<Index>);

impl Sink<PodTransitionRule> for Rules {
    fn replace(&self, objects: Vec<PodTransitionRule>, _version: u64) {
        self.0.replace_rules(objects);
    }
    fn apply(&self, object: PodTransitionRule) {
        self.0.apply_rule(object);
    }
    fn delete(&self, object: PodTransitionRule) {
        self.0.delete_rule(&object);
    }
    fn bookmark(&self, _version: u64) {}
}

/// As much of a Namespace or a workload as a budget needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Meta,
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    namespace: String,
    name: String,
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    replicas: Option<i64>,
    template: Option<Template>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Meta,
}

struct Namespaces(Arc<Index>);

impl Sink<Object> for Namespaces {
    fn replace(&self, objects: Vec<Object>, _version: u64) {
        self.0.replace_namespaces(
            objects
                .into_iter()
                .map(|o| {
                    (
                        o.metadata.name,
                        o.metadata.labels.unwrap_or_default(),
                        o.metadata.deletion_timestamp.is_some(),
                    )
                })
                .collect(),
        );
    }
    fn apply(&self, o: Object) {
        let terminating = o.metadata.deletion_timestamp.is_some();
        self.0.apply_namespace(
            o.metadata.name,
            o.metadata.labels.unwrap_or_default(),
            terminating,
        );
    }
    fn delete(&self, object: Object) {
        self.0.delete_namespace(&object.metadata.name);
    }
    fn bookmark(&self, _version: u64) {}
}

struct Workloads {
    index: Arc<Index>,
    /// Bit in [`super::index::Synced::workloads`].
    kind: u8,
    /// What was listed or seen, to tell what is gone after a list.
    known: Mutex<HashSet<(String, Uid)>>,
}

impl Workloads {
    /// Key and content; `None` content for one whose deletion has begun: its Pods count for themselves from then on.
    fn read(&self, object: Object) -> ((String, Uid), Option<Workload>) {
        let key = (object.metadata.namespace, Uid::from(object.metadata.uid));
        let mut template_labels = object
            .spec
            .template
            .and_then(|t| t.metadata.labels)
            .unwrap_or_default();
        if self.kind == 3 {
            // CollaSet adds the label itself (contract 6.3).
            template_labels.insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
        }
        let managed = template_labels
            .get(keys::CONTROL)
            .is_some_and(|v| v == keys::CONTROL_VALUE);
        let template_labels = managed.then_some(template_labels);
        // ReplicaSets and their like have the default written by the API server; a CollaSet without counts as 0.
        let replicas = u32::try_from(object.spec.replicas.unwrap_or(0)).unwrap_or(0);
        let workload = Workload {
            replicas,
            template_labels,
        };
        (
            key,
            object
                .metadata
                .deletion_timestamp
                .is_none()
                .then_some(workload),
        )
    }
}

impl Sink<Object> for Workloads {
    fn replace(&self, objects: Vec<Object>, _version: u64) {
        let all: Vec<_> = objects
            .into_iter()
            .map(|o| self.read(o))
            .filter_map(|(k, w)| Some((k, w?)))
            .collect();
        let mut known = self.known.lock();
        let now: HashSet<_> = all.iter().map(|(key, _)| key.clone()).collect();
        let gone = known.difference(&now).cloned().collect();
        *known = now;
        let all = all
            .into_iter()
            .map(|((namespace, uid), workload)| (namespace, uid, workload))
            .collect();
        self.index.replace_workloads(self.kind, all, gone);
    }
    fn apply(&self, object: Object) {
        let (key, workload) = self.read(object);
        let mut known = self.known.lock();
        if workload.is_some() {
            known.insert(key.clone())
        } else {
            known.remove(&key)
        };
        self.index.set_workload(&key.0, key.1, workload);
    }
    fn delete(&self, object: Object) {
        let (key, _) = self.read(object);
        self.known.lock().remove(&key);
        self.index.set_workload(&key.0, key.1, None);
    }
    fn bookmark(&self, _version: u64) {}
}
