//! Why the traffic of a Service is not managed as it should be, with remedies.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use super::ObservedService;
use super::facts::{ProblemFacts, ServicePods};
use super::failure::Failure;
use super::waits::Direction;
use super::{stale, stored};
use crate::api::keys;
use crate::domain::messages;
use crate::domain::traffic::report::EmployerReport;

/// The problems of a Service. The cause that explains most comes first.
pub fn problems(
    observed: &ObservedService,
    pods: Option<&ServicePods>,
    now: Timestamp,
) -> Vec<ProblemFacts> {
    let service = &observed.service;
    if !stored::is_managed(service) {
        return vec![unmanaged(service)];
    }
    let report = stored::report(service);
    let Some(report) = report else {
        return vec![unreported(service)];
    };
    let selection = pods.and_then(|pods| selection(observed, pods, &report));
    failure(service, &report)
        .into_iter()
        .chain(out_of_date(observed, &report, now))
        .chain(overdue(&report, now))
        .chain(selection)
        .collect()
}

/// Most names of Pods in a reason.
const MAX_NAMES: usize = 3;

/// What the server does after a failure of its own.
const TRIED_AGAIN: &str = "the server tries again when the Service or a Pod changes, and repeats refused writes every 32 s at the latest";

fn problem(reason: impl Into<String>, remedy: impl Into<String>) -> ProblemFacts {
    ProblemFacts {
        reason: reason.into(),
        remedy: Some(remedy.into()),
    }
}

/// A `kubectl` command on the Service: `verb` with the change.
fn command(service: &Service, verb: &str, change: &str) -> String {
    let metadata = &service.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("kubectl {verb} service {name} -n {namespace} {change}")
}

fn unmanaged(service: &Service) -> ProblemFacts {
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    let error = stored::report(service).and_then(|report| report.last_error);
    if let Some(error) = error {
        return problem(
            format!("it has no label {key}: \"{value}\", and the server can't release it: {error}"),
            TRIED_AGAIN,
        );
    }
    if stored::is_held(service) {
        return problem(
            format!("it has no label {key}: \"{value}\", and the server has not released it yet"),
            "check that a server leads and has the feature gate ResourceConsist: it removes the marks of the Pods, and then \
             the finalizer of the Service",
        );
    }
    let command = command(service, "label", &format!("{key}={value}"));
    problem(
        format!("it has no label {key}: \"{value}\", so its traffic is not managed"),
        format!("to manage its traffic: {command}"),
    )
}

fn unreported(service: &Service) -> ProblemFacts {
    let key = keys::CONSIST_ADAPTER;
    let reason = "no server has reported on its traffic";
    if stored::adapter(service).is_some() || stored::annotation(service, key).is_some() {
        return problem(
            reason,
            "check that a server leads and has the feature gate ResourceConsist, and read its log",
        );
    }
    let command = command(service, "annotate", &format!("{key}=endpoints"));
    problem(
        reason,
        format!(
            "no adapter claims the Service, and the servers may have no default adapter for this namespace (--traffic-config): name an adapter, \
             such as the built-in one: {command}; otherwise check that a server leads and has the feature gate \
             ResourceConsist"
        ),
    )
}

/// The problem that nobody keeps the report up to date.
fn out_of_date(
    observed: &ObservedService,
    report: &EmployerReport,
    now: Timestamp,
) -> Option<ProblemFacts> {
    let (pod, direction, since) = stale::overlooked_pod(observed, report, now)?;
    let direction = match direction {
        Direction::Off => "off",
        Direction::On => "on",
    };
    Some(problem(
        format!(
            "its report is out of date: it says that nothing waits, but {} has waited for {} for its traffic to go \
             {direction}",
            pod.metadata.name,
            messages::format_ago(since, now)
        ),
        stale::REMEDY,
    ))
}

/// The problem that a member drains for longer than it should.
fn overdue(report: &EmployerReport, now: Timestamp) -> Option<ProblemFacts> {
    let (member, until) = stale::overdue_member(report, report.waiting.iter(), now)?;
    let reason = stale::overdue_text(member, until, now);
    Some(problem(reason, stale::OVERDUE_REMEDY))
}

/// The failure that the report names. The next steps say when a call is repeated.
fn failure(service: &Service, report: &EmployerReport) -> Option<ProblemFacts> {
    let error = report.last_error.as_ref()?;
    let adapter = &report.adapter;
    let formers = stored::former_adapters(service);
    let or_release = |remedy: &str| match service.metadata.deletion_timestamp {
        Some(_) => format!("{remedy}; {}", release(service)),
        None => remedy.to_owned(),
    };
    Some(match Failure::of(report, &formers)? {
        Failure::NoAdapter => {
            let change = format!("--overwrite {}=NAME", keys::CONSIST_ADAPTER);
            let command = command(service, "annotate", &change);
            problem(
                format!("no adapter manages its traffic: {error}"),
                format!("name an adapter that the servers have: {command}"),
            )
        }
        Failure::NotAsked => problem(
            format!("nothing changes for its traffic: {error}"),
            "read the log of the server that leads; it tries again when the Service changes",
        ),
        Failure::FormerCall(former) => problem(
            error,
            format!(
                "look at the load balancer of adapter {former}, its credentials and the network; {}",
                end_of_move(service)
            ),
        ),
        Failure::FormerGone(_) => problem(error, end_of_move(service)),
        Failure::Fruitless => problem(
            format!("adapter {adapter}: {error}"),
            or_release(
                "look at the log and the configuration of the load balancer, and find out whether another program changes \
                 the same members",
            ),
        ),
        Failure::Call => problem(
            format!("the last call of adapter {adapter} failed: {error}"),
            or_release(
                "correct what the error names, or look at the load balancer, its credentials and the network",
            ),
        ),
        Failure::Other => problem(
            format!("adapter {adapter} can't manage its traffic as it should: {error}"),
            TRIED_AGAIN,
        ),
    })
}

/// How a move ends whose former load balancer is gone.
fn end_of_move(service: &Service) -> String {
    format!(
        "if the former load balancer is gone for good, end the move; members that it still has stay registered: {}",
        command(
            service,
            "annotate",
            &format!("{}-", keys::CONSIST_ADAPTER_IN_USE)
        )
    )
}

/// How a Service goes whose load balancer is gone.
fn release(service: &Service) -> String {
    format!(
        "if the load balancer is gone for good, release the Service and its Pods; members that it still has stay registered: {}",
        command(service, "label", &format!("{}-", keys::CONTROL))
    )
}

/// The problem that the Service selects no managed Pod, or also Pods that are not managed.
fn selection(
    observed: &ObservedService,
    pods: &ServicePods,
    report: &EmployerReport,
) -> Option<ProblemFacts> {
    if observed.service.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if pods.unmanaged.count > 0 {
        return Some(unmanaged_pods(pods));
    }
    let members = report.registered + report.pending + report.draining;
    if pods.selected > 0 || members > 0 {
        return None;
    }
    let selector = stored::selector(&observed.service);
    if selector.is_empty() {
        return Some(problem(
            "spec.selector is empty, so the Service selects no Pod",
            "set spec.selector to labels of the Pods",
        ));
    }
    let labels: Vec<_> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let labels = labels.join(",");
    let namespace = observed.service.metadata.namespace.as_deref();
    let namespace = namespace.unwrap_or_default();
    Some(problem(
        format!("no Pod of namespace {namespace} has the labels of spec.selector ({labels})"),
        format!(
            "correct spec.selector, or see whether the Pods exist: kubectl get pods -n {namespace} -l {labels}"
        ),
    ))
}

/// The problem that the Service selects Pods that are not managed.
fn unmanaged_pods(pods: &ServicePods) -> ProblemFacts {
    let unmanaged = pods.unmanaged.count;
    let verb = match unmanaged {
        1 => "has",
        _ => "have",
    };
    let subject = match pods.selected {
        0 => messages::count_pods(unmanaged),
        selected => format!("{unmanaged} of {} Pods", selected + unmanaged),
    };
    problem(
        format!(
            "{subject} that it selects {verb} no label {}: \"{}\", so their traffic is not managed: {}",
            keys::CONTROL,
            keys::CONTROL_VALUE,
            pods.unmanaged.list(MAX_NAMES)
        ),
        "add the label to the template of these Pods, such as that of their Deployment",
    )
}
