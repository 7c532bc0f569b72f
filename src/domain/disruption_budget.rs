//! PodDisruptionBudgets (policy/v1): whether the API server will refuse an eviction because of them.
//!
//! This module follows the API server's eviction handler, `pkg/registry/core/pod/storage/eviction.go` of Kubernetes
//! 1.36.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::pod::Pod;
use crate::api::selector::Selector;

/// If a status has more disrupted Pods, the API server answers another error (`MaxDisruptedPodSize`).
const MAX_DISRUPTED_PODS: usize = 2000;

/// Reason of the condition `DisruptionAllowed` if the disruption controller can't compute the budget.
const SYNC_FAILED: &str = "SyncFailed";

/// A PodDisruptionBudget, with the fields that an eviction depends on.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "WirePdb")]
pub struct DisruptionBudget {
    pub namespace: String,
    pub name: String,
    /// `None` selects nothing: the selector is absent or invalid.
    selector: Option<Selector>,
    always_allows_unhealthy: bool,
    is_observed: bool,
    current_healthy: i64,
    desired_healthy: i64,
    expected_pods: i64,
    disruptions_allowed: i64,
    disrupted: usize,
    /// Reason and message of the condition `DisruptionAllowed`, if it is False and has a message.
    disallowed: Option<(String, String)>,
}

/// The numbers of a PodDisruptionBudget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetFigures {
    /// How many Ready Pods may be evicted now.
    pub allowed: u32,
    /// Ready Pods whose eviction has not begun.
    pub healthy: u32,
    /// How many Pods must be Ready.
    pub desired: u32,
    /// How many Pods there should be.
    pub expected: u32,
    /// Whether the disruption controller can't compute the budget.
    pub is_failed: bool,
}

/// Why the API server refuses an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionRefusal {
    /// A budget allows no disruption, or was not observed yet: HTTP 429. `cause` is the message of the status cause
    /// `DisruptionBudget`, which names the budget.
    Disallowed {
        /// The message for people.
        cause: String,
    },
    /// Several budgets select the Pod: HTTP 500.
    Several,
}

impl DisruptionBudget {
    /// A budget that selects nothing, for an object of which only the name is known.
    pub fn selecting_nothing(namespace: String, name: String) -> Self {
        DisruptionBudget::from(WirePdb {
            metadata: Metadata {
                namespace,
                name,
                generation: 0,
            },
            spec: None,
            status: None,
        })
    }

    pub fn selects(&self, pod: &Pod) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|s| s.matches(&pod.metadata.labels))
    }

    /// Whether the API server lets an eviction of a Pod that is not Ready pass without using the budget.
    fn allows_unhealthy_eviction(&self) -> bool {
        let is_met = self.current_healthy >= self.desired_healthy && self.desired_healthy > 0;
        self.always_allows_unhealthy || is_met
    }

    /// Whether an eviction of the Pod passes without using the budget.
    pub fn exempts(&self, pod: &Pod) -> bool {
        !pod.is_ready() && self.allows_unhealthy_eviction()
    }

    /// The numbers of the status.
    pub fn figures(&self) -> BudgetFigures {
        let count = |n: i64| u32::try_from(n.max(0)).unwrap_or(u32::MAX);
        BudgetFigures {
            allowed: match self.is_observed {
                true => count(self.disruptions_allowed),
                false => 0,
            },
            healthy: count(self.current_healthy),
            desired: count(self.desired_healthy),
            expected: count(self.expected_pods),
            is_failed: self
                .disallowed
                .as_ref()
                .is_some_and(|(reason, _)| reason == SYNC_FAILED),
        }
    }

    /// Why no eviction passes. `None` if one may pass, or if the API server answers another error.
    fn exhaustion_reason(&self) -> Option<String> {
        let name = &self.name;
        if !self.is_observed {
            return Some(format!(
                "The disruption budget {name} is still being processed by the server."
            ));
        }
        if self.disruptions_allowed != 0 || self.disrupted > MAX_DISRUPTED_PODS {
            return None;
        }
        let (desired, current) = (self.desired_healthy, self.current_healthy);
        Some(match &self.disallowed {
            Some((reason, message)) if reason == SYNC_FAILED => format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
            ),
            _ if current <= desired => format!(
                "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
            ),
            Some((reason, message)) => format!(
                "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
            ),
            None => {
                format!("The disruption budget {name} does not allow evicting pods currently")
            }
        })
    }
}

/// Whether an eviction of the Pod passes whatever the budgets are.
pub fn is_never_asked_about(pod: &Pod) -> bool {
    pod.is_terminating() || pod.is_finished() || pod.status.phase == "Pending"
}

/// Why the API server will refuse the eviction of `pod`, given these budgets of the Pod's namespace. `None` if the
/// eviction may pass.
pub fn eviction_refusal<'a>(
    budgets: impl Iterator<Item = &'a DisruptionBudget>,
    pod: &Pod,
) -> Option<EvictionRefusal> {
    if is_never_asked_about(pod) {
        return None;
    }
    let mut selecting = budgets.filter(|budget| budget.selects(pod));
    let budget = selecting.next()?;
    if selecting.next().is_some() {
        return Some(EvictionRefusal::Several);
    }
    if budget.exempts(pod) {
        return None;
    }
    budget
        .exhaustion_reason()
        .map(|cause| EvictionRefusal::Disallowed { cause })
}

#[derive(Deserialize)]
struct WirePdb {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
    generation: i64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    selector: Option<LabelSelector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
    current_healthy: i64,
    desired_healthy: i64,
    expected_pods: i64,
    disruptions_allowed: i64,
    disrupted_pods: Option<serde_json::Map<String, serde_json::Value>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
}

impl From<WirePdb> for DisruptionBudget {
    fn from(wire: WirePdb) -> Self {
        let (spec, status) = (
            wire.spec.unwrap_or_default(),
            wire.status.unwrap_or_default(),
        );
        let mut conditions = status.conditions.into_iter().flatten();
        let condition = conditions.find(|c| c.type_ == "DisruptionAllowed");
        let disallowed = condition.filter(|c| c.status == "False" && !c.message.is_empty());
        let policy = spec.unhealthy_pod_eviction_policy;
        DisruptionBudget {
            namespace: wire.metadata.namespace,
            name: wire.metadata.name,
            selector: spec.selector.and_then(|s| Selector::compile(&s).ok()),
            always_allows_unhealthy: policy.as_deref() == Some("AlwaysAllow"),
            is_observed: status.observed_generation >= wire.metadata.generation,
            current_healthy: status.current_healthy,
            desired_healthy: status.desired_healthy,
            expected_pods: status.expected_pods,
            disruptions_allowed: status.disruptions_allowed,
            disrupted: status.disrupted_pods.map_or(0, |pods| pods.len()),
            disallowed: disallowed.map(|c| (c.reason, c.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// An observed budget over `app=web` that needs 3 healthy Pods, has 3, and allows no disruption.
    fn budget(patch: Value) -> DisruptionBudget {
        let mut budget = json!({
            "metadata": { "namespace": "n", "name": "web", "generation": 1 },
            "spec": { "minAvailable": 3, "selector": { "matchLabels": { "app": "web" } } },
            "status": {
                "observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3,
                "disruptionsAllowed": 0,
                "conditions": [{ "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "" }],
            },
        });
        json_patch::merge(&mut budget, &patch);
        serde_json::from_value(budget).unwrap()
    }

    fn pod(ready: bool, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1", "labels": { "app": "web" } },
            "status": {
                "phase": phase,
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            },
        }))
        .unwrap()
    }

    fn cause(patch: Value) -> Option<String> {
        match eviction_refusal([budget(patch)].iter(), &pod(true, "Running")) {
            Some(EvictionRefusal::Disallowed { cause }) => Some(cause),
            None => None,
            Some(EvictionRefusal::Several) => unreachable!(),
        }
    }

    #[test]
    fn exhausted_pdb_refuses_in_api_server_words() {
        let needs = "The disruption budget web needs 3 healthy pods and has 3 currently";
        assert_eq!(cause(json!({})).unwrap(), needs);
        let unseen = "The disruption budget web is still being processed by the server.";
        assert_eq!(
            cause(json!({ "metadata": { "generation": 2 } })).unwrap(),
            unseen
        );
        assert_eq!(cause(json!({ "status": null })).unwrap(), unseen);
        let condition = |reason: &str| {
            json!({ "status": { "currentHealthy": 4, "conditions": [
                { "type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why" },
            ] } })
        };
        let failed = cause(condition("SyncFailed")).unwrap();
        assert!(failed.ends_with("because it failed sync: why"), "{failed}");
        let other = cause(condition("Other")).unwrap();
        assert!(
            other.ends_with("evicting pods currently (Other): why"),
            "{other}"
        );
        let more = cause(json!({ "status": { "currentHealthy": 4 } })).unwrap();
        assert!(
            more.ends_with("does not allow evicting pods currently"),
            "{more}"
        );
    }

    #[test]
    fn eviction_that_may_pass_is_not_refused() {
        for patch in [
            json!({ "status": { "disruptionsAllowed": 1 } }),
            json!({ "status": { "disruptionsAllowed": -1 } }), // another error
            json!({ "spec": { "selector": null } }),
            json!({ "spec": { "selector": { "matchLabels": { "app": "other" } } } }),
            json!({ "spec": { "selector": { "matchLabels": { "app": "no label value!" } } } }),
        ] {
            assert_eq!(cause(patch.clone()), None, "{patch}");
        }
        let everything = json!({ "spec": { "selector": { "matchLabels": null } } });
        assert!(cause(everything).is_some(), "an empty selector selects all");
    }

    #[test]
    fn eviction_of_pod_that_does_not_run_passes() {
        let budget = budget(json!({}));
        for phase in ["Pending", "Succeeded", "Failed"] {
            assert_eq!(
                eviction_refusal([&budget].into_iter(), &pod(true, phase)),
                None,
                "{phase}"
            );
        }
        let mut terminating = pod(true, "Running");
        terminating.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(eviction_refusal([&budget].into_iter(), &terminating), None);
    }

    #[test]
    fn unready_pod_passes_by_unhealthy_pod_eviction_policy() {
        let refuses =
            |patch| eviction_refusal([budget(patch)].iter(), &pod(false, "Running")).is_some();
        assert!(!refuses(json!({}))); // enough Pods are healthy
        let missing = json!({ "status": { "currentHealthy": 2 } });
        assert!(refuses(missing.clone()));
        assert!(refuses(
            json!({ "status": { "currentHealthy": 0, "desiredHealthy": 0 } })
        ));
        let mut always = missing;
        always["spec"] = json!({ "unhealthyPodEvictionPolicy": "AlwaysAllow" });
        assert!(!refuses(always));
    }

    #[test]
    fn several_budgets_for_a_pod_are_refused() {
        let both = [
            budget(json!({})),
            budget(json!({ "metadata": { "name": "b" } })),
        ];
        assert_eq!(
            eviction_refusal(both.iter(), &pod(true, "Running")),
            Some(EvictionRefusal::Several)
        );
    }
}
