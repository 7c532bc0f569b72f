//! Records Events about Pods that wait for a long time, and about the rules that they wait for. Nothing is read from
//! the API server, and nothing is written if no Pod waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ControllerContext;
use super::yielder::{REST_FACTOR, Yielder};
use crate::api::keys;
use crate::cluster::events::pod_reference;
use crate::domain::diagnosis::wait_notices::{
    self, WaitNotice, WaitNotices, WaitingOperation, operation_line,
};
use crate::domain::diagnosis::{ObservedPod, PodContext, PodController, RuleObject};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::webhook::EndpointVerdicts;

/// Period of the checks. If the threshold for a long wait is short, the period is shorter.
const CHECK_PERIOD: Duration = Duration::from_secs(15);

/// Maximum number of operations of a namespace that one check compares with its rules, the longest waiting first. The
/// other operations get no Event until some of these continue.
const MAX_JUDGED_OPERATIONS: usize = 500;

/// Records Events about long waits until `stop`.
pub async fn run_wait_events(context: Arc<ControllerContext>, stop: CancellationToken) {
    let threshold = SignedDuration::try_from(context.wait_notice).unwrap_or(SignedDuration::MAX);
    let mut notices = WaitNotices::new(threshold);
    let period = (context.wait_notice / 4).clamp(Duration::from_millis(250), CHECK_PERIOD);
    let mut paused_until: HashMap<String, Instant> = HashMap::new();
    let record_events = async {
        context.index.wait_listed().await;
        loop {
            tokio::time::sleep(period).await;
            let names: Vec<String> = {
                let state = context.index.read_state();
                state
                    .namespaces()
                    .map(|(name, _)| name.to_owned())
                    .collect()
            };
            let existing: HashSet<&str> = names.iter().map(String::as_str).collect();
            notices.retain(|namespace| existing.contains(namespace));
            let now = Instant::now();
            paused_until.retain(|_, until| *until > now);
            for name in names {
                if paused_until.contains_key(&name) {
                    continue;
                }
                let mut yielder = Yielder::new();
                for (reference, warning, reason, message) in
                    collect_wait_events(&context, &name, &mut notices, &mut yielder).await
                {
                    context
                        .events
                        .record_event(&reference, warning, reason, &message);
                }
                // A tenant with many Pods and rules gets its Events later, and does not delay others.
                let (_, _, elapsed) = yielder.into_totals();
                paused_until.insert(name, Instant::now() + elapsed * REST_FACTOR);
            }
        }
    };
    stop.run_until_cancelled(record_events).await;
}

/// An Event: the object, whether it is a warning, the reason, the message.
type WaitEvent = (ObjectReference, bool, &'static str, String);

/// A namespace at one moment. The check of a snapshot needs no lock.
struct NamespaceSnapshot {
    pods: Vec<Arc<Pod>>,
    /// UIDs of the Pods that are deleted with their CollaSet. No budget holds these Pods.
    deleted_with_collaset: HashSet<String>,
    rules: Vec<(RuleObject, Arc<EndpointVerdicts>)>,
}

impl NamespaceSnapshot {
    fn from_index(context: &ControllerContext, namespace: &str) -> Option<NamespaceSnapshot> {
        let state = context.index.read_state();
        let namespace_index = state.namespace(namespace)?;
        let rules = namespace_index.rules.values().map(|entry| {
            let object = RuleObject {
                object: Arc::clone(&entry.object),
                set: Arc::clone(&entry.snapshot.rules),
            };
            (object, Arc::clone(&entry.verdicts))
        });
        let pods = namespace_index.pods.values();
        let deleted_with_collaset = pods
            .clone()
            .filter(|pod| state.is_deleted_with_collaset(pod));
        Some(NamespaceSnapshot {
            rules: rules.collect(),
            deleted_with_collaset: deleted_with_collaset
                .map(|pod| pod.metadata.uid.clone())
                .collect(),
            pods: pods.cloned().collect(),
        })
    }

    /// The operations that wait for a long time, the longest waiting first, with the rule objects that hold them.
    async fn long_waits(
        &self,
        is_long: impl Fn(&WaitingOperation) -> bool,
        yielder: &mut Yielder,
    ) -> Vec<WaitingOperation> {
        let mut all: Vec<(&Pod, WaitingOperation, Option<Stage>)> = Vec::new();
        for pod in &self.pods {
            yielder.steps += 1 + pod.metadata.labels.len() / 10;
            yielder.yield_if_due().await;
            if is_in_flight(pod) {
                let waiting =
                    wait_notices::waiting_operations(pod).filter(|(waiting, _)| is_long(waiting));
                all.extend(waiting.map(|(waiting, stage)| (&**pod, waiting, stage)));
            }
        }
        all.sort_by(|(_, a, _), (_, b, _)| {
            (a.since, &a.pod, &a.operation).cmp(&(b.since, &b.pod, &b.operation))
        });
        let mut judged_count = 0;
        all.retain(|(_, _, stage)| {
            judged_count += usize::from(stage.is_some());
            stage.is_none() || judged_count <= MAX_JUDGED_OPERATIONS
        });
        let mut waits = Vec::new();
        for (pod, mut waiting, stage) in all {
            let may_budgets_hold = !self.deleted_with_collaset.contains(&pod.metadata.uid);
            for (rule, verdicts) in &self.rules {
                yielder.steps += 1 + rule.set.rules.len();
                yielder.yield_if_due().await;
                if stage.is_some_and(|stage| {
                    wait_notices::does_rule_hold(rule, verdicts, stage, pod, may_budgets_hold)
                }) {
                    waiting.rules.push(Arc::clone(&rule.set.uid));
                }
            }
            waits.push(waiting);
        }
        waits
    }

    /// The Pod of a wait, and the explanation in one line.
    fn explain_wait(
        &self,
        context: &ControllerContext,
        namespace: &str,
        wait: &WaitingOperation,
    ) -> Option<(Arc<Pod>, String)> {
        let pod = self.pods.iter().find(|pod| pod.metadata.uid == wait.pod)?;
        let owner = pod.controller().filter(|owner| owner.is_collaset());
        let sets = &context.objects.sets;
        let set = owner.and_then(|owner| sets.get(namespace, &owner.name));
        let observed = ObservedPod {
            pod: Arc::clone(pod),
            rules: self.rules.iter().map(|(rule, _)| rule.clone()).collect(),
            pods: self.pods.clone(),
            controller: set.map(PodController::CollaSet),
            jobs: None,
            context: PodContext::default(),
            notes: Vec::new(),
            now: (context.now)(),
        };
        Some((Arc::clone(pod), operation_line(&observed, &wait.operation)?))
    }

    fn event_from_notice(
        &self,
        context: &ControllerContext,
        namespace: &str,
        notice: &WaitNotice,
    ) -> Option<WaitEvent> {
        match notice {
            WaitNotice::Pod(wait) => {
                let (pod, line) = self.explain_wait(context, namespace, wait)?;
                let (reason, warning) = wait_notices::event_reason(wait.phase);
                Some((pod_reference(&pod), warning, reason, line))
            }
            WaitNotice::Rule {
                rule,
                waiting,
                longest,
            } => {
                let (pod, line) = self.explain_wait(context, namespace, longest)?;
                let mut rules = self.rules.iter();
                let (object, _) = rules.find(|(object, _)| object.set.uid == *rule)?;
                let name = &pod.metadata.name;
                let message = match *waiting {
                    1 => format!("Pod {name} waits: {line}"),
                    n => format!(
                        "{n} operations wait; the operation on Pod {name} has waited longest: {line}"
                    ),
                };
                let reference = object.object.object_ref(&());
                Some((reference, false, wait_notices::RULE_REASON, message))
            }
        }
    }
}

/// Checks one namespace.
async fn collect_wait_events(
    context: &ControllerContext,
    namespace: &str,
    notices: &mut WaitNotices,
    yielder: &mut Yielder,
) -> Vec<WaitEvent> {
    let Some(snapshot) = NamespaceSnapshot::from_index(context, namespace) else {
        return Vec::new();
    };
    let now = (context.now)();
    let waits = snapshot
        .long_waits(
            |waiting| notices.is_beyond_threshold(waiting.since, now),
            yielder,
        )
        .await;
    let mut events = Vec::new();
    for notice in notices.decide_notices(namespace, waits, now) {
        events.extend(snapshot.event_from_notice(context, namespace, &notice));
        // An explanation visits all Pods and rules.
        yielder.steps += super::yielder::STEPS_PER_YIELD;
        yielder.yield_if_due().await;
    }
    events
}

fn is_in_flight(pod: &Pod) -> bool {
    let mut labels = pod.metadata.labels.keys();
    labels.any(|key| key.contains(keys::LIFECYCLE_DOMAIN))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use testbed::api::FakeApi;

    use super::super::yielder::STEPS_PER_YIELD;
    use super::*;

    const PODS: usize = 700;
    const RULES: usize = 40;
    const CHECKS: usize = 20;

    /// A namespace with many Pods whose operations wait for many rules.
    fn crowded_context() -> Arc<ControllerContext> {
        let context = ControllerContext::at_epoch(FakeApi::default().client());
        for rule in 0..RULES {
            let checks = (0..CHECKS).map(|n| {
                let requires = json!({ "matchLabels": { "never": "there" } });
                json!({ "name": format!("check-{n}"), "labelCheck": { "requires": requires } })
            });
            let name = format!("rule-{rule}");
            let rule = json!({
                "metadata": { "namespace": "n", "name": name, "uid": name, "generation": 1, "resourceVersion": "1" },
                "spec": { "selector": {}, "rules": checks.collect::<Vec<_>>() },
            });
            context
                .index
                .apply_rule(serde_json::from_value(rule).unwrap());
        }
        for pod in 0..PODS {
            let name = format!("pod-{pod:03}");
            let pod = json!({
                "metadata": {
                    "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
                    "labels": {
                        (keys::CONTROL): keys::CONTROL_VALUE,
                        "operating.podopslifecycle.kusionstack.io/id": "1800000000000000000",
                        "pre-check.podopslifecycle.kusionstack.io/id": "1800000000000000000",
                        "operation-type.podopslifecycle.kusionstack.io/id": "update",
                    },
                },
                "spec": { "containers": [{ "name": "app" }] },
            });
            context
                .index
                .apply_pod(serde_json::from_value(pod).unwrap());
        }
        context
    }

    #[tokio::test]
    async fn many_waits_are_judged_and_announced_in_small_parts() {
        let context = crowded_context();
        // The clock of the context is at the epoch, before the waits began.
        let mut notices = WaitNotices::new(SignedDuration::MIN);
        for batches in [2, 1] {
            let mut yielder = Yielder::new();
            let events = collect_wait_events(&context, "n", &mut notices, &mut yielder).await;
            assert_eq!(events.len(), batches * wait_notices::MAX_NOTICES_AT_ONCE);
            let (steps, max_burst, _) = yielder.into_totals();
            let judged = MAX_JUDGED_OPERATIONS * RULES * (CHECKS + 1);
            assert!(steps < judged + 100 * STEPS_PER_YIELD, "{steps}");
            assert!(max_burst <= 2 * STEPS_PER_YIELD, "{max_burst}");
        }
    }
}
