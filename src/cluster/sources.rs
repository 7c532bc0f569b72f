//! The watches: one per kind, each feeding the index.

use std::collections::HashSet;
use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::Error as _;
use tokio::time::Instant;

use super::disruptionbudgets;
use super::following;
use super::index::{Index, NamespaceFacts};
use super::owners::Neighbours;
use super::pulse::Felt;
use super::sizes::wire::{self, Object};
use super::sizes::{Kind, Workload};
use super::unread::Unread;
use super::watch::{self, CatchUp, Sink, Source};
use super::workloads;
use crate::api::keys;
use crate::api::podtransitionrule::{self, PodTransitionRule};
use crate::domain::footprint::{MOST, excess};
use crate::domain::pod::{Metadata, Pod};
use crate::domain::rules::ignores;
use crate::ledger::store::Uid;
use crate::tasks::Supervisor;

/// Starts every watch. Returns the handle that lists the Pods again. Without
/// `collasets` nothing is watched that only the controller of CollaSets looks at.
pub fn start(
    client: &Client,
    index: &Arc<Index>,
    collasets: bool,
    supervisor: &Supervisor,
) -> CatchUp {
    let catch_up = CatchUp::default();
    let pods = Source {
        labels: Some("kusionstack.io/control=true"),
        seconds: following::SECONDS,
        ..Source::all("/api/v1/pods")
    };
    spawn::<Pod, _>(
        client,
        index,
        pods,
        Arc::new(Pods::new(index)),
        catch_up.clone(),
        supervisor,
    );
    let rules = Source {
        seconds: following::SECONDS,
        ..Source::all("/apis/apps.kusionstack.io/v1alpha1/podtransitionrules")
    };
    spawn::<PodTransitionRule, _>(
        client,
        index,
        rules,
        Arc::new(Rules(Arc::clone(index))),
        CatchUp::default(),
        supervisor,
    );
    let namespaces = Source::all("/api/v1/namespaces");
    spawn::<NamespaceFacts, _>(
        client,
        index,
        namespaces,
        Arc::new(Namespaces(Arc::clone(index))),
        CatchUp::default(),
        supervisor,
    );
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::CollaSet) {
        let source = Source::all(kind.path());
        spawn::<Owned, _>(
            client,
            index,
            source,
            Arc::new(Workloads::new(index, kind)),
            CatchUp::default(),
            supervisor,
        );
    }
    workloads::start_sets(
        client,
        index,
        Workloads::new(index, Kind::CollaSet),
        supervisor,
    );
    if collasets {
        workloads::start(client, index, supervisor);
    }
    disruptionbudgets::start(client, index, supervisor);
    catch_up
}

/// Starts one watch; `index` keeps its pulse.
pub(super) fn spawn<T, S>(
    client: &Client,
    index: &Index,
    source: Source,
    sink: Arc<S>,
    catch_up: CatchUp,
    supervisor: &Supervisor,
) where
    T: Send + 'static,
    S: Sink<T>,
{
    let pulse = index.pulses.add(source.path, catch_up.clone());
    let task = format!("the watch of {}", pulse.resource());
    let stop = supervisor.stop().clone();
    let sink = Arc::new(Felt { sink, pulse });
    let watch = watch::run::<T, _>(
        client.clone(),
        source,
        sink,
        catch_up,
        index.timeline.clone(),
        stop,
    );
    supervisor.keep(task, watch);
}

pub(crate) struct Pods {
    index: Arc<Index>,
    neighbours: Mutex<Neighbours>,
}

impl Pods {
    pub(crate) fn new(index: &Arc<Index>) -> Self {
        Pods {
            index: Arc::clone(index),
            neighbours: Mutex::default(),
        }
    }
}

impl Sink<Pod> for Pods {
    fn parse(&self, raw: &str) -> serde_json::Result<Pod> {
        let mut pod: Pod = serde_json::from_str(raw)?;
        let bytes = pod.bytes();
        if bytes > MOST {
            let Metadata {
                namespace, name, ..
            } = &pod.metadata;
            let excess = excess(bytes);
            return Err(serde_json::Error::custom(format!(
                "Pod {namespace}/{name} {excess}"
            )));
        }
        self.neighbours.lock().share(&mut pod);
        Ok(pod)
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.index.unread)
    }
    fn replace(&self, objects: Vec<Pod>, version: u64) {
        self.index.replace_pods(objects, version);
    }
    fn apply(&self, object: Pod) {
        self.index.apply_pod(object);
    }
    fn delete(&self, object: Pod) {
        self.index.delete_pod(&object);
    }
    fn bookmark(&self, version: u64) {
        self.index.bookmark_pods(version);
    }
    fn known(&self, at: Instant) {
        self.index.following.pods.hear(at);
    }
    fn lost(&self) {
        self.index.following.pods.lose();
    }
    /// The Pod by its metadata alone, which is not available: it keeps its place among the expected ones and makes no
    /// room. The Pod as it was may be long gone from traffic; and without it, one that counts for itself would free the
    /// place that it uses up. The same holds for a Pod that is too large to be cached.
    fn unreadable(&self, raw: &str) -> Option<Pod> {
        #[derive(Deserialize)]
        struct Bare {
            metadata: Metadata,
        }
        let Bare { metadata } = serde_json::from_str(raw).ok()?;
        Some(Pod {
            metadata: metadata.reduced(),
            ..Pod::default()
        })
    }
}

pub(crate) struct Rules(pub(crate) Arc<Index>);

impl Sink<PodTransitionRule> for Rules {
    fn parse(&self, raw: &str) -> serde_json::Result<PodTransitionRule> {
        let mut rule: PodTransitionRule = serde_json::from_str(raw)?;
        // Nothing reads these. They are often larger than the rest, and anybody who may edit the rule chooses how large.
        rule.metadata.managed_fields = None;
        if let Some(annotations) = &mut rule.metadata.annotations {
            annotations.retain(|key, value| {
                key == keys::IGNORES_FAILURES && value.len() <= ignores::MOST_BYTES
            });
        }
        rule.metadata.labels = None;
        Ok(rule)
    }
    fn fault(&self, rule: &PodTransitionRule) -> Option<String> {
        let fault = &rule.spec.unreadable.as_ref()?.fault;
        let metadata = &rule.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        Some(format!(
            "PodTransitionRule {namespace}/{name}: {fault}; all Pods that it may cover are held"
        ))
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.0.unread)
    }
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
    fn known(&self, at: Instant) {
        self.0.following.rules.hear(at);
    }
    fn lost(&self) {
        self.0.following.rules.lose();
    }
    /// The rule with the parts that can be read. It holds all Pods that it may cover, or its ledger is unusable.
    fn unreadable(&self, raw: &str) -> Option<PodTransitionRule> {
        podtransitionrule::by_parts(raw)
    }
}

pub(crate) struct Namespaces(pub(crate) Arc<Index>);

impl Sink<NamespaceFacts> for Namespaces {
    fn parse(&self, raw: &str) -> serde_json::Result<NamespaceFacts> {
        serde_json::from_str(raw).map(facts)
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.0.unread)
    }
    fn replace(&self, objects: Vec<NamespaceFacts>, _version: u64) {
        self.0.replace_namespaces(objects);
    }
    fn apply(&self, object: NamespaceFacts) {
        self.0.apply_namespace(object);
    }
    fn delete(&self, object: NamespaceFacts) {
        self.0.delete_namespace(&object.name, &object.uid);
    }
    fn bookmark(&self, _version: u64) {}
    fn unreadable(&self, _raw: &str) -> Option<NamespaceFacts> {
        None
    }
}

fn facts(object: Object) -> NamespaceFacts {
    let metadata = object.metadata;
    NamespaceFacts {
        name: metadata.name,
        uid: metadata.uid,
        version: metadata.resource_version,
        labels: metadata.labels.unwrap_or_default(),
        terminating_since: NamespaceFacts::since(metadata.deletion_timestamp.as_deref()),
    }
}

/// Namespace and UID of an owner, and what is kept of it; `None` if its deletion has begun.
pub(super) type Owned = ((String, Uid), Option<Workload>);

/// The sink of one kind of workload.
pub(crate) struct Workloads {
    index: Arc<Index>,
    kind: Kind,
    /// What was listed or seen, to tell what is gone after a list.
    known: Mutex<HashSet<(String, Uid)>>,
}

impl Workloads {
    pub(crate) fn new(index: &Arc<Index>, kind: Kind) -> Self {
        Workloads {
            index: Arc::clone(index),
            kind,
            known: Mutex::default(),
        }
    }

    /// What is kept of an object.
    pub fn read(&self, object: Object) -> Owned {
        wire::read(self.kind, object)
    }
}

impl Sink<Owned> for Workloads {
    fn parse(&self, raw: &str) -> serde_json::Result<Owned> {
        serde_json::from_str(raw).map(|object| self.read(object))
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.index.unread)
    }
    fn replace(&self, objects: Vec<Owned>, version: u64) {
        let all: Vec<_> = objects
            .into_iter()
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
        self.index.replace_workloads(self.kind, all, gone, version);
    }
    fn apply(&self, (key, workload): Owned) {
        let mut known = self.known.lock();
        if workload.is_some() {
            known.insert(key.clone())
        } else {
            known.remove(&key)
        };
        self.index.set_workload(&key.0, key.1, workload);
    }
    fn delete(&self, (key, _): Owned) {
        self.known.lock().remove(&key);
        self.index.set_workload(&key.0, key.1, None);
    }
    fn bookmark(&self, _version: u64) {}
    /// An API server may serve without a built-in group: then nothing of the kind owns Pods.
    fn absent(&self) -> bool {
        self.index
            .replace_workloads(self.kind, Vec::new(), Vec::new(), 0);
        true
    }
    fn unreadable(&self, _raw: &str) -> Option<Owned> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;

    fn deliver(index: &Arc<Index>, kind: &str, object: &Value) -> Option<u64> {
        let source = Source::all("/api/v1/pods");
        let line = json!({ "type": kind, "object": object }).to_string();
        let known = index.read().position;
        let delivered = watch::deliver(&source, &Pods::new(index), &line, known);
        delivered.map(|delivered| delivered.version)
    }

    /// Position of the cache, and Pods of the rule: expected, available.
    fn figures(index: &Index) -> (u64, u32, u32) {
        let state = index.read();
        let entry = state.rule("n", "web").unwrap();
        state.view(&entry.snapshot.rules, |view| {
            (view.position(), view.expected(), view.available())
        })
    }

    #[test]
    fn a_pod_that_can_not_be_read_any_more_is_expected_and_not_available() {
        let index = Arc::new(Index::default());
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
        });
        index.apply_rule(serde_json::from_value(rule).unwrap());
        let mut pod = json!({
            "metadata": {
                "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "7",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1" },
            },
            "spec": { "containers": [{ "name": "app" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        assert_eq!(deliver(&index, "ADDED", &pod), Some(7));
        assert_eq!(figures(&index), (7, 1, 1));

        pod["metadata"]["resourceVersion"] = json!("8");
        pod["status"]["conditions"] = json!("none");
        assert_eq!(deliver(&index, "MODIFIED", &pod), Some(8));
        assert_eq!(figures(&index), (8, 1, 0));
        assert!(!index.read().pod("n", "web-1").unwrap().is_readable());
        assert_eq!(index.unread.count(), 1);

        pod["metadata"]["resourceVersion"] = json!("9");
        assert_eq!(deliver(&index, "DELETED", &pod), Some(9));
        assert_eq!(figures(&index), (9, 0, 0));
        assert_eq!(index.unread.count(), 0);
    }

    #[test]
    fn pod_above_the_bound_counts_once_whatever_its_events() {
        let index = Arc::new(Index::default());
        let pod = |version: u64, image: &str| {
            json!({
                "metadata": {
                    "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": version.to_string(),
                    "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
                },
                "spec": { "containers": [{ "name": "app", "image": image }] },
            })
        };
        let long = "x".repeat(MOST);
        for version in 7..10 {
            deliver(&index, "MODIFIED", &pod(version, &long));
            assert!(!index.read().pod("n", "web-1").unwrap().is_readable());
            assert_eq!(index.unread.count(), 1);
        }
        deliver(&index, "MODIFIED", &pod(10, "app:1"));
        assert!(index.read().pod("n", "web-1").unwrap().is_readable());
        assert_eq!(index.unread.count(), 0);
    }

    /// Hands an event to the sink of rules; whether it was taken.
    fn deliver_rule(index: &Arc<Index>, kind: &str, object: &str) -> bool {
        let source = Source::all("/apis/apps.kusionstack.io/v1alpha1/podtransitionrules");
        let line = format!(r#"{{ "type": "{kind}", "object": {object} }}"#);
        watch::deliver(&source, &Rules(Arc::clone(index)), &line, 0).is_some()
    }

    /// Why the rule `web` of namespace `n` can't be read: its spec, and its ledger. `None` if there is no such rule.
    fn faults(index: &Index) -> Option<(Option<String>, Option<String>)> {
        let state = index.read();
        let snapshot = &state.rule("n", "web")?.snapshot;
        let ledger = snapshot.fault.as_deref().map(str::to_owned);
        Some((snapshot.rules.selector.clone().err(), ledger))
    }

    #[test]
    fn rule_that_can_not_be_read_any_more_holds_its_pods() {
        let index = Arc::new(Index::default());
        let rule = |version: u64, rule: Value, status: Value| {
            json!({
                "metadata": {
                    "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": version.to_string(), "generation": version,
                },
                "spec": { "selector": {}, "rules": [rule] },
                "status": status,
            })
            .to_string()
        };
        let budget = |most: Value| json!({ "name": "a", "availablePolicy": most });
        let good = budget(json!({ "maxUnavailableValue": 1 }));
        assert!(deliver_rule(
            &index,
            "ADDED",
            &rule(1, good.clone(), json!(null))
        ));
        assert_eq!(faults(&index), Some((None, None)));

        assert!(deliver_rule(
            &index,
            "MODIFIED",
            &rule(2, budget(json!("1")), json!(null))
        ));
        let (spec, ledger) = faults(&index).unwrap();
        assert!(spec.unwrap().starts_with("spec.rules[0].availablePolicy: "));
        assert_eq!((ledger, index.unread.count()), (None, 1));

        assert!(deliver_rule(
            &index,
            "MODIFIED",
            &rule(3, good.clone(), json!("lost"))
        ));
        let (spec, ledger) = faults(&index).unwrap();
        assert_eq!((spec, index.unread.count()), (None, 1));
        assert!(ledger.unwrap().starts_with("status.ledger can't be read"));

        let odd = json!({ "conditions": [7], "ledger": { "watermark": "5" } });
        assert!(deliver_rule(&index, "MODIFIED", &rule(4, good, odd)));
        assert_eq!(
            (faults(&index), index.unread.count()),
            (Some((None, None)), 0)
        );

        // The last state of a deleted object need not be readable.
        assert!(deliver_rule(
            &index,
            "DELETED",
            &rule(5, json!(1), json!([]))
        ));
        assert_eq!(faults(&index), None);
    }

    #[test]
    fn a_pod_too_large_to_be_cached_is_expected_and_not_available() {
        let index = Arc::new(Index::default());
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
            "spec": {
                "selector": { "matchLabels": { "zone": "a" } },
                "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
            },
        });
        index.apply_rule(serde_json::from_value(rule).unwrap());
        let pod = |version: u64, labels: usize| {
            let mut all: serde_json::Map<_, _> = (0..labels)
                .map(|n| (format!("example.com/{n:05}"), json!("x".repeat(63))))
                .collect();
            all.insert(keys::CONTROL.to_owned(), json!(keys::CONTROL_VALUE));
            all.insert(keys::SERVICE_AVAILABLE.to_owned(), json!("1"));
            all.insert("zone".to_owned(), json!("a"));
            json!({
                "metadata": {
                    "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": version.to_string(),
                    "labels": all,
                },
                "spec": { "containers": [{ "name": "app" }] },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            })
        };
        assert_eq!(deliver(&index, "ADDED", &pod(7, 10)), Some(7));
        assert_eq!(figures(&index), (7, 1, 1));
        assert_eq!(deliver(&index, "MODIFIED", &pod(8, 10_000)), Some(8));
        assert_eq!(figures(&index), (8, 1, 0), "the label zone is not kept");
        assert_eq!(index.unread.count(), 1);
        assert_eq!(deliver(&index, "MODIFIED", &pod(9, 10)), Some(9));
        assert_eq!(figures(&index), (9, 1, 1));
        assert_eq!(deliver(&index, "MODIFIED", &pod(10, 10_000)), Some(10));
        assert_eq!(deliver(&index, "DELETED", &pod(11, 10_000)), Some(11));
        assert_eq!(figures(&index), (11, 0, 0));
    }

    #[test]
    fn event_before_the_position_is_not_taken_and_has_all_listed_again() {
        let index = Arc::new(Index::default());
        let pod = |version: &str| json!({ "metadata": { "namespace": "n", "name": "a", "uid": version, "resourceVersion": version } });
        assert_eq!(deliver(&index, "ADDED", &pod("7")), Some(7));
        assert_eq!(deliver(&index, "ADDED", &pod("5")), None);
        assert_eq!(deliver(&index, "BOOKMARK", &pod("6")), None);
        assert!(index.read().pod("n", "5").is_none());
        assert_eq!(deliver(&index, "BOOKMARK", &pod("7")), Some(7));
    }
}
