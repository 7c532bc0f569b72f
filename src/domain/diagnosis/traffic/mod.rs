//! Explains the traffic of Pods by the reports of their employers (ResourceConsist): what Services say about a Pod that
//! waits for their finalizers, and a [`ServiceDiagnosis`] for `kubectl operating why svc/NAME`.
//!
//! | File | Content |
//! |---|---|
//! | `facts` | the data of both |
//! | `stored` | what a stored Service says about its traffic |
//! | `pod_traffic` | what the employers say about a Pod that waits for them |
//! | `pod_needs` | what the lifecycle and the kubelet want of the traffic of a Pod |
//! | `service_pods` | the Pods that a Service selects or has marked |
//! | `failure` | what kind of failure a report names |
//! | `problems` | why the traffic of a Service is not managed as it should be, with remedies |
//! | `waits` | since when a Pod waits for its traffic |
//! | `stale` | how a report that nobody keeps up to date is recognised |
//! | `summary` | the answer about a Service in one sentence, and what happens next |

pub mod facts;
mod failure;
mod pod_needs;
mod pod_traffic;
mod problems;
mod service_pods;
mod stale;
mod stored;
mod summary;
mod waits;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use self::facts::{MemberCounts, PodNames, ServiceDiagnosis, ServiceFacts};
pub use self::pod_traffic::{awaited_employers, describe_first, employer_title, pod_traffic_facts};
pub use self::stored::{is_managed, selector};
pub use self::waits::{Direction, traffic_wait};
use crate::api::keys;
use crate::domain::pod::Pod;
use crate::domain::traffic::drain_seconds::asked_drain_time;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::report::WaitingMember;

/// An employer for which a Pod waits.
#[derive(Clone, Debug)]
pub struct AwaitedEmployer {
    /// Its name, from the annotation of the Pod.
    pub name: EmployerName,
    /// The stored Service. `None` if it does not exist, or if the employer is of another kind.
    pub service: Option<Service>,
}

/// The observed state from which the diagnosis of a Service is made.
#[derive(Clone, Debug)]
pub struct ObservedService {
    /// The Service.
    pub service: Service,
    /// The managed Pods of the namespace. `None` if they could not be read.
    pub pods: Option<Vec<Pod>>,
    /// Names of the Pods that the Service selects and that are not managed. Only read if the traffic of the Service is to
    /// be managed.
    pub unmanaged_pods: Vec<String>,
    /// What could not be read, and the cause.
    pub notes: Vec<String>,
}

/// Makes the diagnosis of a Service.
pub fn diagnose_service(observed: &ObservedService, now: Timestamp) -> ServiceDiagnosis {
    let service = &observed.service;
    let report = stored::report(service).unwrap_or_default();
    let pods = observed
        .pods
        .as_ref()
        .map(|pods| service_pods::service_pods(service, pods, &observed.unmanaged_pods));
    let unlisted = (report.pending + report.draining).saturating_sub(report.waiting.len());
    let unlisted_pods = match unlisted {
        0 => PodNames::default(),
        _ => service_pods::unlisted(observed, &report),
    };
    let waiting = report.waiting.iter().cloned();
    let waiting = waiting.map(|member| WaitingMember {
        message: stored::member_text(&member, now),
        ..member
    });
    let mut diagnosis = ServiceDiagnosis {
        summary: String::new(),
        service: service_facts(service),
        counts: MemberCounts {
            registered: report.registered,
            pending: report.pending,
            draining: report.draining,
            failed: report.failed,
        },
        waiting: waiting.collect(),
        unlisted,
        unlisted_pods,
        last_error: report.last_error.clone(),
        next_try: report.next_try,
        problems: problems::problems(observed, pods.as_ref(), now),
        pods,
        next: Vec::new(),
        notes: observed.notes.clone(),
    };
    diagnosis.summary = summary::summarize(&diagnosis);
    diagnosis.next = summary::next_steps(&diagnosis, now);
    diagnosis
}

fn service_facts(service: &Service) -> ServiceFacts {
    let metadata = &service.metadata;
    let annotation = |key| stored::annotation(service, key).map(str::to_owned);
    ServiceFacts {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        managed: stored::is_managed(service),
        reported: stored::report(service).is_some(),
        adapter: stored::adapter(service),
        wanted_adapter: annotation(keys::CONSIST_ADAPTER),
        former_adapters: stored::former_adapters(service),
        drain_seconds: annotation(keys::CONSIST_DRAIN_SECONDS),
        drain_error: metadata
            .annotations
            .as_ref()
            .and_then(|annotations| asked_drain_time(annotations).err()),
        deleting_since: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
    }
}
