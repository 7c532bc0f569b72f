//! What the employers say about a Pod that waits for their finalizers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use super::AwaitedEmployer;
use super::facts::PodTrafficFacts;
use super::failure::Failure;
use super::pod_needs::{is_leaving, missing_keys};
use super::{stale, stored};
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::{EmployerName, SERVICE};
use crate::domain::traffic::pod_marks::{self, PodMarks};
use crate::domain::traffic::report::EmployerReport;

/// The employers whose finalizers the Pod waits for: to be removed before an operation goes on or the Pod is gone, or to
/// be added before the Pod is available.
pub fn awaited_employers(pod: &Pod) -> Vec<EmployerName> {
    let leaves = is_leaving(pod);
    let missing = match leaves {
        true => Vec::new(),
        false => missing_keys(pod),
    };
    let mut awaited = pod_marks::marking_employers(pod);
    awaited.retain(|name| match leaves {
        true => PodMarks::of(name, pod).protected,
        false => missing.contains(&name.key()),
    });
    awaited
}

/// What each employer says about the Pod.
pub fn pod_traffic_facts(
    pod: &Pod,
    employers: &[AwaitedEmployer],
    now: Timestamp,
) -> Vec<PodTrafficFacts> {
    let facts = employers.iter().map(|awaited| {
        let name = &awaited.name;
        let mut facts = match &awaited.service {
            _ if name.kind != SERVICE => of_other_kind(name),
            None => silent(
                name,
                "it does not exist any more".to_owned(),
                gone_remedy(pod),
            ),
            Some(service) => match stored::report(service) {
                None => unreported(name, service),
                Some(report) => reported(pod, name, report, &stored::former_adapters(service), now),
            },
        };
        if let Some(other) = pod_marks::sharing_employer(name, pod) {
            let cause = format!(
                "{other} has the same name, and so the same finalizer, so no mark of the Pod changes"
            );
            facts.says.insert(0, cause);
            facts.remedy = Some("give one of both employers another name".to_owned());
        }
        facts
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

/// The kind and the name of an employer.
pub fn employer_title(facts: &PodTrafficFacts) -> String {
    let mut parts = facts.employer.split('/');
    let (kind, name) = (parts.next(), parts.next_back());
    format!("{} {}", kind.unwrap_or_default(), name.unwrap_or_default())
}

/// The kind and the name of an employer, with its adapter.
fn title(facts: &PodTrafficFacts) -> String {
    let title = employer_title(facts);
    match &facts.adapter {
        Some(adapter) => format!("{title} (adapter {adapter})"),
        None => title,
    }
}

/// The facts about an employer that says nothing.
fn silent(name: &EmployerName, says: String, remedy: String) -> PodTrafficFacts {
    PodTrafficFacts {
        employer: name.key(),
        service: (name.kind == SERVICE).then(|| name.name.clone()),
        adapter: None,
        says: vec![says],
        last_error: None,
        next_try: None,
        remedy: Some(remedy),
    }
}

/// The mark on the Pod has only the kind of the employer, and not its API group, by which it could be read.
fn of_other_kind(name: &EmployerName) -> PodTrafficFacts {
    let EmployerName {
        kind,
        namespace,
        name: employer,
    } = name;
    let key = keys::CONSIST_STATUS.replace('.', "\\.");
    silent(
        name,
        format!("its report is in its annotation {}", keys::CONSIST_STATUS),
        format!(
            "kubectl get {kind} {employer} -n {namespace} -o jsonpath='{{.metadata.annotations.{key}}}' shows the report"
        ),
    )
}

fn gone_remedy(pod: &Pod) -> String {
    format!(
        "a server that leads and has the feature gate ResourceConsist removes the marks of a Service that is gone; if there \
         is none, remove the finalizer by hand: kubectl edit pod {} -n {}",
        pod.metadata.name, pod.metadata.namespace
    )
}

fn unreported(name: &EmployerName, service: &Service) -> PodTrafficFacts {
    let control = format!("{}: \"{}\"", keys::CONTROL, keys::CONTROL_VALUE);
    let says = match stored::is_managed(service) {
        true => "it has no report about its traffic".to_owned(),
        false => format!("it has no report about its traffic, and no label {control}"),
    };
    let remedy = format!("{} says what is missing", why_command(name));
    PodTrafficFacts {
        adapter: stored::adapter(service),
        ..silent(name, says, remedy)
    }
}

fn why_command(name: &EmployerName) -> String {
    format!(
        "kubectl operating why svc/{} -n {}",
        name.name, name.namespace
    )
}

fn reported(
    pod: &Pod,
    name: &EmployerName,
    report: EmployerReport,
    formers: &[String],
    now: Timestamp,
) -> PodTrafficFacts {
    let members = report.waiting.iter();
    let members = members.filter(|member| member.pod == pod.metadata.name);
    let mut says: Vec<_> = members
        .clone()
        .map(|member| stored::member_text(member, now))
        .collect();
    let overdue = stale::overdue_member(&report, members, now);
    let overdue = overdue.map(|(member, until)| stale::overdue_text(member, until, now));
    says.extend(held_by_move(pod, formers));
    let overlooked = says.is_empty().then(|| stale::overlooks(&report, pod, now));
    let overlooked = overlooked.flatten();
    if let Some((_, since)) = overlooked {
        says.push(format!(
            "its report is out of date: it says that nothing waits, but the Pod has waited for {}",
            messages::format_ago(since, now)
        ));
    }
    let stale = match (&overlooked, &overdue) {
        (Some(_), _) => Some(stale::REMEDY),
        (None, Some(_)) => Some(stale::OVERDUE_REMEDY),
        (None, None) => None,
    };
    if let Some(overdue) = overdue {
        says.insert(0, overdue);
    }
    if says.is_empty() {
        says.push(silence(&report));
    }
    let is_asked = Failure::of(&report, formers) != Some(Failure::NotAsked);
    let choose = || format!("{} says how to choose an adapter", why_command(name));
    let no_adapter = (report.adapter.is_empty() && is_asked).then(choose);
    PodTrafficFacts {
        employer: name.key(),
        service: Some(name.name.clone()),
        remedy: no_adapter.or_else(|| stale.map(str::to_owned)),
        adapter: Some(report.adapter).filter(|adapter| !adapter.is_empty()),
        says,
        last_error: report.last_error,
        next_try: report.next_try,
    }
}

/// Why a move to another adapter keeps the Pod, if it does.
fn held_by_move(pod: &Pod, formers: &[String]) -> Option<String> {
    let names = formers.join(", ");
    (is_leaving(pod) && !formers.is_empty()).then(|| {
        format!("it is not released before adapter {names}, which managed it before, has let it go")
    })
}

/// What a report says that does not name the Pod.
fn silence(report: &EmployerReport) -> String {
    if report.adapter.is_empty() {
        let text = match Failure::of(report, &[]) {
            Some(Failure::NotAsked) => "nothing changes for its traffic",
            _ => "no adapter manages its traffic",
        };
        return text.to_owned();
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
        let awaits = |part| !awaited_employers(&pod(part)).is_empty();
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

    /// The Pod with these entries in its annotation.
    fn expecting(entries: &Value) -> Pod {
        let entries = json!({ "expectedFinalizers": entries }).to_string();
        let annotations = json!({ (keys::AVAILABLE_CONDITIONS): entries });
        pod(json!({ "metadata": { "annotations": annotations } }))
    }

    fn awaited(name: EmployerName, annotations: Value) -> AwaitedEmployer {
        let service = json!({ "metadata": { "annotations": annotations } });
        AwaitedEmployer {
            name,
            service: serde_json::from_value(service).unwrap(),
        }
    }

    #[test]
    fn other_programs_are_not_asked() {
        for (key, finalizer) in [
            ("Service/other/web", web().finalizer()),
            ("Service/shop/web", "prot/slb".to_owned()),
        ] {
            let pod = expecting(&json!({ key: finalizer }));
            assert_eq!(awaited_employers(&pod), [], "{key}");
        }
    }

    #[test]
    fn employer_of_another_kind_is_named_with_the_command_that_reads_it() {
        let gateway = EmployerName::new("Gateway", "shop", "web");
        let pod = expecting(&json!({ (gateway.key()): gateway.finalizer() }));
        assert_eq!(awaited_employers(&pod), std::slice::from_ref(&gateway));
        let awaited = AwaitedEmployer {
            name: gateway,
            service: None,
        };
        let facts = &pod_traffic_facts(&pod, &[awaited], Timestamp::UNIX_EPOCH)[0];
        assert_eq!(
            (&*facts.employer, &facts.service),
            ("Gateway/shop/web", &None)
        );
        let remedy = facts.remedy.as_ref().unwrap();
        assert!(
            remedy.starts_with("kubectl get Gateway web -n shop"),
            "{remedy}"
        );
        let first = describe_first(std::slice::from_ref(facts));
        assert!(first.starts_with("; Gateway web: its report"), "{first}");
    }

    #[test]
    fn employers_that_share_a_finalizer_are_named() {
        let entries =
            json!({ (web().key()): web().finalizer(), "Gateway/shop/web": web().finalizer() });
        let awaited = awaited(web(), json!({}));
        let facts = pod_traffic_facts(&expecting(&entries), &[awaited], Timestamp::UNIX_EPOCH);
        assert!(
            facts[0].says[0].starts_with("Gateway/shop/web has the same name"),
            "{facts:?}"
        );
    }

    #[test]
    fn move_to_another_adapter_keeps_the_pod() {
        let report = json!({ "adapter": "edge", "registered": 1 }).to_string();
        let annotations = json!({
            (keys::CONSIST_ADAPTER_IN_USE): "edge,endpoints", (keys::CONSIST_STATUS): report,
        });
        let says = |pod: &Pod| {
            let awaited = awaited(web(), annotations.clone());
            pod_traffic_facts(pod, &[awaited], Timestamp::UNIX_EPOCH)[0]
                .says
                .join("; ")
        };
        let held =
            "it is not released before adapter endpoints, which managed it before, has let it go";
        let terminating = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert!(says(&pod(terminating)).contains(held));
        assert!(
            !says(&pod(json!({}))).contains(held),
            "it waits for traffic to go on"
        );
    }

    #[test]
    fn report_that_misses_a_long_wait_is_out_of_date() {
        let says = |report: Value, minutes: i64| {
            let annotations = json!({ (keys::CONSIST_STATUS): report.to_string() });
            let metadata = json!({ "deletionTimestamp": "1970-01-01T00:00:00Z", "finalizers": [web().finalizer()] });
            let pod = pod(json!({ "metadata": metadata }));
            let now = Timestamp::from_second(minutes * 60).unwrap();
            let facts = pod_traffic_facts(&pod, &[awaited(web(), annotations)], now).remove(0);
            (facts.says[0].contains("out of date"), facts.remedy)
        };
        let quiet = json!({ "adapter": "edge", "registered": 1 });
        let (is_old, remedy) = says(quiet.clone(), 2);
        assert!(is_old && remedy.unwrap().contains("that a server leads"));
        let trails = says(quiet, 1);
        assert_eq!(trails, (false, None), "a report may trail a little");
        let busy = json!({ "adapter": "edge", "draining": 1 });
        assert_eq!(says(busy, 2), (false, None));
    }

    /// Another adapter would begin a move. This does not mend a panic.
    #[test]
    fn another_adapter_is_advised_only_if_none_can_be_chosen() {
        let remedy = |error: &str| {
            let report = EmployerReport::of_error("", error);
            let now = Timestamp::UNIX_EPOCH;
            reported(&pod(json!({})), &web(), report, &[], now).remedy
        };
        let wrong = format!("annotation {}: no adapter", keys::CONSIST_ADAPTER);
        assert!(remedy(&wrong).unwrap().ends_with("choose an adapter"));
        assert_eq!(remedy("adapter edge: the adapter has panicked"), None);
    }

    #[test]
    fn full_list_of_waiting_members_is_told() {
        let report = EmployerReport {
            adapter: "edge".to_owned(),
            draining: 12,
            waiting: vec![WaitingMember::default(); 10],
            ..EmployerReport::default()
        };
        let facts = reported(&pod(json!({})), &web(), report, &[], Timestamp::UNIX_EPOCH);
        assert!(
            facts.says[0].starts_with("its report lists 10 of 12 members"),
            "{:?}",
            facts.says
        );
        assert_eq!(facts.remedy, None);
    }
}
