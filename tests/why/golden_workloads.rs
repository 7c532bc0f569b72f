//! Workloads of `tests/golden/why-workload`: `NAME.yaml` is the workload with its Pods, `NAME.txt` and `NAME.json` are the
//! output of `operating why cls/NAME` and of the other kinds. `UPDATE=1 cargo test --test why golden` rewrites the output.

use std::sync::Arc;

use operating::cli::why::workload_tree;
use operating::domain::diagnosis::PodContext;
use operating::domain::diagnosis::workload::{ObservedWorkload, StoredWorkload, diagnose_workload};
use operating::domain::pod::Pod;
use serde::Deserialize;
use serde_json::Value;

use crate::golden::{Shape, pod, read, rule};
use crate::golden_jobs::compare_with_golden_files;

/// A workload with the Pods of its namespace. A Pod belongs to the workload by the UID of its controller, which is the
/// name of the controller.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Situation {
    kind: String,
    object: Value,
    #[serde(default)]
    replica_sets: Vec<Value>,
    /// `null` if the user may not list Pods.
    pods: Option<Vec<Shape>>,
    /// `null` if the user may not list rules.
    #[serde(default = "no_rules")]
    rules: Option<Vec<Value>>,
    #[serde(default)]
    disruption_budgets: Vec<Value>,
    excluded: Option<String>,
    #[serde(default)]
    notes: Vec<String>,
}

fn no_rules() -> Option<Vec<Value>> {
    Some(Vec::new())
}

fn stored(kind: &str, object: Value, replica_sets: Vec<Value>) -> StoredWorkload {
    match kind {
        "CollaSet" => StoredWorkload::from_collaset(read(object)),
        "Deployment" => {
            let sets: Vec<_> = replica_sets.into_iter().map(read).collect();
            StoredWorkload::from_deployment(&read(object), &sets)
        }
        "StatefulSet" => StoredWorkload::from_stateful_set(&read(object)),
        "DaemonSet" => StoredWorkload::from_daemon_set(&read(object)),
        "ReplicaSet" => StoredWorkload::from_replica_set(&read(object)),
        kind => panic!("{kind} is no workload"),
    }
}

#[test]
fn golden_files_match_diagnoses_of_workloads() {
    compare_with_golden_files("why-workload", 20, |situation: Situation, now| {
        let workload = stored(&situation.kind, situation.object, situation.replica_sets);
        let all: Option<Vec<Arc<Pod>>> = situation
            .pods
            .map(|shapes| shapes.iter().map(pod).collect());
        let is_own = |pod: &&Arc<Pod>| {
            let owner = pod.controller();
            owner.is_some_and(|owner| workload.controller_uids.contains(&owner.uid))
        };
        let own = |all: &Vec<Arc<Pod>>| all.iter().filter(is_own).cloned().collect();
        let observed = ObservedWorkload {
            pods: all.as_ref().map(own),
            managed_pods: all.unwrap_or_default(),
            rules: situation
                .rules
                .map(|rules| rules.into_iter().map(rule).collect()),
            jobs: None,
            context: PodContext {
                excluded: situation.excluded,
                disruption_budgets: situation.disruption_budgets.into_iter().map(read).collect(),
                ..PodContext::default()
            },
            notes: situation.notes,
            workload,
        };
        let diagnosis = diagnose_workload(&observed, now);
        let json = serde_json::to_string_pretty(&diagnosis).unwrap();
        (workload_tree::render_workload(&diagnosis, now), json)
    });
}
