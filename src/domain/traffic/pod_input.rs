//! What the plan of an employer must know of a Pod.

use std::collections::BTreeSet;

use traffic::plan::PodInput;
use traffic::{PodId, PodPort};

use crate::api::keys::{self, Family};
use crate::domain::lifecycle::{Phase, stored_phases};
use crate::domain::pod::{Container, Pod};

/// The Pod for the plan of an employer that selects it, or does not, and protects it, or does not.
pub fn pod_input(pod: &Pod, selected: bool, protected: bool) -> PodInput {
    // In the order in which Kubernetes resolves the named port of a Service.
    let is_sidecar = |init: &&Container| init.restart_policy.as_deref() == Some("Always");
    let sidecars = pod.spec.init_containers.iter().filter(is_sidecar);
    let containers = pod.spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| &container.ports);
    let ports = ports.map(|port| PodPort {
        name: port.name.clone(),
        number: port.container_port,
        protocol: match port.protocol.as_str() {
            "" => "TCP".to_owned(),
            protocol => protocol.to_owned(),
        },
    });
    let pod_of_load_balancer = traffic::Pod {
        id: PodId {
            uid: pod.metadata.uid.clone(),
            name: pod.metadata.name.clone(),
        },
        addresses: pod.status.addresses.clone(),
        node: pod.spec.node_name.to_string(),
        labels: pod.metadata.labels.clone(),
        ports: ports.collect(),
        on: should_serve(pod),
    };
    PodInput {
        pod: pod_of_load_balancer,
        selected,
        protected,
        ended: have_containers_ended(pod),
        operations: operations_off_traffic(pod),
        ready_since: ready_since(pod),
    }
}

/// Since when the Pod is Ready, or is not.
fn ready_since(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.clone()
}

/// The operations that keep the Pod off traffic, each with the time of its begin, and its deletion.
fn operations_off_traffic(pod: &Pod) -> BTreeSet<String> {
    let phases = stored_phases(pod).into_iter();
    let off = phases.filter(|(_, phase)| phase.holds_offline());
    let begun = off.filter_map(|(id, _)| {
        // The operator writes the first time, which may be the same each time; the webhook writes the second one.
        let begin = pod.label(&Family::Operating.key(&id))?;
        let checked = pod.label(&Family::PreChecked.key(&id));
        Some(format!("{id}={begin}/{}", checked.unwrap_or_default()))
    });
    let deletion = pod.is_terminating().then(|| "deletion".to_owned());
    begun.chain(deletion).collect()
}

/// Whether the Pod should take traffic: it is Ready, its lifecycle keeps it on traffic, and its deletion has not begun.
/// The condition of the lifecycle counts beside Ready, because the kubelet of a dead node does not change Ready.
pub fn should_serve(pod: &Pod) -> bool {
    let kept_on = match pod.has_service_ready_gate() {
        true => pod.condition(keys::SERVICE_READY) != Some(false),
        // The lifecycle can't turn such a Pod off by a condition.
        false => !stored_phases(pod).into_values().any(Phase::holds_offline),
    };
    !pod.is_terminating() && pod.is_ready() && kept_on
}

/// Whether no container of the Pod answers any more: it has finished, or its deletion has come so far that the kubelet
/// has reported the end of all containers.
fn have_containers_ended(pod: &Pod) -> bool {
    let reported = pod.metadata.deletion_grace_period_seconds == Some(0);
    pod.is_finished() || pod.is_terminating() && reported
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(ready: &str, service_ready: Option<&str>, metadata: Value) -> Pod {
        let mut conditions = vec![json!({ "type": "Ready", "status": ready })];
        let gate = |status| json!({ "type": keys::SERVICE_READY, "status": status });
        conditions.extend(service_ready.map(gate));
        serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {
                "nodeName": "node-1",
                "readinessGates": service_ready.map(|_| [json!({ "conditionType": keys::SERVICE_READY })]),
                "containers": [{ "name": "web", "ports": [{ "name": "http", "containerPort": 8080 }] }],
            },
            "status": { "conditions": conditions, "podIPs": [{ "ip": "10.0.0.7" }, { "ip": "fd00::7" }] },
        }))
        .unwrap()
    }

    #[test]
    fn pod_serves_while_ready_and_kept_on_traffic() {
        let serves = |ready, gate| should_serve(&pod(ready, gate, json!({})));
        assert!(serves("True", Some("True")));
        assert!(serves("True", None), "a Pod without the gate");
        assert!(!serves("True", Some("False")), "the kubelet lags behind");
        assert!(!serves("False", Some("True")));
        assert!(!serves("Unknown", None));
        let terminating = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert!(!should_serve(&pod("True", Some("True"), terminating)));
    }

    #[test]
    fn addresses_and_ports_are_read() {
        let input = pod_input(
            &pod("True", None, json!({ "name": "web-0", "uid": "u" })),
            true,
            false,
        );
        let port = &input.pod.ports[0];
        assert_eq!(
            (&*port.name, port.number, &*port.protocol),
            ("http", 8080, "TCP")
        );
        let addresses: Vec<_> = input
            .pod
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(addresses, ["10.0.0.7", "fd00::7"]);
        assert_eq!(input.pod.node, "node-1");
        assert!(input.pod.on && input.selected && !input.ended);
    }

    #[test]
    fn operations_that_keep_the_pod_off_are_told_with_their_begin() {
        let label = |family: Family, id: &str| family.key(id);
        let metadata = json!({ "labels": {
            (label(Family::Operating, "off")): "7",
            (label(Family::OperationType, "off")): "update",
            (label(Family::PreChecked, "off")): "8",
            (label(Family::Preparing, "off")): "8",
            (label(Family::Operating, "waits")): "9",
            (label(Family::OperationType, "waits")): "update",
            (label(Family::PreCheck, "waits")): "9",
        } });
        let input = pod_input(&pod("False", None, metadata), true, true);
        assert_eq!(input.operations, ["off=7/8".to_owned()].into());
    }

    #[test]
    fn containers_have_ended_when_the_kubelet_said_so() {
        let terminating = |seconds: i64| {
            json!({
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": seconds,
            })
        };
        assert!(!pod_input(&pod("False", None, terminating(30)), true, true).ended);
        assert!(pod_input(&pod("False", None, terminating(0)), true, true).ended);
    }
}
