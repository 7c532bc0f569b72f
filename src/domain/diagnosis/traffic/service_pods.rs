//! The Pods that a Service selects or has marked.

use k8s_openapi::api::core::v1::Service;

use super::ObservedService;
use super::facts::{PodNames, ServicePods};
use super::stored;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::{EmployerName, SERVICE};
use crate::domain::traffic::pod_input::should_serve;
use crate::domain::traffic::pod_marks::PodMarks;
use crate::domain::traffic::report::EmployerReport;

/// Most names of Pods in each list.
const MAX_NAMES: usize = 20;

/// Sorts the managed Pods of the namespace of a Service. `unmanaged` are the other Pods that the Service selects.
pub fn service_pods(service: &Service, pods: &[Pod], unmanaged: &[String]) -> ServicePods {
    let employer = employer_name(service);
    let names = |test: &dyn Fn(PodMarks, &Pod) -> bool| {
        let marked = pods.iter();
        let marked = marked.filter(|pod| test(PodMarks::of(&employer, pod), pod));
        pod_names(marked.map(|pod| pod.metadata.name.as_str()).collect())
    };
    ServicePods {
        selected: pods
            .iter()
            .filter(|pod| stored::selects(service, pod))
            .count(),
        unmanaged: pod_names(unmanaged.iter().map(String::as_str).collect()),
        protected: names(&|marks, _| marks.protected),
        // A Service that is not managed any more gives its marks back without a load balancer.
        leaving: names(&|marks, pod| {
            stored::is_managed(service) && marks.protected && !is_wanted(service, pod)
        }),
        awaiting: names(&|marks, _| marks.expected && !marks.protected),
    }
}

/// The Pods that wait for their traffic to go on or off and that the report does not list.
pub fn unlisted(observed: &ObservedService, report: &EmployerReport) -> PodNames {
    let service = &observed.service;
    let employer = employer_name(service);
    let is_listed = |pod: &Pod| {
        let mut listed = report.waiting.iter();
        listed.any(|member| member.pod == pod.metadata.name)
    };
    let waits = |pod: &&Pod| {
        let marks = PodMarks::of(&employer, pod);
        marks.any() && marks.protected != is_wanted(service, pod) && !is_listed(pod)
    };
    let pods = observed.pods.iter().flatten().filter(waits);
    pod_names(pods.map(|pod| pod.metadata.name.as_str()).collect())
}

/// The name of a Service as an employer.
pub fn employer_name(service: &Service) -> EmployerName {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    EmployerName::new(SERVICE, namespace, name)
}

/// Whether the Pod should get traffic of the Service.
fn is_wanted(service: &Service, pod: &Pod) -> bool {
    let is_deleted = service.metadata.deletion_timestamp.is_some();
    !is_deleted && stored::selects(service, pod) && should_serve(pod)
}

fn pod_names(mut names: Vec<&str>) -> PodNames {
    names.sort_unstable();
    let first = names.iter().take(MAX_NAMES);
    PodNames {
        count: names.len(),
        names: first.map(|name| (*name).to_owned()).collect(),
    }
}
