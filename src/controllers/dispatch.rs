//! Translates changes of the index into keys of the queues.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::decoration_board::DecorationBoard;
use super::traffic::WatchedPods;
use super::wait_queue::WaitQueue;
use super::{ControllerContext, Queues};
use crate::api::keys;
use crate::cluster::changes::Change;
use crate::cluster::index::Index;
use crate::domain::collaset;
use crate::domain::traffic::pod_marks;
use crate::ledger::store::Uid;

/// Fills the queues until `stop`: first with all objects, then with each change.
pub async fn run_dispatcher(
    context: Arc<ControllerContext>,
    queues: Arc<Queues>,
    wait_queue: Arc<WaitQueue>,
    board: Arc<DecorationBoard>,
    watched: Arc<WatchedPods>,
    stop: CancellationToken,
) {
    let index = &context.index;
    let mut changes = index.changes().subscribe();
    tokio::select! { () = stop.cancelled() => return, () = index.wait_listed() => {} }
    enqueue_all(&context, &queues, &board);
    loop {
        let change =
            tokio::select! { () = stop.cancelled() => return, change = changes.recv() => change };
        match change {
            Ok(change) => {
                mark_wait_queue_changed(&wait_queue, &change); // before the change causes a run
                enqueue_employers_of(&context, &queues, &watched, &change);
                enqueue_change(&context, &queues, change);
            }
            Err(RecvError::Lagged(missed)) => {
                info!(
                    missed,
                    "missed changes of the index; enqueueing all objects again"
                );
                wait_queue.mark_all_changed();
                enqueue_all(&context, &queues, &board);
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn enqueue_all(context: &ControllerContext, queues: &Queues, board: &DecorationBoard) {
    let (index, objects) = (&context.index, &context.objects);
    let state = index.read_state();
    for (name, namespace) in state.namespaces() {
        for uid in namespace.pods.keys() {
            enqueue_pod(queues, name, uid);
        }
        for rule in namespace.rules.keys() {
            queues.rules.add((name.clone(), rule.clone()));
        }
        queues.namespaces.add(name.clone());
    }
    for set in objects.sets.all_names() {
        queues.collasets.add(set);
    }
    for pool in objects.pools.all_names() {
        queues.collasets.add(pool); // as if for the set of this name, which may be gone
    }
    let published = board.all_names().into_iter(); // a PodDecoration may be gone whose deletion was missed
    for decoration in objects.decorations.all_names().into_iter().chain(published) {
        queues.decorations.add(decoration);
    }
    for job in objects.jobs.all_names() {
        queues.jobs.add(job);
    }
    for employer in context.traffic.employers.all_names() {
        queues.traffic.add(employer);
    }
    // An employer may be gone whose marks are still on Pods.
    for namespace in state.namespaces().map(|(_, namespace)| namespace) {
        for pod in namespace.pods.values() {
            for employer in pod_marks::marking_employers(pod) {
                queues.traffic.add(employer);
            }
        }
    }
}

fn enqueue_change(context: &ControllerContext, queues: &Queues, change: Change) {
    let index = &context.index;
    match change {
        Change::Pod(namespace, uid) => {
            enqueue_pod(queues, &namespace, &uid);
            enqueue_including_sets(context, queues, &namespace, &uid);
            enqueue_jobs(context, queues, &namespace, &uid);
            enqueue_rules(index, queues, &namespace);
        }
        Change::Workload(namespace) => enqueue_rules(index, queues, &namespace),
        Change::Rule(namespace, name) => {
            queues.namespaces.add(namespace.clone());
            queues.rules.add((namespace, name));
        }
        Change::CollaSet(namespace, name) => {
            enqueue_decorations(context, queues, &namespace);
            queues.collasets.add((namespace, name));
        }
        Change::CollaSetWritten(namespace) => enqueue_decorations(context, queues, &namespace),
        Change::PodDecoration(namespace, name) => queues.decorations.add((namespace, name)),
        Change::OperationJob(namespace, name) => queues.jobs.add((namespace, name)),
        Change::Employer(name) => queues.traffic.add(name),
        Change::Registration => enqueue_all_rules(index, queues),
        Change::Namespace(namespace) => {
            enqueue_rules(index, queues, &namespace); // the status says whether it is enforced
            queues.namespaces.add(namespace);
        }
    }
}

/// Marks the rounds of the namespace as stale if the change affects them.
fn mark_wait_queue_changed(wait_queue: &WaitQueue, change: &Change) {
    match change {
        Change::Pod(namespace, _)
        | Change::Rule(namespace, _)
        | Change::Namespace(namespace)
        | Change::Workload(namespace) => wait_queue.mark_changed(namespace),
        Change::CollaSet(..)
        | Change::CollaSetWritten(_)
        | Change::PodDecoration(..)
        | Change::OperationJob(..)
        | Change::Employer(_)
        | Change::Registration => {}
    }
}

fn enqueue_pod(queues: &Queues, namespace: &str, uid: &Uid) {
    queues.lifecycle.add((namespace.to_owned(), uid.clone()));
    queues.poddeletion.add((namespace.to_owned(), uid.clone()));
}

/// Enqueues the employers that a change of a Pod concerns: those that select it, those that have marked it, and those
/// that knew it before.
fn enqueue_employers_of(
    context: &ControllerContext,
    queues: &Queues,
    watched: &WatchedPods,
    change: &Change,
) {
    let Change::Pod(namespace, uid) = change else {
        return;
    };
    for employer in watched.employers_of(uid) {
        queues.traffic.add(employer);
    }
    let pod = context.index.read_state().pod(namespace, uid).cloned();
    if let Some(pod) = pod {
        for employer in context.traffic.employers.selecting(namespace, &pod) {
            queues.traffic.add(employer.name.clone());
        }
        // Whoever may write the Pod can write thousands of names. Those that are left out are next when the marks of the
        // first ones have been removed.
        let employers = &context.traffic.employers;
        let marking = pod_marks::marking_employers(&pod);
        let (known, unknown): (Vec<_>, Vec<_>) = marking
            .into_iter()
            .partition(|employer| employers.get(employer).is_some());
        for employer in known
            .into_iter()
            .chain(unknown.into_iter().take(UNKNOWN_EMPLOYERS))
        {
            queues.traffic.add(employer);
        }
    }
}

/// Of the employers that a Pod names and that no cache has, so many are looked at for each change of the Pod.
const UNKNOWN_EMPLOYERS: usize = 16;

/// Enqueues the CollaSets that include a Pod without a controller, or may adopt it.
fn enqueue_including_sets(
    context: &ControllerContext,
    queues: &Queues,
    namespace: &str,
    uid: &Uid,
) {
    let state = context.index.read_state();
    let pod = state.pod(namespace, uid);
    let Some(pod) = pod.filter(|pod| pod.controller().is_none()) else {
        return;
    };
    let objects = &context.objects;
    let name = &pod.metadata.name;
    let mut sets = objects.collasets_including(namespace, name);
    if pod.label(keys::INSTANCE_ID).is_some() || !pod.spec.pvcs.is_empty() {
        sets.extend(objects.sets.names_where(namespace, |set| {
            collaset::has_name_of_set(set.metadata.name.as_deref().unwrap_or_default(), name)
        }));
    }
    for set in sets {
        queues.collasets.add((namespace.to_owned(), set));
    }
}

/// Enqueues all PodDecorations of a namespace, because a CollaSet of the namespace or one of its objects has changed. A
/// change of a Pod is also a change of its CollaSet.
fn enqueue_decorations(context: &ControllerContext, queues: &Queues, namespace: &str) {
    for name in context.objects.decorations.names_where(namespace, |_| true) {
        queues.decorations.add((namespace.to_owned(), name));
    }
}

/// Enqueues the unfinished OperationJobs that a Pod concerns. Of a Pod that is gone, only the UID is known.
fn enqueue_jobs(context: &ControllerContext, queues: &Queues, namespace: &str, uid: &Uid) {
    let pod = context.index.read_state().pod(namespace, uid).cloned();
    let jobs = &context.objects.jobs;
    let concerned = match pod {
        Some(pod) => jobs.names_where(namespace, |job| job.concerns(&pod)),
        None => jobs.names_where(namespace, |job| job.concerns_uid(uid)),
    };
    for name in concerned {
        queues.jobs.add((namespace.to_owned(), name));
    }
}

fn enqueue_all_rules(index: &Index, queues: &Queues) {
    let state = index.read_state();
    for (name, namespace) in state.namespaces() {
        for rule in namespace.rules.keys() {
            queues.rules.add((name.clone(), rule.clone()));
        }
    }
}

fn enqueue_rules(index: &Index, queues: &Queues, namespace: &str) {
    if let Some(rules) = index.read_state().namespace(namespace).map(|n| &n.rules) {
        for rule in rules.keys() {
            queues.rules.add((namespace.to_owned(), rule.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use testbed::api::FakeApi;

    use super::*;
    use crate::cluster::objects::{CachedKind, DecorationObject, JobObject};
    use crate::controllers::ControllerStats;
    use crate::domain::decoration::Decoration;

    fn cache_decoration(context: &ControllerContext, namespace: &str, name: &str) {
        let object = json!({ "metadata": {
            "namespace": namespace, "name": name, "uid": name, "resourceVersion": "1",
        } });
        let object: DecorationObject = serde_json::from_str(&object.to_string()).unwrap();
        let key = object.object_key();
        let decorations = &context.objects.decorations;
        decorations.apply(key, object.into_cached());
    }

    /// The number of waiting PodDecorations and CollaSets.
    fn depths(queues: &Queues) -> (usize, usize) {
        (queues.decorations.depth(), queues.collasets.depth())
    }

    #[tokio::test]
    async fn change_of_set_enqueues_decorations_of_its_namespace() {
        let context = ControllerContext::at_epoch(FakeApi::default().client());
        cache_decoration(&context, "n", "a");
        cache_decoration(&context, "n", "b");
        cache_decoration(&context, "m", "c");
        let queues = ControllerStats::default().begin_term();
        let change = Change::PodDecoration("n".into(), "a".into());
        enqueue_change(&context, &queues, change);
        assert_eq!(depths(&queues), (1, 0), "sets wait for the published value");
        let change = Change::CollaSet("n".into(), "web".into());
        enqueue_change(&context, &queues, change);
        assert_eq!(depths(&queues), (2, 1));
        let change = Change::CollaSetWritten("m".into());
        enqueue_change(&context, &queues, change);
        assert_eq!(depths(&queues), (3, 1), "the set knows its own write");
    }

    #[tokio::test]
    async fn published_decoration_that_is_gone_is_enqueued() {
        let context = ControllerContext::at_epoch(FakeApi::default().client());
        cache_decoration(&context, "n", "a");
        let board = DecorationBoard::default();
        for name in ["a", "gone"] {
            let decoration = Decoration {
                name: name.to_owned(),
                ..Decoration::default()
            };
            board.publish("n", decoration);
        }
        let queues = ControllerStats::default().begin_term();
        enqueue_all(&context, &queues, &board);
        assert_eq!(depths(&queues), (2, 0));
    }
    /// Caches a job in the namespace `n` with the target `web-1`, whose new Pod is `web-2`.
    fn cache_job(context: &ControllerContext, name: &str, progress: &str) {
        let extra_info = json!({ "PodUID": "old", "NewPod": "web-2", "NewPodUID": "new" });
        let object = json!({
            "metadata": { "namespace": "n", "name": name, "uid": name, "resourceVersion": "1" },
            "spec": { "action": "Replace", "targets": [{ "name": "web-1" }] },
            "status": {
                "progress": progress,
                "targetDetails": [{ "name": "web-1", "extraInfo": extra_info }],
            },
        });
        let object: JobObject = serde_json::from_str(&object.to_string()).unwrap();
        let key = object.object_key();
        context.objects.jobs.apply(key, object.into_cached());
    }

    /// The number of jobs that a change enqueues.
    fn jobs_enqueued_by(context: &ControllerContext, change: Change) -> usize {
        let queues = ControllerStats::default().begin_term();
        enqueue_change(context, &queues, change);
        queues.jobs.depth()
    }

    #[tokio::test]
    async fn change_of_pod_enqueues_unfinished_jobs_that_it_concerns() {
        let context = ControllerContext::at_epoch(FakeApi::default().client());
        for (name, progress) in [("a", "Processing"), ("b", "Pending"), ("c", "Failed")] {
            cache_job(&context, name, progress);
        }
        let pod_change = |namespace: &str, uid: &str| Change::Pod(namespace.into(), uid.into());
        for (namespace, name, uid, count) in [
            ("n", "web-1", "target", 2),
            ("n", "web-2", "replacement", 2),
            ("n", "web-3", "other", 0),
            ("m", "web-1", "elsewhere", 0),
        ] {
            let metadata = json!({ "namespace": namespace, "name": name, "uid": uid });
            let pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            context.index.apply_pod(pod);
            let enqueued = jobs_enqueued_by(&context, pod_change(namespace, uid));
            assert_eq!(enqueued, count, "{namespace}/{name}");
        }
        for (gone, count) in [("old", 2), ("new", 2), ("unknown", 0)] {
            let enqueued = jobs_enqueued_by(&context, pod_change("n", gone));
            assert_eq!(enqueued, count, "{gone}");
        }
    }

    #[tokio::test]
    async fn change_of_job_enqueues_this_job_alone() {
        let context = ControllerContext::at_epoch(FakeApi::default().client());
        for (name, progress) in [("a", "Processing"), ("b", "Pending"), ("c", "Failed")] {
            cache_job(&context, name, progress);
        }
        for name in ["a", "c", "gone"] {
            let change = Change::OperationJob("n".into(), name.into());
            assert_eq!(jobs_enqueued_by(&context, change), 1, "{name}");
        }
        let queues = ControllerStats::default().begin_term();
        enqueue_all(&context, &queues, &DecorationBoard::default());
        assert_eq!(queues.jobs.depth(), 3);
    }
}
