//! The context of a Pod without its rules: the namespace, the scheduler, PodDisruptionBudgets, the Deployment, and the
//! API server's answer to a deletion.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::facts::{DisruptionBudgetFacts, DryRunDeletion};
use super::traffic::AwaitedEmployer;
use crate::api::poddecoration::PodDecoration;
use crate::api::selector::Selector;
use crate::domain::pod::Pod;

/// The context of a Pod. Each field may be missing, because it is read with the rights of the user.
#[derive(Clone, Debug, Default)]
pub struct PodContext {
    /// Why the namespace is excluded: the clause of [`crate::domain::rules::conditions::exclusion_reason`].
    pub excluded: Option<String>,
    /// Message of the condition `PodScheduled` if it is False.
    pub unscheduled: Option<String>,
    /// PodDisruptionBudgets of the namespace.
    pub disruption_budgets: Vec<PodDisruptionBudget>,
    /// PodDecorations of the namespace. `None` if they could not be read, or if no CollaSet controls the Pod.
    pub decorations: Option<Vec<PodDecoration>>,
    /// The employers whose finalizers the Pod waits for, unless they could not be read.
    pub employers: Vec<AwaitedEmployer>,
    /// The API server's answer to a dry-run deletion.
    pub dry_run_deletion: Option<DryRunDeletion>,
    /// Name of the Deployment behind the Pod's ReplicaSet, if its strategy is `Recreate`.
    pub recreate: Option<String>,
}

/// The PodDisruptionBudgets that select a Pod, and whether each allows an eviction of the Pod now.
///
/// This function follows the API server's `EvictionREST` (`canIgnorePDB`, `checkAndDecrement`).
pub fn disruption_budget_facts(
    budgets: &[PodDisruptionBudget],
    pod: &Pod,
) -> Vec<DisruptionBudgetFacts> {
    if pod.is_terminating() || pod.is_finished() || pod.status.phase == "Pending" {
        return Vec::new(); // no PodDisruptionBudget holds evictions of such Pods
    }
    let selecting: Vec<_> = budgets
        .iter()
        .filter(|budget| pdb_selects(budget, pod))
        .collect();
    let has_several = selecting.len() > 1;
    let budget_facts = |budget: &&PodDisruptionBudget| {
        let (holds, reason) = match has_several {
            true => (
                true,
                "more than one PodDisruptionBudget selects the Pod: the API server refuses such evictions; keep one of them"
                    .to_owned(),
            ),
            false => judge_pdb(budget, pod),
        };
        DisruptionBudgetFacts {
            name: budget.metadata.name.clone().unwrap_or_default(),
            holds,
            reason,
        }
    };
    selecting.iter().map(budget_facts).collect()
}

/// In `policy/v1` an empty selector selects every Pod, and a missing selector selects no Pod.
fn pdb_selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let spec = budget.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    selector
        .and_then(|selector| Selector::compile(selector).ok())
        .is_some_and(|selector| selector.matches(&pod.metadata.labels))
}

fn judge_pdb(budget: &PodDisruptionBudget, pod: &Pod) -> (bool, String) {
    let status = budget.status.clone().unwrap_or_default();
    let (allowed, healthy, desired) = (
        status.disruptions_allowed.unwrap_or(0),
        status.current_healthy.unwrap_or(0),
        status.desired_healthy.unwrap_or(0),
    );
    let figures = format!("{healthy} Pods are healthy, {desired} must be");
    if !pod.is_ready() {
        let spec = budget.spec.as_ref();
        let policy = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
        if policy == Some("AlwaysAllow") {
            let reason = "the Pod is not Ready, and unhealthyPodEvictionPolicy is AlwaysAllow";
            return (false, reason.to_owned());
        }
        if desired > 0 && healthy >= desired {
            return (false, format!("the Pod is not Ready: {figures}"));
        }
    }
    let observed = status.observed_generation.unwrap_or(0);
    if observed < budget.metadata.generation.unwrap_or(0) {
        let reason = "the disruption controller has not yet seen its present spec";
        return (true, reason.to_owned());
    }
    match allowed {
        ..=0 => (true, format!("no disruption is allowed: {figures}")),
        allowed => (
            false,
            format!("{allowed} disruptions are allowed: {figures}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(ready: bool, status: Value) -> Pod {
        let ready = if ready { "True" } else { "False" };
        let mut pod = json!({
            "metadata": { "name": "web-0", "labels": { "app": "web" } },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
        });
        json_patch::merge(&mut pod["status"], &status);
        serde_json::from_value(pod).unwrap()
    }

    fn budget(allowed: i32, healthy: i32, policy: Option<&str>) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": { "name": "pdb", "generation": 1 },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "unhealthyPodEvictionPolicy": policy },
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2,
                "expectedPods": 2,
            },
        }))
        .unwrap()
    }

    #[test]
    fn disruption_budget_holds_as_api_server_does() {
        let (up, down) = (pod(true, json!({})), pod(false, json!({})));
        let holds = |budget: PodDisruptionBudget, pod: &Pod| {
            let facts = disruption_budget_facts(&[budget], pod);
            facts.iter().any(|facts| facts.holds)
        };
        assert!(holds(budget(0, 2, None), &up));
        assert!(!holds(budget(1, 3, None), &up));
        assert!(!holds(budget(0, 2, None), &down));
        assert!(holds(budget(0, 1, None), &down));
        assert!(!holds(budget(0, 1, Some("AlwaysAllow")), &down));
        let pending = pod(false, json!({ "phase": "Pending" }));
        assert!(!holds(budget(0, 1, None), &pending));
        let mut stale = budget(1, 3, None);
        stale.metadata.generation = Some(2);
        assert!(holds(stale, &up));
        let two = disruption_budget_facts(&[budget(1, 3, None), budget(1, 3, None)], &up);
        assert!(two.iter().all(|facts| facts.holds));
    }
}
