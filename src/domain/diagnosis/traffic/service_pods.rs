//! The Pods that a Service selects or has marked.

use k8s_openapi::api::core::v1::Service;

use super::facts::{PodNames, ServicePods};
use super::stored;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::{EmployerName, SERVICE};
use crate::domain::traffic::pod_marks::PodMarks;

/// Most names of Pods in each list.
const MAX_NAMES: usize = 20;

/// Sorts the managed Pods of the namespace of a Service.
pub fn service_pods(service: &Service, pods: &[Pod]) -> ServicePods {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let employer = EmployerName::new(SERVICE, namespace, name);
    let marks: Vec<_> = pods
        .iter()
        .map(|pod| (pod.metadata.name.as_str(), PodMarks::of(&employer, pod)))
        .collect();
    let names = |test: fn(PodMarks) -> bool| {
        let marked = marks.iter().filter(|(_, marks)| test(*marks));
        pod_names(marked.map(|(name, _)| *name).collect())
    };
    ServicePods {
        selected: pods
            .iter()
            .filter(|pod| stored::selects(service, pod))
            .count(),
        protected: names(|marks| marks.protected),
        awaiting: names(|marks| marks.expected && !marks.protected),
    }
}

fn pod_names(mut names: Vec<&str>) -> PodNames {
    names.sort_unstable();
    let first = names.iter().take(MAX_NAMES);
    PodNames {
        count: names.len(),
        names: first.map(|name| (*name).to_owned()).collect(),
    }
}
