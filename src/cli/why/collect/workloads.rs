//! Reads workloads and their Pods.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use kube::Resource;
use kube::api::{Api, ListParams};
use serde::de::DeserializeOwned;

use super::namespace_reads::NamespaceReads;
use crate::api::collaset::CollaSet;
use crate::cli::args::WhyKind;
use crate::cli::why::api_reads::{self, ReadNotes};
use crate::cluster::request_path;
use crate::domain::diagnosis::PodContext;
use crate::domain::diagnosis::workload::{ObservedWorkload, StoredWorkload, is_of_deployment};
use crate::domain::pod::Pod;

/// A workload and its Pods. `None` if there is no such workload.
///
/// # Errors
/// If the workload can't be read. For anything else that can't be read there is a note.
pub async fn observe_workload(
    reads: &NamespaceReads,
    kind: WhyKind,
    name: &str,
) -> anyhow::Result<Option<ObservedWorkload>> {
    let mut notes = ReadNotes::default();
    let mut has_replica_sets = true;
    let workload = match kind {
        WhyKind::CollaSet => read_one::<CollaSet>(reads, name)
            .await?
            .map(StoredWorkload::from_collaset),
        WhyKind::StatefulSet => read_one::<StatefulSet>(reads, name)
            .await?
            .map(|set| StoredWorkload::from_stateful_set(&set)),
        WhyKind::DaemonSet => read_one::<DaemonSet>(reads, name)
            .await?
            .map(|set| StoredWorkload::from_daemon_set(&set)),
        WhyKind::ReplicaSet => read_one::<ReplicaSet>(reads, name)
            .await?
            .map(|set| StoredWorkload::from_replica_set(&set)),
        WhyKind::Deployment => match read_one::<Deployment>(reads, name).await? {
            Some(deployment) => {
                let replica_sets = list_replica_sets(reads).await;
                let replica_sets = replica_sets.unwrap_or_else(|e| {
                    notes.add("which Pods are of the present template", &e);
                    has_replica_sets = false;
                    Vec::new()
                });
                Some(StoredWorkload::from_deployment(&deployment, &replica_sets))
            }
            None => None,
        },
        WhyKind::Pod | WhyKind::OperationJob | WhyKind::Service => None,
    };
    let Some(workload) = workload else {
        return Ok(None);
    };
    let is_own = |pod: &Pod| match has_replica_sets {
        true => pod.controller().is_some_and(|owner| {
            let mut uids = workload.controller_uids.iter();
            uids.any(|uid| *uid == owner.uid)
        }),
        false => is_of_deployment(pod, name),
    };
    let all = reads.pods().await;
    let all = all.map_err(|e| notes.add("which Pods wait, and for what", &e));
    let pods = all.as_ref().ok().map(|all| {
        let mut pods: Vec<Arc<Pod>> = all.iter().filter(|pod| is_own(pod)).cloned().collect();
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        pods
    });
    let rules = reads.rules().await;
    let rules = rules.map_err(|e| notes.add("which rules hold its Pods", &e));
    let disruption_budgets = reads.disruption_budgets().await.unwrap_or_else(|e| {
        notes.add(
            "whether a PodDisruptionBudget holds evictions is not checked",
            &e,
        );
        Vec::new()
    });
    let jobs = reads.jobs().await;
    let jobs = jobs.map_err(|e| notes.add("which OperationJobs operate on its Pods", &e));
    Ok(Some(ObservedWorkload {
        pods,
        managed_pods: reads.managed_pods().await.unwrap_or_default(),
        rules: rules.ok(),
        jobs: jobs.ok(),
        context: PodContext {
            excluded: reads.exclusion_reason().await,
            disruption_budgets,
            ..PodContext::default()
        },
        notes: notes.into_lines(),
        workload,
    }))
}

async fn read_one<K>(reads: &NamespaceReads, name: &str) -> anyhow::Result<Option<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    request_path::checked_name(name)?;
    let namespace = &*reads.namespace;
    let objects: Api<K> = request_path::namespaced_api(&reads.client, namespace)?;
    let plural = K::plural(&());
    let read = async { api_reads::found(objects.get(name).await) };
    api_reads::call_with_timeout("get", &plural, Some(namespace), read).await
}

async fn list_replica_sets(reads: &NamespaceReads) -> anyhow::Result<Vec<ReplicaSet>> {
    let namespace = &*reads.namespace;
    let sets: Api<ReplicaSet> = request_path::namespaced_api(&reads.client, namespace)?;
    let params = ListParams::default();
    let listed = sets.list(&params);
    let listed = api_reads::call_with_timeout("list", "replicasets", Some(namespace), listed);
    Ok(listed.await?.items)
}
