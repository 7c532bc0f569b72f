//! What the Services say about a Pod that waits for their finalizers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use super::AwaitedService;
use super::facts::PodTrafficFacts;
use super::stored;
use crate::api::keys;
use crate::domain::lifecycle::service_obstacles::{self, ServiceObstacle};
use crate::domain::lifecycle::{Phase, stored_phases};
use crate::domain::pod::Pod;
use crate::domain::traffic::names::{EmployerName, SERVICE};
use crate::domain::traffic::pod_marks::{self, PodMarks};
use crate::domain::traffic::report::EmployerReport;

/// The Services whose finalizers the Pod waits for: to be removed before an operation goes on or the Pod is gone, or to
/// be added before the Pod is available.
pub fn awaited_services(pod: &Pod) -> Vec<EmployerName> {
    let phases = stored_phases(pod);
    let is_preparing = phases.values().any(|phase| *phase == Phase::Preparing);
    let leaves = pod.is_terminating() || is_preparing;
    let missing = match leaves {
        true => Vec::new(),
        false => missing_keys(pod),
    };
    let mut awaited = pod_marks::marking_employers(pod);
    awaited.retain(|name| {
        let is_awaited = match leaves {
            true => PodMarks::of(name, pod).protected,
            false => missing.contains(&name.key()),
        };
        name.kind == SERVICE && is_awaited
    });
    awaited
}

/// The keys of the finalizers that a Pod lacks, if the kubelet and the lifecycle want it on traffic.
fn missing_keys(pod: &Pod) -> Vec<String> {
    if !pod.is_managed() || !pod.is_ready() || pod.is_finished() {
        return Vec::new();
    }
    let phases = stored_phases(pod);
    let completing = phases
        .iter()
        .filter(|(_, phase)| **phase == Phase::Completing);
    let completing: Vec<&str> = completing.map(|(id, _)| id.as_str()).collect();
    let obstacles = service_obstacles::service_obstacles(pod, &completing).into_iter();
    let key = |obstacle| match obstacle {
        ServiceObstacle::Finalizer(key, _) => Some(key),
        _ => None,
    };
    obstacles.filter_map(key).collect()
}

/// What each Service says about the Pod.
pub fn pod_traffic_facts(
    pod: &Pod,
    services: &[AwaitedService],
    now: Timestamp,
) -> Vec<PodTrafficFacts> {
    let facts = services.iter().map(|awaited| {
        let name = &awaited.name.name;
        match &awaited.service {
            None => silent(
                name,
                "it does not exist any more".to_owned(),
                gone_remedy(pod),
            ),
            Some(service) => match stored::report(service) {
                None => unreported(name, service),
                Some(report) => reported(pod, name, report, now),
            },
        }
    });
    facts.collect()
}

/// The first clause about the traffic of a Pod, to be added to a sentence. Empty if there is none.
pub fn describe_first(traffic: &[PodTrafficFacts]) -> String {
    let first = traffic.first().and_then(|facts| {
        let text = facts.says.first()?;
        Some(format!("; {}: {text}", title(facts)))
    });
    first.unwrap_or_default()
}

/// The name of a Service with its adapter.
fn title(facts: &PodTrafficFacts) -> String {
    match &facts.adapter {
        Some(adapter) => format!("Service {} (adapter {adapter})", facts.service),
        None => format!("Service {}", facts.service),
    }
}

/// The facts about a Service that says nothing.
fn silent(service: &str, says: String, remedy: String) -> PodTrafficFacts {
    PodTrafficFacts {
        service: service.to_owned(),
        adapter: None,
        says: vec![says],
        last_error: None,
        next_try: None,
        remedy: Some(remedy),
    }
}

fn gone_remedy(pod: &Pod) -> String {
    format!(
        "a server that leads and has the feature gate ResourceConsist removes the marks of a Service that is gone; if there \
         is none, remove the finalizer by hand: kubectl edit pod {} -n {}",
        pod.metadata.name, pod.metadata.namespace
    )
}

fn unreported(name: &str, service: &Service) -> PodTrafficFacts {
    let control = format!("{}: \"{}\"", keys::CONTROL, keys::CONTROL_VALUE);
    let says = match stored::is_managed(service) {
        true => "it has no report about its traffic".to_owned(),
        false => format!("it has no report about its traffic, and no label {control}"),
    };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let remedy = format!("kubectl operating why svc/{name} -n {namespace} says what is missing");
    PodTrafficFacts {
        adapter: stored::adapter(service),
        ..silent(name, says, remedy)
    }
}

fn reported(pod: &Pod, name: &str, report: EmployerReport, now: Timestamp) -> PodTrafficFacts {
    let members = report.waiting.iter();
    let members = members.filter(|member| member.pod == pod.metadata.name);
    let mut says: Vec<_> = members
        .map(|member| stored::member_text(member, now))
        .collect();
    if says.is_empty() {
        says.push(silence(&report));
    }
    PodTrafficFacts {
        service: name.to_owned(),
        remedy: report.adapter.is_empty().then(|| {
            let namespace = &pod.metadata.namespace;
            format!("kubectl operating why svc/{name} -n {namespace} says how to choose an adapter")
        }),
        adapter: Some(report.adapter).filter(|adapter| !adapter.is_empty()),
        says,
        last_error: report.last_error,
        next_try: report.next_try,
    }
}

/// What a report says that does not name the Pod.
fn silence(report: &EmployerReport) -> String {
    if report.adapter.is_empty() {
        return "no adapter manages its traffic".to_owned();
    }
    let (_, reason, _) = report.condition();
    let listed = report.waiting.len();
    match report.pending + report.draining {
        all if all > listed => format!(
            "its report lists {listed} of {all} members that wait, and none of this Pod; {reason}: {}",
            report.counts()
        ),
        _ => format!(
            "its report does not name this Pod; {reason}: {}",
            report.counts()
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys::Family;
    use crate::domain::traffic::report::WaitingMember;

    fn web() -> EmployerName {
        EmployerName::new(SERVICE, "shop", "web")
    }

    /// A managed Pod that is Ready and that Service web expects, with this part merged into it.
    fn pod(part: Value) -> Pod {
        let entries = json!({ "expectedFinalizers": { (web().key()): web().finalizer() } });
        let mut pod = json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "u",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
                "annotations": { (keys::AVAILABLE_CONDITIONS): entries.to_string() },
            },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        json_patch::merge(&mut pod, &part);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pod_awaits_the_finalizer_that_its_state_needs() {
        let awaits = |part| !awaited_services(&pod(part)).is_empty();
        let protected = json!([web().finalizer()]);
        let phase = |family: Family, finalizers: &Value| {
            let operating = Family::Operating.key("x");
            let labels = json!({
                (operating): "1", (Family::OperationType.key("x")): "x", (family.key("x")): "1",
            });
            json!({ "metadata": { "labels": labels, "finalizers": finalizers } })
        };
        assert!(awaits(json!({})), "traffic is not on yet");
        assert!(!awaits(json!({ "metadata": { "finalizers": protected } })));
        let unready = json!({ "status": { "conditions": [] } });
        assert!(!awaits(unready), "the kubelet comes first");
        assert!(awaits(phase(Family::Preparing, &protected)));
        assert!(!awaits(phase(Family::Preparing, &json!([]))));
        assert!(!awaits(phase(Family::Operate, &json!([]))));
        assert!(awaits(phase(Family::Completing, &json!([]))));
        let terminating = |finalizers: &Value| {
            let metadata = json!({
                "finalizers": finalizers, "deletionTimestamp": "2026-01-01T00:00:00Z",
            });
            json!({ "metadata": metadata })
        };
        assert!(awaits(terminating(&protected)));
        assert!(!awaits(terminating(&json!([]))));
    }

    #[test]
    fn other_programs_and_kinds_are_not_asked() {
        for (key, finalizer) in [
            ("Gateway/shop/web", web().finalizer()),
            ("Service/other/web", web().finalizer()),
            ("Service/shop/web", "prot/slb".to_owned()),
        ] {
            let entries = json!({ "expectedFinalizers": { key: finalizer } }).to_string();
            let annotations = json!({ (keys::AVAILABLE_CONDITIONS): entries });
            let pod = pod(json!({ "metadata": { "annotations": annotations } }));
            assert_eq!(awaited_services(&pod), [], "{key}");
        }
    }

    #[test]
    fn full_list_of_waiting_members_is_told() {
        let report = EmployerReport {
            adapter: "edge".to_owned(),
            draining: 12,
            waiting: vec![WaitingMember::default(); 10],
            ..EmployerReport::default()
        };
        let facts = reported(&pod(json!({})), "web", report, Timestamp::UNIX_EPOCH);
        assert!(
            facts.says[0].starts_with("its report lists 10 of 12 members"),
            "{:?}",
            facts.says
        );
        assert_eq!(facts.remedy, None);
    }
}
