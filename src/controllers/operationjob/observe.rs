//! Collects from the caches what a plan of an OperationJob reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::memory::JobMemory;
use super::recreate_requests::RequestApi;
use crate::api::operationjob::{OperationJob, Progress};
use crate::cluster::objects::CachedJob;
use crate::controllers::ControllerContext;
use crate::domain::collaset::observed::{owns_entry, pool_name};
use crate::domain::operationjob::names::extra_info;
use crate::domain::operationjob::observed::ObservedJob;
use crate::domain::operationjob::restart::settings::RestartSettings;
use crate::domain::pod::Pod;

/// Collects the state of a job. The cache of jobs contains this controller's own writes.
pub fn observe_job(
    context: &ControllerContext,
    cached: &CachedJob,
    memory: &JobMemory,
    request_api: &RequestApi,
) -> ObservedJob {
    let job = &cached.object;
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let pods = collect_pods(context, cached, namespace);
    ObservedJob {
        job: Arc::clone(job),
        unseen: unseen_pods(&pods, memory),
        unanswered: memory.unanswered.open(&pods),
        pods: pods.into_iter().collect(),
        sets: context.objects.sets.objects_of(namespace),
        instance_ids: collect_instance_ids(context, job, namespace),
        live_names: memory.live_names(),
        unmanaged: unmanaged_pods(context, job, memory),
        other_jobs: other_jobs(context, cached, namespace),
        restart: RestartSettings {
            method: context.restart_method,
            request_api: request_api.known(),
        },
        recreate_requests: memory.recreate_requests(),
        failed_requests: memory.failed_requests(),
        now: (context.now)(),
    }
}

/// The Pods that concern the job, and the Pods of the CollaSets from which it expects a new Pod.
fn collect_pods(context: &ControllerContext, cached: &CachedJob, namespace: &str) -> Vec<Arc<Pod>> {
    let details = details_in_progress(&cached.object);
    let sets = details.filter_map(|detail| detail.extra_info.get(extra_info::COLLASET));
    let sets: BTreeSet<&str> = sets.map(String::as_str).collect();
    let state = context.index.read_state();
    let pods = state.namespace(namespace).into_iter();
    let pods = pods.flat_map(|namespace| namespace.pods.values());
    let concerned = pods.filter(|pod| {
        let owner = pod.controller().filter(|owner| owner.is_collaset());
        cached.concerns(pod) || owner.is_some_and(|owner| sets.contains(&*owner.name))
    });
    concerned.filter(|pod| pod.is_managed()).cloned().collect()
}

/// What is known of Pods that are not managed: what live reads have found, and that a Pod has ended.
fn unmanaged_pods(
    context: &ControllerContext,
    job: &OperationJob,
    memory: &JobMemory,
) -> BTreeMap<String, Option<Arc<Pod>>> {
    let mut known = memory.unmanaged();
    let uids = details_in_progress(job).filter_map(|d| d.extra_info.get(extra_info::POD_UID));
    let ended = uids.filter(|uid| context.index.ended_pods.contains(uid));
    known.extend(ended.map(|uid| (uid.clone(), None)));
    known
}

/// UIDs of the Pods whose last write by this controller the cache does not show yet.
fn unseen_pods(pods: &[Arc<Pod>], memory: &JobMemory) -> BTreeSet<String> {
    let now = Instant::now();
    let unseen = pods.iter().filter(|pod| {
        let (uid, version) = (&pod.metadata.uid, pod.metadata.resource_version);
        memory
            .written
            .time_until_visible(uid, version, now)
            .is_some()
    });
    unseen.map(|pod| pod.metadata.uid.clone()).collect()
}

/// The instance IDs of the CollaSets from which the job expects a new Pod. A set without Pods has no pool.
fn collect_instance_ids(
    context: &ControllerContext,
    job: &OperationJob,
    namespace: &str,
) -> BTreeMap<String, BTreeSet<String>> {
    let details = details_in_progress(job);
    let names = details.filter_map(|detail| detail.extra_info.get(extra_info::COLLASET));
    let names: BTreeSet<&String> = names.collect();
    let objects = &context.objects;
    let ids = names.into_iter().filter_map(|name| {
        let set = objects.sets.get(namespace, name)?;
        let pool = objects.pools.get(namespace, pool_name(&set));
        let entries = pool.iter().flat_map(|pool| &pool.contexts);
        let own = entries.filter(|entry| owns_entry(&set, &entry.data));
        let ids = own.map(|entry| entry.id.to_string()).collect();
        Some((name.clone(), ids))
    });
    ids.collect()
}

fn details_in_progress(
    job: &OperationJob,
) -> impl Iterator<Item = &crate::api::operationjob::TargetDetail> {
    let details = job.status.iter().flat_map(|status| &status.target_details);
    details.filter(|detail| detail.progress == Some(Progress::Processing))
}

/// The other jobs that name a target of this one. They are needed only to release targets.
fn other_jobs(
    context: &ControllerContext,
    cached: &CachedJob,
    namespace: &str,
) -> Vec<Arc<OperationJob>> {
    let job = &cached.object;
    let mut details = job.status.iter().flat_map(|status| &status.target_details);
    let releases = job.metadata.deletion_timestamp.is_some()
        || details.any(|detail| {
            detail.progress == Some(Progress::Failed)
                && !detail.extra_info.contains_key(extra_info::RELEASED)
        });
    if !releases {
        return Vec::new();
    }
    let names: BTreeSet<&str> = job
        .spec
        .targets
        .iter()
        .map(|target| &*target.name)
        .collect();
    let others = context.objects.jobs.objects_of(namespace).into_iter();
    let others = others.filter(|other| other.object.metadata.uid != job.metadata.uid);
    let naming = others.filter(|other| {
        let mut targets = other.object.spec.targets.iter();
        targets.any(|target| names.contains(&*target.name))
    });
    naming.map(|other| Arc::clone(&other.object)).collect()
}
