//! Reconciles PodOpsLifecycle: writes the readiness condition, `service-available` and the grants, and makes each
//! lifecycle step that the webhook missed (contract 3.2).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use kube::Error;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::api_calls::{call_api, read_whole_pod};
use super::wait_queue::WaitQueue;
use super::written_versions::WrittenVersions;
use super::{ControllerContext, PodKey, step_writes};
use crate::api::keys;
use crate::cluster::events::pod_reference;
use crate::cluster::presence::{ObjectLookup, Presence};
use crate::cluster::work_queue::ReconcileOutcome;
use crate::cluster::{pod_requests, request_path};
use crate::domain::collaset::{
    abandoned_decoration_owners, abandoned_metadata_patch, updates_in_step_write,
};
use crate::domain::lifecycle::{
    LifecycleStep, Stage, controller_step, controller_step_with_passed, restarts,
};
use crate::domain::pod::{Pod, PodMetadata};
use crate::domain::rules::stage::new_candidate;
use crate::domain::traffic::names::EmployerName;
use crate::ledger::store::Uid;

/// If admission does not give a grant, this controller asks for it again after this time at the latest. Usually a
/// change of the rule enqueues the Pod earlier.
const GRANT_RETRY: Duration = Duration::from_secs(2);

/// Objects whose finalizer is expected are read again after this time, because they are not watched.
const OBJECTS_RECHECK: Duration = Duration::from_secs(30);
/// Maximum number of such objects that one run reads. The annotation may name thousands.
const MAX_OBJECT_READS: usize = 16;
/// As [`OBJECTS_RECHECK`], if none of the objects can be read.
const UNREADABLE_RECHECK: Duration = Duration::from_secs(600);
/// Reason of the Event about an expected finalizer that the server can't judge.
const FINALIZER_EVENT_REASON: &str = "ExpectedFinalizerMissing";

/// If a CollaSet makes a lifecycle step in the write of its update, this controller leaves the step to the CollaSet for
/// this time.
const SET_STEP_GRACE: Duration = Duration::from_secs(1);

/// The controller of PodOpsLifecycle.
pub struct LifecycleController {
    context: Arc<ControllerContext>,
    wait_queue: Arc<WaitQueue>,
    object_lookup: ObjectLookup,
    written: WrittenVersions,
    /// Pods for which a grant by a write of the status had no effect. The webhook of another build may ignore such a
    /// write.
    ignored_status_writes: Mutex<HashSet<Uid>>,
    /// The time until which the steps of Pods are left to their CollaSets.
    set_step_deadlines: Mutex<HashMap<Uid, Instant>>,
}

impl LifecycleController {
    pub fn new(context: Arc<ControllerContext>, wait_queue: Arc<WaitQueue>) -> Arc<Self> {
        Arc::new(LifecycleController {
            object_lookup: ObjectLookup::new(context.client.clone()),
            context,
            wait_queue,
            written: WrittenVersions::default(),
            ignored_status_writes: Mutex::default(),
            set_step_deadlines: Mutex::default(),
        })
    }

    pub async fn reconcile(&self, (namespace, uid): PodKey) -> ReconcileOutcome {
        let Some(pod) = self
            .context
            .index
            .read_state()
            .pod(&namespace, &uid)
            .cloned()
        else {
            self.written.forget_object(&uid);
            self.ignored_status_writes.lock().remove(&uid);
            self.set_step_deadlines.lock().remove(&uid);
            self.context.blocked_lifecycles.clear_write_failure(&uid);
            return ReconcileOutcome::Done;
        };
        let version = pod.metadata.resource_version;
        if let Some(pause) = self
            .written
            .time_until_visible(&uid, version, Instant::now())
        {
            return ReconcileOutcome::After(pause); // usually the write enqueues the Pod earlier
        }
        match read_whole_pod(&self.context, pod).await {
            Ok(Some(pod)) if pod.is_readable() => match self.write_next_step(&pod).await {
                Ok(outcome) | Err(outcome) => outcome,
            },
            Ok(_) => ReconcileOutcome::Done,
            Err(outcome) => outcome,
        }
    }

    /// Writes the next lifecycle step of the Pod. The error is the outcome after a write that failed.
    async fn write_next_step(&self, pod: &Pod) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let context = &self.context;
        if let Some(metadata) = abandoned_metadata_patch(pod) {
            let request = pod_requests::patch_metadata(&context.client, pod, metadata);
            let description = "cancel the operation of a CollaSet that has gone";
            self.write_pod(pod, description, request).await?;
            return Ok(ReconcileOutcome::Done); // the change enqueues the Pod again
        }
        let owners = abandoned_decoration_owners(pod);
        if !owners.is_empty() {
            let request = pod_requests::patch_owner_references(&context.client, pod, &owners);
            let description = "remove the PodDecorations from the owners of a Pod without CollaSet";
            self.write_pod(pod, description, request).await?;
            return Ok(ReconcileOutcome::Done); // the change enqueues the Pod again
        }
        let now = (context.now)();
        let (step, grants) = self.next_step(pod, now);
        if let Some(problem) = &step.problem {
            self.report_problem(pod, problem);
        }
        if let Some(pause) = self.set_step_delay(pod, &step) {
            return Ok(ReconcileOutcome::After(pause)); // usually the write of the set enqueues the Pod earlier
        }
        let (patch, mut pause) = self.metadata_patch(pod, &step);
        // The deletion controller may have recorded that the deletion of the Pod failed. Such a failure stays.
        let keeps_failure = pod.label(keys::TO_DELETE).is_some();
        if patch.is_empty() && step.service_ready.is_none() && !keeps_failure {
            context
                .blocked_lifecycles
                .clear_write_failure(&pod.metadata.uid);
        }
        if !patch.is_empty() {
            let has_changed = self
                .write_metadata(pod, Value::Object(patch), !grants.is_empty())
                .await?;
            if has_changed {
                return Ok(ReconcileOutcome::Done); // the change enqueues the Pod again
            }
            pause = Some(GRANT_RETRY);
        }
        if let Some(ready) = step.service_ready {
            let stale = match ready {
                true => context.traffic.employers.stale_protections(pod),
                false => Vec::new(),
            };
            if !stale.is_empty() {
                let kept = finalizers_without(pod, &stale);
                let request = pod_requests::patch_metadata(&context.client, pod, kept);
                let description = "remove the protection of a Pod that was off traffic";
                self.write_pod(pod, description, request).await?;
                return Ok(ReconcileOutcome::Done); // the change enqueues the Pod again
            }
            let request = pod_requests::patch_service_ready(&context.client, pod, ready, now);
            self.write_pod(pod, "write the readiness condition", request)
                .await?;
        }
        if !step.dirty.is_empty() {
            let recheck = self.clean_expected_finalizers(pod, &step.dirty).await?;
            pause = Some(pause.map_or(recheck, |pause| pause.min(recheck)));
        }
        Ok(pause.map_or(ReconcileOutcome::Done, ReconcileOutcome::After))
    }

    /// The next step of the Pod, and the operations that the step grants.
    fn next_step(&self, pod: &Pod, now: Timestamp) -> (LifecycleStep, Vec<(Stage, String)>) {
        let nanos = u64::try_from(now.as_nanosecond()).unwrap_or(0);
        let step = controller_step(pod, nanos);
        let grants = self.operations_to_grant(pod, &step);
        match grants.is_empty() {
            true => (step, grants),
            false => (controller_step_with_passed(pod, &grants, nanos), grants),
        }
    }

    /// Records why the Pod can't become available again. This is an Event and no log entry: everyone who may write Pods
    /// could fill the log.
    fn report_problem(&self, pod: &Pod, problem: &str) {
        let message = format!("The Pod can't become available again: {problem}");
        self.context.events.record_event(
            &pod_reference(pod),
            true,
            FINALIZER_EVENT_REASON,
            &message,
        );
    }

    /// The change of the metadata that the step needs, and the time until the next run if nothing is written.
    fn metadata_patch(
        &self,
        pod: &Pod,
        step: &LifecycleStep,
    ) -> (Map<String, Value>, Option<Duration>) {
        let outage = self.remaining_brief_outage(pod, step);
        let ready = step.requeue_after_nanos.map(Duration::from_nanos);
        let mut pause = outage.into_iter().chain(ready).min();
        let mut patch = Map::new();
        if !step.labels.is_empty() {
            patch.insert("labels".to_owned(), step.labels.to_merge_patch());
        }
        let earliest = u64::try_from((self.context.earliest)().as_nanosecond()).unwrap_or(0);
        match restarts::assumed_done_in(pod, earliest) {
            // The webhook removes the record during this write, by its own clock.
            Some(0) => {
                let record = json!({ keys::AWAITS_RESTART: null });
                patch.insert("annotations".to_owned(), record);
            }
            Some(nanos) => pause = pause.or(Some(Duration::from_nanos(nanos))),
            None => {}
        }
        (patch, pause)
    }

    /// Writes a change of the metadata. A grant is a write of the status: admission sets the readiness condition in the
    /// same write. Returns whether the write has changed the Pod.
    async fn write_metadata(
        &self,
        pod: &Pod,
        patch: Value,
        is_grant: bool,
    ) -> Result<bool, ReconcileOutcome> {
        let client = &self.context.client;
        let uid = Uid::from(pod.metadata.uid.as_str());
        let by_status = !self.ignored_status_writes.lock().remove(&uid) && is_grant;
        let request = async {
            match by_status {
                true => pod_requests::patch_metadata_by_status(client, pod, patch).await,
                false => pod_requests::patch_metadata(client, pod, patch).await,
            }
        };
        let written = self
            .write_pod(pod, "write a lifecycle step", request)
            .await?;
        let has_changed = written.metadata.resource_version != pod.metadata.resource_version;
        if by_status && !has_changed {
            self.ignored_status_writes.lock().insert(uid);
        }
        Ok(has_changed)
    }

    /// Sends a write of the Pod, and remembers the written version.
    async fn write_pod(
        &self,
        pod: &Pod,
        description: &'static str,
        request: impl Future<Output = Result<Pod, Error>>,
    ) -> Result<Pod, ReconcileOutcome> {
        let written =
            step_writes::write_lifecycle_step(&self.context, pod, description, request).await?;
        let PodMetadata {
            uid,
            resource_version,
            ..
        } = &written.metadata;
        self.written
            .record_version(uid, *resource_version, Instant::now());
        Ok(written)
    }

    /// How long a step is left to the CollaSet of the Pod, which makes the step in the write of its update.
    fn set_step_delay(&self, pod: &Pod, step: &LifecycleStep) -> Option<Duration> {
        let uid = Uid::from(pod.metadata.uid.as_str());
        let mut deadlines = self.set_step_deadlines.lock();
        if !self.context.collasets || !updates_in_step_write(pod, &step.labels) {
            deadlines.remove(&uid);
            return None;
        }
        let now = Instant::now();
        let deadline = *deadlines.entry(uid).or_insert(now + SET_STEP_GRACE);
        (deadline > now).then(|| deadline - now)
    }

    /// The remaining time for which a waiting Pod is down for a moment. After that time the Pod needs no budget, and no
    /// event enqueues it.
    fn remaining_brief_outage(&self, pod: &Pod, step: &LifecycleStep) -> Option<Duration> {
        let mut waiting = step.reevaluate.iter();
        if !waiting.any(|(stage, _)| *stage == Stage::PreCheck) {
            return None;
        }
        self.context.index.read_state().remaining_brief_outage(pod)
    }

    /// The operations of the Pod that seem ready to pass. Admission decides; this check only avoids requests without
    /// success. A Pod that is not next in the wait queue is enqueued when it may be. The wait queue is checked first,
    /// because the check of the rules takes long for many waiting Pods.
    fn operations_to_grant(&self, pod: &Pod, step: &LifecycleStep) -> Vec<(Stage, String)> {
        let waiting = step.reevaluate.iter();
        let mut stages = waiting.clone().map(|(stage, _)| *stage);
        let is_next = stages.any(|stage| stage == Stage::PreCheck) && self.wait_queue.is_next(pod);
        let ready = waiting.filter(|(stage, _)| is_next || *stage == Stage::PostCheck);
        let ready: Vec<_> = ready.cloned().collect();
        self.filter_passing_rules(pod, ready)
    }

    /// The operations that no rule except the budgets rejects.
    fn filter_passing_rules(
        &self,
        pod: &Pod,
        waiting: Vec<(Stage, String)>,
    ) -> Vec<(Stage, String)> {
        if waiting.is_empty() {
            return waiting;
        }
        let candidates = |of: Stage| {
            let ids = waiting.iter().filter(move |(stage, _)| *stage == of);
            let candidates = ids.map(|(stage, id)| {
                let since = pod.label(&stage.family().key(id)).unwrap_or_default();
                new_candidate(pod, id, since)
            });
            candidates.collect::<Vec<_>>()
        };
        let state = self.context.index.read_state();
        let passed = |stage: Stage| {
            let passing = state.passing_operations(stage, pod, candidates(stage));
            passing.into_iter().map(move |c| (stage, c.operation))
        };
        let before = passed(Stage::PreCheck);
        before.chain(passed(Stage::PostCheck)).collect()
    }

    /// Removes the expected finalizers of objects that do not exist, and of Services that do not select the Pod any
    /// more. Returns the time until the next run. If an object can't be read, its entry stays, and an Event on the Pod
    /// tells the user what to do. If there are many objects, each run reads only some of them.
    async fn clean_expected_finalizers(
        &self,
        pod: &Pod,
        keys: &[String],
    ) -> Result<Duration, ReconcileOutcome> {
        let (mut obsolete, mut unknown) = (Vec::new(), Vec::new());
        for key in objects_to_read(keys, (self.context.now)()) {
            match self.check_expected_object(pod, key).await? {
                Presence::Gone | Presence::Leaving => obsolete.push(key.clone()),
                Presence::Exists => {}
                Presence::Unknown(reason) => unknown.push(format!("{key} ({reason})")),
            }
        }
        if let Some(patch) = LifecycleStep::drop_dirty_patch(pod, &obsolete) {
            let metadata = patch["metadata"].clone();
            let request = pod_requests::patch_metadata(&self.context.client, pod, metadata);
            step_writes::write_lifecycle_step(
                &self.context,
                pod,
                "drop expected finalizers",
                request,
            )
            .await?;
        }
        if !unknown.is_empty() && self.is_wait_notable(pod) {
            self.report_unknown_finalizers(pod, &unknown);
            if unknown.len() == keys.len() {
                return Ok(UNREADABLE_RECHECK);
            }
        }
        Ok(OBJECTS_RECHECK)
    }

    /// Whether the object of an expected finalizer exists, and still selects the Pod if it is a Service.
    async fn check_expected_object(
        &self,
        pod: &Pod,
        key: &str,
    ) -> Result<Presence, ReconcileOutcome> {
        let [kind, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else {
            return Ok(Presence::Exists);
        };
        if ![namespace, name]
            .into_iter()
            .all(request_path::is_path_safe)
        {
            return Ok(Presence::Gone); // the API server stores no object with such a name
        }
        // An answer about an object in another namespace would reveal what exists there.
        if namespace != pod.metadata.namespace {
            let reason = "it is in another namespace than the Pod".to_owned();
            return Ok(Presence::Unknown(reason));
        }
        let employer = EmployerName::new(kind, namespace, name);
        let managed = self.context.traffic.employers.get(&employer);
        if managed.is_some_and(|employer| employer.managed && employer.selects(pod)) {
            return Ok(Presence::Exists); // the cache of ResourceConsist has it
        }
        if kind == "Service" {
            // The name comes from an annotation. No Service has a name that can't be part of a path.
            let service = match request_path::checked_name(name).and_then(|_| {
                request_path::namespaced_api::<Service>(&self.context.client, namespace)
            }) {
                Ok(services) => call_api("read a Service", services.get_opt(name)).await?,
                Err(_) => None,
            };
            return Ok(match service.is_some_and(|s| service_selects(&s, pod)) {
                true => Presence::Exists,
                false => Presence::Gone,
            });
        }
        Ok(self.object_lookup.find_object(kind, namespace, name).await)
    }

    /// Whether the Pod has been Ready and not available for so long that an Event is useful.
    fn is_wait_notable(&self, pod: &Pod) -> bool {
        let conditions = pod.status.conditions.iter();
        let last_change = conditions
            .filter(|c| ["Ready", keys::SERVICE_READY].contains(&c.type_.as_str()))
            .filter_map(|c| c.last_transition_time.as_deref()?.parse::<Timestamp>().ok())
            .max();
        let notice = SignedDuration::try_from(self.context.wait_notice);
        let notice = notice.unwrap_or(SignedDuration::MAX);
        last_change.is_none_or(|time| (self.context.now)().duration_since(time) >= notice)
    }

    /// Records an Event on a Pod about the expected finalizers that only a user can judge.
    fn report_unknown_finalizers(&self, pod: &Pod, unknown: &[String]) {
        let message = format!(
            "The Pod stays unavailable until it has the finalizers that annotation {} expects. The server can't find out whether \
             these objects still exist: {}. Remove their entries from the annotation, or let the server read their kind.",
            keys::AVAILABLE_CONDITIONS,
            unknown.join(", ")
        );
        self.context.events.record_event(
            &pod_reference(pod),
            true,
            FINALIZER_EVENT_REASON,
            &message,
        );
    }
}

/// The objects that a run at this time reads.
fn objects_to_read(keys: &[String], now: Timestamp) -> &[String] {
    let parts: Vec<_> = keys.chunks(MAX_OBJECT_READS).collect();
    let period = u64::try_from(now.as_second()).unwrap_or(0) / OBJECTS_RECHECK.as_secs().max(1);
    let part = period.checked_rem(parts.len() as u64).unwrap_or(0);
    let part = usize::try_from(part).unwrap_or(0);
    parts.get(part).copied().unwrap_or_default()
}

/// The metadata with the finalizers of a Pod that are not those of these employers. Usually the webhook removes them in
/// the write that ends the operation. It may have missed this write.
fn finalizers_without(pod: &Pod, employers: &[EmployerName]) -> Value {
    let removed: Vec<_> = employers.iter().map(EmployerName::finalizer).collect();
    let mut finalizers = pod.metadata.finalizers.clone();
    finalizers.retain(|finalizer| !removed.contains(finalizer));
    json!({ "finalizers": finalizers })
}

fn service_selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| !s.is_empty() && s.iter().all(|(k, v)| pod.label(k) == Some(v)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use kube::Client;
    use kube::client::Body;
    use tokio_util::sync::CancellationToken;

    use super::super::ControllerStats;
    use super::*;
    use crate::api::keys::Family;
    use crate::cluster::traffic::Traffic;
    use crate::cluster::traffic::adapters::{Adapters, NamedAdapter};
    use crate::cluster::traffic::endpoints::EndpointsAdapter;
    use crate::cluster::traffic::slices::Slices;

    fn pod(image: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "7",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
            },
            "spec": { "containers": [{ "name": "app", "image": image }], "readinessGates": [{ "conditionType": keys::SERVICE_READY }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] },
        })
    }

    /// A controller whose cache contains one Pod and whose API server answers with another Pod. Also returns its calls.
    fn controller(cached: Value, live: Value) -> (LifecycleController, Arc<Mutex<Vec<String>>>) {
        controller_with(cached, live, Arc::default())
    }

    /// The same, with these employers.
    fn controller_with(
        cached: Value,
        live: Value,
        traffic: Arc<Traffic>,
    ) -> (LifecycleController, Arc<Mutex<Vec<String>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&calls);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let call = format!("{} {}", request.method(), request.uri().path());
            recorded.lock().push(call);
            let body = Body::from(live.to_string().into_bytes());
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let mut context = ControllerContext::at_epoch(Client::new(service, "default"));
        Arc::get_mut(&mut context).unwrap().traffic = traffic;
        let cached = serde_json::from_value(cached).unwrap();
        context.index.apply_pod(cached);
        let wait_queue = WaitQueue::new(
            &context,
            &ControllerStats::default().begin_term(),
            &CancellationToken::new(),
        );
        let lifecycle = LifecycleController::new(context, wait_queue);
        (Arc::into_inner(lifecycle).unwrap(), calls)
    }

    /// The outcome of a run for a Pod that is cached by its metadata alone, and the calls of this run.
    async fn reconcile_stub(live: Value) -> (ReconcileOutcome, Vec<String>) {
        let stub = json!({ "metadata": pod("")["metadata"] });
        let (lifecycle, calls) = controller(stub, live);
        let outcome = lifecycle.reconcile(("n".into(), "web-1".into())).await;
        let calls = calls.lock().clone();
        (outcome, calls)
    }

    #[tokio::test]
    async fn pod_is_not_rewritten_before_cache_shows_write() {
        let mut live = pod("a");
        live["metadata"]["resourceVersion"] = "8".into();
        let (lifecycle, calls) = controller(pod("a"), live.clone());
        let key = || ("n".to_owned(), "web-1".into());
        for _ in 0..2 {
            lifecycle.reconcile(key()).await;
            assert_eq!(calls.lock().len(), 1, "{calls:?}");
        }
        let written = serde_json::from_value(live).unwrap();
        lifecycle.context.index.apply_pod(written);
        lifecycle.reconcile(key()).await;
        assert_eq!(calls.lock().len(), 2, "{calls:?}");
    }

    #[tokio::test]
    async fn grant_ignored_as_status_write_is_retried_as_plain_patch() {
        let mut waiting = pod("a");
        for family in [Family::Operating, Family::PreCheck] {
            waiting["metadata"]["labels"][family.key("x")] = "1".into();
        }
        waiting["metadata"]["labels"][Family::OperationType.key("x")] = "update".into();
        let conditions =
            ["Ready", keys::SERVICE_READY].map(|type_| json!({ "type": type_, "status": "True" }));
        waiting["status"]["conditions"] = json!(conditions);
        let (lifecycle, calls) = controller(waiting.clone(), waiting);
        for _ in 0..3 {
            lifecycle.reconcile(("n".into(), "web-1".into())).await;
        }
        let (plain, status) = (
            "PATCH /api/v1/namespaces/n/pods/web-1",
            "PATCH /api/v1/namespaces/n/pods/web-1/status",
        );
        assert_eq!(*calls.lock(), [status, plain, status]);
    }

    /// The webhook has seen neither the end of the operation nor the write that corrected its labels.
    #[tokio::test]
    async fn pod_comes_back_without_the_protection_from_before() {
        let slices = Arc::<Slices>::default();
        let endpoints = Arc::new(EndpointsAdapter(Arc::clone(&slices)));
        let endpoints = NamedAdapter::new("endpoints", endpoints, None);
        let adapters = Adapters::new(vec![endpoints], None).unwrap();
        let traffic = Traffic::new(adapters, slices);
        let finalizer = EmployerName::new("Service", "n", "web").finalizer();
        let entry = json!({ "expectedFinalizers": { "Service/n/web": finalizer } }).to_string();
        let mut off = pod("a");
        off["metadata"]["annotations"] = json!({ (keys::AVAILABLE_CONDITIONS): entry });
        let path = "PATCH /api/v1/namespaces/n/pods/web-1";
        let condition = format!("{path}/status");
        for (finalizers, call) in [(json!([finalizer]), path), (json!([]), &condition)] {
            off["metadata"]["finalizers"] = finalizers;
            let (lifecycle, calls) =
                controller_with(off.clone(), off.clone(), Arc::clone(&traffic));
            lifecycle.reconcile(("n".into(), "web-1".into())).await;
            assert_eq!(calls.lock()[0], call);
        }
    }

    #[test]
    fn many_expected_finalizers_are_read_a_few_at_a_time() {
        let keys: Vec<String> = (0..1_500).map(|n| format!("Service/n/{n}")).collect();
        let runs = (0..200).map(|run| {
            let now = Timestamp::from_second(1_800_000_000 + 30 * run).unwrap();
            objects_to_read(&keys, now)
        });
        let mut read: Vec<&String> = runs
            .inspect(|keys| assert!(keys.len() <= MAX_OBJECT_READS))
            .flatten()
            .collect();
        read.sort();
        read.dedup();
        assert_eq!(read.len(), keys.len());
        assert!(objects_to_read(&[], Timestamp::UNIX_EPOCH).is_empty());
    }

    #[tokio::test]
    async fn pod_too_large_for_cache_is_read_and_advanced() {
        let path = "/api/v1/namespaces/n/pods/web-1";
        let (_, calls) = reconcile_stub(pod("a")).await;
        assert_eq!(calls[0], format!("GET {path}"));
        let written = calls[1..].iter().any(|call| call.starts_with("PATCH "));
        assert!(written, "{calls:?}");
        // Another Pod with the same name, and a Pod that can't be parsed.
        let mut other = pod("a");
        other["metadata"]["uid"] = "other".into();
        for live in [other, json!({ "metadata": 1 })] {
            let (outcome, calls) = reconcile_stub(live).await;
            assert_eq!((outcome, calls.len()), (ReconcileOutcome::Done, 1));
        }
    }
}
