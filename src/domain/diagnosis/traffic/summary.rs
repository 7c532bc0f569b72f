//! The answer about a Service in one sentence, and what happens next.

use jiff::Timestamp;

use super::facts::ServiceDiagnosis;
use crate::domain::messages;
use crate::domain::traffic::report::WaitingMember;

/// The summary: the counts, and the cause that explains most.
pub fn summarize(diagnosis: &ServiceDiagnosis) -> String {
    let service = &diagnosis.service;
    let adapter = service.adapter.as_ref();
    let adapter = adapter.map_or_else(String::new, |name| format!(" (adapter {name})"));
    let deleting = match service.deleting_since {
        Some(_) => " is being deleted",
        None => "",
    };
    let title = format!("Service {}{adapter}{deleting}", service.name);
    let first = diagnosis.problems.first();
    let cause = first.map(|problem| problem.reason.clone());
    let waiting = || diagnosis.waiting.first().map(first_wait);
    let counts = service.adapter.is_some() && service.reported;
    let parts = counts.then(|| describe_counts(diagnosis));
    let parts = parts.into_iter().chain(cause.or_else(waiting));
    format!("{title}: {}", parts.collect::<Vec<_>>().join("; "))
}

fn describe_counts(diagnosis: &ServiceDiagnosis) -> String {
    let counts = &diagnosis.counts;
    if counts.pending + counts.draining + counts.failed == 0 && diagnosis.problems.is_empty() {
        let noun = match counts.registered {
            1 => "member",
            _ => "members",
        };
        return format!(
            "traffic is as the Pods need, {} {noun} registered",
            counts.registered
        );
    }
    format!(
        "{} registered, {} pending, {} draining, {} failed",
        counts.registered, counts.pending, counts.draining, counts.failed
    )
}

fn first_wait(member: &WaitingMember) -> String {
    match member.pod.as_str() {
        "" => member.message.clone(),
        pod => format!("{pod}: {}", member.message),
    }
}

/// What happens next, or what the user can do.
pub fn next_steps(diagnosis: &ServiceDiagnosis, now: Timestamp) -> Vec<String> {
    let service = &diagnosis.service;
    let mut steps = Vec::new();
    if service.deleting_since.is_some() {
        let marked = diagnosis.pods.as_ref();
        let marked = marked.map_or(0, |pods| pods.protected.count + pods.awaiting.count);
        steps.push(match marked {
            0 => "the Service is gone when its finalizers are removed".to_owned(),
            count => format!(
                "the Service is gone when {} lost its marks, and its finalizers are removed",
                messages::count_pods_with_verb(count, "has", "have")
            ),
        });
    }
    if let Some(next_try) = diagnosis.next_try {
        steps.push(match next_try.duration_since(now).as_secs() {
            remaining @ 1.. => format!(
                "the server repeats the call in {}",
                messages::format_age(remaining)
            ),
            // The report is not written again for each try, so it does not tell whether a server runs.
            _ => "a server that leads repeats the call again and again; check that one leads"
                .to_owned(),
        });
    }
    let problems = diagnosis.problems.iter();
    steps.extend(problems.filter_map(|problem| problem.remedy.clone()));
    let mut waiting = diagnosis.waiting.iter();
    steps.extend(waiting.find(|member| !member.pod.is_empty()).map(|member| {
        format!(
            "more about the Pod of a member: kubectl operating why pod/{} -n {}",
            member.pod, service.namespace
        )
    }));
    steps
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::{ObservedService, diagnose_service};
    use super::*;
    use crate::api::keys;

    /// The diagnosis of a Service with these labels and this report, a minute after the epoch.
    fn diagnose(labels: serde_json::Value, report: serde_json::Value) -> ServiceDiagnosis {
        let annotations = json!({ (keys::CONSIST_STATUS): report.to_string() });
        let metadata = json!({ "name": "web", "labels": labels, "annotations": annotations });
        let observed = ObservedService {
            service: serde_json::from_value(json!({ "metadata": metadata })).unwrap(),
            pods: None,
            unmanaged_pods: Vec::new(),
            notes: Vec::new(),
        };
        diagnose_service(&observed, Timestamp::from_second(60).unwrap())
    }

    #[test]
    fn next_try_that_is_over_has_no_time() {
        let steps = |next_try: &str| {
            let report = json!({ "adapter": "edge", "lastError": "down", "nextTry": next_try });
            diagnose(json!({ (keys::CONTROL): "true" }), report).next
        };
        let next = "the server repeats the call in 5s";
        assert_eq!(steps("1970-01-01T00:01:05Z")[0], next);
        let over = "a server that leads repeats the call again and again; check that one leads";
        assert_eq!(steps("1970-01-01T00:00:30Z")[0], over);
    }

    #[test]
    fn refused_release_is_the_problem_of_a_service_without_label() {
        let diagnosis = diagnose(
            json!({}),
            json!({ "adapter": "edge", "lastError": "a Pod can't be marked" }),
        );
        let reason = &diagnosis.problems[0].reason;
        assert!(
            reason.ends_with("the server can't release it: a Pod can't be marked"),
            "{reason}"
        );
    }
}
