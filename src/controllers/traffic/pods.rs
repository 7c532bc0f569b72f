//! The Pods of an employer, and those that are gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as K8sPod;
use kube::ResourceExt;
use kube::api::ListParams;
use traffic::Member;

use super::super::ControllerContext;
use super::super::api_calls::call_api;
use crate::api::keys;
use crate::cluster::pod_requests;
use crate::cluster::request_path;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::{Pod, PodMetadata};
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::PodMarks;
use crate::ledger::store::Uid;

/// How many Pods one look reads live.
const LIVE_READS: usize = 20;

/// The Pods that an employer selects or has marked, by UID.
pub fn pods_of(
    context: &ControllerContext,
    employer: &CachedEmployer,
) -> BTreeMap<String, Arc<Pod>> {
    let state = context.index.read_state();
    let namespace = state.namespace(&employer.name.namespace);
    let all = namespace.into_iter().flat_map(|n| n.pods.values());
    let ours = all.filter(|pod| {
        employer.selects(pod)
            || may_be_marked(employer, pod) && PodMarks::of(&employer.name, pod).any()
    });
    ours.map(|pod| (pod.metadata.uid.clone(), Arc::clone(pod)))
        .collect()
}

/// A quick look before the marks are read.
fn may_be_marked(employer: &CachedEmployer, pod: &Pod) -> bool {
    let has_finalizer = pod.metadata.finalizers.contains(&employer.finalizer);
    has_finalizer
        || pod
            .annotation(keys::AVAILABLE_CONDITIONS)
            .is_some_and(|text| text.contains(&employer.name.name))
}

/// Reads the Pods of which the cache keeps only the metadata, because they are too large. Pods that are gone are left
/// out. Returns the name of a Pod that can't be read, if there is one: nothing is known of its addresses.
pub async fn read_whole_pods(
    context: &ControllerContext,
    pods: &mut BTreeMap<String, Arc<Pod>>,
) -> Result<Option<String>, ReconcileOutcome> {
    let parts: Vec<_> = pods
        .values()
        .filter(|pod| !pod.is_readable())
        .cloned()
        .collect();
    for part in parts {
        let PodMetadata {
            namespace,
            name,
            uid,
            ..
        } = &part.metadata;
        let read = async {
            match pod_requests::get_pod(&context.client, namespace, name).await {
                Err(kube::Error::SerdeError(_)) => Ok(Err(())),
                read => read.map(Ok),
            }
        };
        let live = match call_api("read a Pod that is not in the cache", read).await? {
            Ok(live) => live.filter(|live| live.metadata.uid == *uid),
            Err(()) => return Ok(Some(name.clone())),
        };
        match live {
            Some(pod) if !pod.is_readable() => return Ok(Some(name.clone())),
            Some(pod) => pods.insert(uid.clone(), Arc::new(pod)),
            None => pods.remove(uid),
        };
    }
    Ok(None)
}

/// The Pods with a mark of an employer.
pub fn marked_pods(context: &ControllerContext, employer: &EmployerName) -> Vec<Arc<Pod>> {
    let state = context.index.read_state();
    let namespace = state.namespace(&employer.namespace);
    let all = namespace.into_iter().flat_map(|n| n.pods.values());
    let marked = all.filter(|pod| PodMarks::of(employer, pod).any());
    marked.map(Arc::clone).collect()
}

/// The Pods with marks that the cache does not know any more, if they still exist: they are not managed any more.
/// `marked` has their names by UID. Also returns the Pods that were not read, because one look reads only some.
pub async fn read_lost_pods(
    context: &ControllerContext,
    employer: &EmployerName,
    marked: &BTreeMap<String, String>,
) -> Result<(Vec<Arc<Pod>>, BTreeMap<String, String>), ReconcileOutcome> {
    let known = |uid: &str| {
        let state = context.index.read_state();
        state.pod(&employer.namespace, &Uid::from(uid)).is_some()
    };
    let mut lost = Vec::new();
    let mut unread: BTreeMap<_, _> = marked.clone();
    unread.retain(|uid, _| !known(uid));
    for _ in 0..LIVE_READS {
        let Some((uid, name)) = unread.pop_first() else {
            break;
        };
        let read = pod_requests::get_pod(&context.client, &employer.namespace, &name);
        let live = call_api("read a Pod that is not managed any more", read).await?;
        let live = live.filter(|pod| pod.metadata.uid == uid && !pod.is_managed());
        lost.extend(
            live.filter(|pod| PodMarks::of(employer, pod).any())
                .map(Arc::new),
        );
    }
    Ok((lost, unread))
}

/// What the API server says of the Pods behind registered members that the cache does not know.
#[derive(Default)]
pub struct UnknownPods {
    /// UIDs of Pods that are gone.
    pub gone: Vec<String>,
    /// Pods that still exist.
    pub present: Vec<Arc<Pod>>,
}

/// Reads Pods live: a member is only removed at once if its Pod is gone for certain.
pub async fn read_unknown_pods(
    context: &ControllerContext,
    namespace: &str,
    members: &[Member],
) -> Result<UnknownPods, ReconcileOutcome> {
    let mut unknown = UnknownPods::default();
    let by_uid: BTreeMap<_, _> = members.iter().map(|m| (&m.pod.uid, &m.pod.name)).collect();
    let (mut named, unnamed): (BTreeMap<_, _>, BTreeMap<_, _>) = by_uid
        .into_iter()
        .partition(|(_, name)| request_path::is_path_safe(name));
    let present;
    if !unnamed.is_empty() {
        // The load balancer keeps no names, or wrong ones, so only a list can tell.
        present = names_by_uid(context, namespace).await?;
        for (uid, _) in unnamed {
            match present.get(uid) {
                Some(name) => drop(named.insert(uid, name)),
                None => unknown.gone.push(uid.clone()),
            }
        }
    }
    for (uid, name) in named.into_iter().take(LIVE_READS) {
        let read = pod_requests::get_pod(&context.client, namespace, name);
        let live = call_api("read the Pod behind a member", read).await?;
        match live.filter(|pod| pod.metadata.uid == *uid) {
            None => unknown.gone.push(uid.clone()),
            // It is not selected and has no mark, or it is not managed, or the cache will know it in a moment.
            Some(pod) => unknown.present.push(Arc::new(pod)),
        }
    }
    Ok(unknown)
}

/// The names of all Pods of a namespace, by UID.
async fn names_by_uid(
    context: &ControllerContext,
    namespace: &str,
) -> Result<BTreeMap<String, String>, ReconcileOutcome> {
    let list = async {
        let pods = request_path::namespaced_api::<K8sPod>(&context.client, namespace)?;
        pods.list_metadata(&ListParams::default()).await
    };
    let pods = call_api("list the Pods behind members", list)
        .await?
        .items
        .into_iter();
    let named = pods.map(|pod| (pod.uid().unwrap_or_default(), pod.name_any()));
    Ok(named.collect())
}
