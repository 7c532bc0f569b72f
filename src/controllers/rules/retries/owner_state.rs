//! The state of an owner with Pods to delete, and how many of its Pods the rules of its namespace let go.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::task::yield_now;

use crate::cluster::index::{NamespaceIndex, RuleEntry};
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::Workload;
use crate::controllers::yielder::STEPS_PER_YIELD;
use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::ledger::store::Uid;

/// The state of an owner. A difference means that its controller did something, or has something new to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerState {
    /// resourceVersion of the owner.
    pub version: u64,
    /// The number of its living Pods.
    pub alive: usize,
    /// The number of its living Pods that every rule lets go. It is not known which Pod the controller will delete.
    pub free: usize,
    /// A fingerprint of the rule objects that cover the owner, with their generations.
    pub rules: u64,
}

impl OwnerState {
    /// The present state of the owner. `free` is the result of [`count_free_pods`] for its Pods.
    pub fn from_owner(
        namespace_index: &NamespaceIndex,
        uid: &Uid,
        workload: &Workload,
        free: usize,
    ) -> OwnerState {
        OwnerState {
            version: workload.version,
            alive: namespace_index.living_pods_of(uid).count(),
            free,
            rules: rules_fingerprint(
                rules_counting_owner(namespace_index, uid).map(|entry| &*entry.snapshot.rules),
            ),
        }
    }
}

/// How many of these Pods are selected by none of the rules in `exhausted`, the rules of their namespace without
/// headroom. This function takes time in proportion to Pods × rules; do not hold a lock during the call.
pub async fn count_free_pods(pods: &[Arc<Pod>], exhausted: &[Arc<RuleSet>]) -> usize {
    let (mut free, mut matched) = (0, 0);
    for pod in pods {
        let is_held = exhausted.iter().any(|rules| rules.selects(pod));
        free += usize::from(!is_held);
        matched += 1 + exhausted.len();
        if matched >= STEPS_PER_YIELD {
            matched = 0;
            yield_now().await;
        }
    }
    free
}

/// The rule objects whose tally contains the owner.
pub fn rules_counting_owner<'a>(
    namespace_index: &'a NamespaceIndex,
    uid: &'a Uid,
) -> impl Iterator<Item = &'a RuleEntry> {
    let rules = namespace_index.rules.values();
    rules.filter(|entry| entry.tally.has_owner(uid))
}

/// A number that changes if a rule object is created, deleted or edited.
pub fn rules_fingerprint<'a>(rules: impl Iterator<Item = &'a RuleSet>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for rules in rules {
        (&rules.uid, rules.generation).hash(&mut hasher);
    }
    hasher.finish()
}

/// The living Pod whose annotation is changed to wake the owner's controller. Any living Pod would do.
pub fn pod_to_annotate<'a>(namespace_index: &'a NamespaceIndex, uid: &str) -> Option<&'a Arc<Pod>> {
    namespace_index
        .living_pods_of(uid)
        .min_by(|a, b| a.metadata.name.cmp(&b.metadata.name))
}

/// Whether the owner's controller has to delete Pods: the owner has more Pods than it wants, or its rollout is not
/// finished. CollaSets are left out, because this server's own controller uses the wait queue of the rule.
pub fn has_pods_to_delete(
    namespace_index: &NamespaceIndex,
    uid: &str,
    workload: &Workload,
) -> bool {
    workload.kind != WatchedKind::CollaSet
        && (namespace_index.surplus_pods(uid) > 0 || workload.rolling)
}

/// Owners with Pods to delete that no rule object covers.
pub fn uncovered_owners(namespace_index: &NamespaceIndex) -> impl Iterator<Item = &Uid> {
    let owners = namespace_index.workloads();
    let owners =
        owners.filter(|(uid, workload)| has_pods_to_delete(namespace_index, uid, workload));
    let owners =
        owners.filter(|(uid, _)| rules_counting_owner(namespace_index, uid).next().is_none());
    owners
        .map(|(uid, _)| uid)
        .filter(|uid| namespace_index.living_pods_of(uid).next().is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::iter::repeat_n;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use futures::FutureExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::index::Index;
    use crate::cluster::owner_sizes;

    fn pod(name: &str, labels: Value) -> Pod {
        let mut pod = json!({
            "metadata": {
                "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
                "labels": { "kusionstack.io/control": "true", "app": "web" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set", "controller": true,
                }],
            },
        });
        json_patch::merge(&mut pod, &json!({ "metadata": { "labels": labels } }));
        serde_json::from_value(pod).unwrap()
    }

    fn put_rule(index: &Index, name: &str, selector: Value, generation: i64) {
        let rule = json!({
            "metadata": { "namespace": "n", "name": name, "uid": name, "generation": generation },
            "spec": {
                "selector": { "matchLabels": selector },
                "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
            },
        });
        index.apply_rule(serde_json::from_value(rule).unwrap());
    }

    /// A StatefulSet with three Pods in a rollout. One rule covers all Pods, another rule only `web-0`.
    fn index() -> Index {
        let index = Index::default();
        put_rule(&index, "all", json!({ "app": "web" }), 1);
        put_rule(&index, "first", json!({ "pod": "0" }), 1);
        for (name, number) in [("web-0", "0"), ("web-1", "1"), ("web-2", "2")] {
            index.apply_pod(pod(name, json!({ "pod": number })));
        }
        let set = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "set", "resourceVersion": "7" },
            "spec": { "replicas": 3 },
            "status": { "currentRevision": "a", "updateRevision": "b" },
        });
        let (_, uid, set) = owner_sizes::parse_workload(WatchedKind::StatefulSet, set).unwrap();
        index.set_workload("n", uid, Some(set));
        index
    }

    fn owner_state(index: &Index, exhausted: &[&str]) -> OwnerState {
        let state = index.read_state();
        let namespace_index = state.namespace("n").unwrap();
        let exhausted = exhausted
            .iter()
            .map(|name| Arc::clone(&namespace_index.rules[*name].snapshot.rules));
        let (uid, exhausted): (_, Vec<_>) = (Uid::from("set"), exhausted.collect());
        let pods: Vec<_> = namespace_index.living_pods_of(&uid).cloned().collect();
        let free = count_free_pods(&pods, &exhausted).now_or_never().unwrap();
        OwnerState::from_owner(
            namespace_index,
            &uid,
            namespace_index.workload("set").unwrap(),
            free,
        )
    }

    #[test]
    fn free_pods_are_counted_in_small_parts() {
        let index = index();
        let state = index.read_state();
        let rules = &state.namespace("n").unwrap().rules;
        let exhausted: Vec<_> = repeat_n(&rules["first"].snapshot.rules, 200)
            .cloned()
            .collect();
        let free_pod = Arc::new(pod("web-1", json!({ "pod": "1" })));
        let pods: Vec<_> = repeat_n(free_pod, 100).collect();
        let mut counting = pin!(count_free_pods(&pods, &exhausted));
        let mut context = Context::from_waker(Waker::noop());
        let mut parts = 1;
        let free = loop {
            match counting.as_mut().poll(&mut context) {
                Poll::Ready(free) => break free,
                Poll::Pending => parts += 1,
            }
        };
        assert_eq!(free, 100);
        assert!(parts >= 20_000 / STEPS_PER_YIELD, "{parts}");
    }

    #[test]
    fn rule_over_one_pod_does_not_close_the_others() {
        let index = index();
        assert_eq!(
            (
                owner_state(&index, &[]).alive,
                owner_state(&index, &[]).free
            ),
            (3, 3)
        );
        assert_eq!(owner_state(&index, &["first"]).free, 2);
        assert_eq!(owner_state(&index, &["all"]).free, 0);
        let (before, after) = (owner_state(&index, &["first"]), owner_state(&index, &[]));
        assert_ne!(before, after, "room for the first Pod is news");
    }

    #[test]
    fn edited_covering_rule_changes_owner_state() {
        let index = index();
        let before = owner_state(&index, &[]);
        put_rule(&index, "other", json!({ "app": "other" }), 1);
        assert_eq!(owner_state(&index, &[]), before);
        put_rule(&index, "first", json!({ "pod": "0" }), 2);
        assert_ne!(owner_state(&index, &[]).rules, before.rules);
    }

    #[test]
    fn owner_is_uncovered_once_no_rule_has_it() {
        let index = index();
        let uncovered = || {
            let state = index.read_state();
            let namespace_index = state.namespace("n").unwrap();
            uncovered_owners(namespace_index)
                .cloned()
                .collect::<Vec<_>>()
        };
        put_rule(&index, "all", json!({ "app": "other" }), 2);
        assert_eq!(uncovered(), []);
        put_rule(&index, "first", json!({ "pod": "9" }), 2);
        assert_eq!(uncovered(), [Uid::from("set")]);
    }
}
