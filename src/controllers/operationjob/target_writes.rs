//! Sends the requests of a plan for the Pods, several at a time.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::execution::Execution;
use super::recreate_requests::RecreateRequests;
use crate::cluster::events::pod_reference;
use crate::cluster::pod_requests;
use crate::controllers::collaset::refusals::RefusalKey;
use crate::controllers::requests::{RequestError, request_with_deadline};
use crate::domain::operationjob::actions::{PodPatch, TargetAction};
use crate::domain::operationjob::observed::LiveName;
use crate::domain::operationjob::restart::recreate_request::{self, RequestState};
use crate::domain::pod::Pod;

/// Most requests at a time.
const MAX_CONCURRENT: usize = 8;
/// Most requests between two plans.
const MAX_REQUESTS: usize = 100;
/// Pause after the last request of a batch that left requests over.
const NEXT_BATCH: Duration = Duration::from_millis(1);

/// Pause after a request that had no effect: it was refused, or the cache is behind.
const NOT_DONE: Duration = Duration::from_millis(200);

/// How the requests for the Pods ended.
#[derive(Debug, Default)]
pub struct TargetWrites {
    /// Whether a request was answered or refused, so that the next plan differs.
    pub has_written: bool,
    /// The time until a request that had to wait may be sent.
    pub pause: Option<Duration>,
}

impl Execution<'_> {
    /// Sends the requests that may be sent now.
    pub async fn carry_out_actions(&self, actions: &[TargetAction]) -> TargetWrites {
        let mut writes = TargetWrites::default();
        let mut due: Vec<&TargetAction> = Vec::new();
        // One answer is for all targets.
        let is_discovery = |action: &&TargetAction| **action == TargetAction::DiscoverRequests;
        let discovery = actions.iter().find(is_discovery);
        let others = actions.iter().filter(|action| !is_discovery(action));
        for action in discovery.into_iter().chain(others) {
            match self.action_pause(action) {
                Some(pause) => {
                    writes.pause = Some(writes.pause.map_or(pause, |other| other.min(pause)));
                }
                None if due.len() < MAX_REQUESTS => due.push(action),
                None => writes.pause = Some(NEXT_BATCH),
            }
        }
        for batch in due.chunks(MAX_CONCURRENT) {
            let sent = join_all(batch.iter().map(|action| self.send_action(action))).await;
            writes.has_written |= sent.contains(&true);
            if sent.contains(&false) {
                let pause = writes.pause.map_or(NOT_DONE, |pause| pause.min(NOT_DONE));
                writes.pause = Some(pause);
            }
        }
        writes
    }

    /// The remaining time until a request may be sent: it was refused, the cache does not show the last write yet, or a
    /// write may still be made.
    fn action_pause(&self, action: &TargetAction) -> Option<Duration> {
        let key = refusal_key(action);
        if let Some(pause) = self.memory.pause_of(&key, self.generation()) {
            return Some(pause);
        }
        let now = Instant::now();
        match action {
            TargetAction::Patch(PodPatch { pod, .. }) => {
                let metadata = &pod.metadata;
                let written = &self.memory.written;
                written.time_until_visible(&metadata.uid, metadata.resource_version, now)
            }
            TargetAction::CheckWrite(pod) => {
                let unanswered = &self.memory.unanswered;
                unanswered.time_until_read(&pod.metadata.uid, now)
            }
            _ => None,
        }
    }

    /// Sends a request. Returns whether it had an effect, so that the next plan differs.
    async fn send_action(&self, action: &TargetAction) -> bool {
        let result = match action {
            TargetAction::Lookup(name) => self.look_up(name).await,
            TargetAction::ReadUnmanaged { name, uid } => {
                self.read_unmanaged(name, uid.as_deref()).await
            }
            TargetAction::CheckWrite(pod) => self.check_write(pod).await,
            TargetAction::Patch(patch) => self.patch_pod(patch).await,
            TargetAction::DiscoverRequests => self.discover().await,
            TargetAction::CreateRequest {
                pod,
                containers,
                deadline_seconds,
            } => {
                self.create_request(pod, containers, *deadline_seconds)
                    .await
            }
            TargetAction::ReadRequest(uid) => self.read_request(uid).await,
            TargetAction::DeleteRequest(uid) => self.delete_request(uid).await,
        };
        let (key, text_key) = (refusal_key(action), action.refusal_key());
        match result {
            Ok(has_effect) => {
                self.memory.clear_refusal(&key, text_key.as_ref());
                has_effect
            }
            Err(error) => {
                self.record_refusal(key, text_key, &error);
                false
            }
        }
    }

    /// Reads a Pod that is not among the managed Pods. A managed Pod is about to appear there, so it counts as neither.
    async fn look_up(&self, name: &str) -> Result<bool, RequestError> {
        let request = pod_requests::get_pod(&self.context.client, self.namespace(), name);
        let pod = request_with_deadline(&format!("Pod {name}"), request).await?;
        match pod {
            None => self.memory.record_name(name, LiveName::Absent),
            Some(pod) if !pod.is_managed() => self.memory.record_name(name, LiveName::Unmanaged),
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a Pod of a failed target. One that is managed again is released as all others are.
    async fn read_unmanaged(&self, name: &str, uid: Option<&str>) -> Result<bool, RequestError> {
        let request = pod_requests::get_pod(&self.context.client, self.namespace(), name);
        let pod = request_with_deadline(&format!("Pod {name}"), request).await?;
        let pod = pod.filter(|pod| uid.is_none_or(|uid| pod.metadata.uid == uid));
        if pod.as_ref().is_some_and(Pod::is_managed) {
            return Ok(false);
        }
        let key = uid.unwrap_or(name);
        self.memory.record_unmanaged(key, pod.map(Arc::new));
        Ok(true)
    }

    /// Reads a Pod whose last write was not answered. Returns false if the cache must show the Pod first.
    async fn check_write(&self, pod: &Pod) -> Result<bool, RequestError> {
        let (uid, name) = (&pod.metadata.uid, &pod.metadata.name);
        let request = pod_requests::get_pod(&self.context.client, self.namespace(), name);
        let found = request_with_deadline(&format!("Pod {name}"), request).await?;
        let found = found.filter(|found| found.metadata.uid == *uid);
        let version = found.map(|found| found.metadata.resource_version);
        Ok(self.memory.unanswered.settle(uid, version, Instant::now()))
    }

    async fn patch_pod(&self, patch: &PodPatch) -> Result<bool, RequestError> {
        let metadata = &patch.pod.metadata;
        let (uid, name) = (&metadata.uid, &metadata.name);
        let target = (self.namespace(), name.as_str());
        let request =
            pod_requests::patch_pod(&self.context.client, target, None, patch_body(patch));
        let answer = request_with_deadline(&format!("change of Pod {name}"), request).await;
        if let Err(RequestError::Failed(_)) = &answer {
            self.memory.unanswered.record(&patch.pod, Instant::now());
            self.memory.forget_unmanaged(uid);
        }
        let pod = answer?;
        let version = pod.metadata.resource_version;
        if version == metadata.resource_version {
            // Nothing was changed: a webhook has undone the change. The same plan would send it again without end.
            return Err(RequestError::not_as_written(&format!("Pod {name}")));
        }
        let written = &self.memory.written;
        written.record_version(uid, version, Instant::now());
        self.memory.forget_unmanaged(uid);
        if let Some((reason, message)) = &patch.event {
            let subject = pod_reference(&patch.pod);
            let recorder = &self.context.events;
            recorder.record_distinct_event(&subject, false, reason, message);
        }
        Ok(true)
    }

    async fn create_request(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        deadline_seconds: i64,
    ) -> Result<bool, RequestError> {
        let uid = &pod.metadata.uid;
        let version = match self.request_api.known() {
            None => return self.discover().await,
            Some(None) => {
                let message = "the API server does not serve ContainerRecreateRequests any more";
                let state = RequestState::NoDaemon(message.to_owned());
                self.memory.record_request(uid, Some(state));
                return Ok(true);
            }
            Some(Some(version)) => version,
        };
        let of_pod = pod.spec.containers.iter();
        let chosen: Vec<_> = of_pod.filter(|c| containers.contains(&c.name)).collect();
        let body = recreate_request::body(&version, self.job, pod, &chosen, deadline_seconds);
        let request = self.recreate_requests(&version);
        let description = format!("ContainerRecreateRequest for Pod {}", pod.metadata.name);
        let state = match request_with_deadline(&description, request.create(&body)).await {
            // A quota may have room again.
            Err(RequestError::Denied(message)) if message.contains("exceeded quota") => {
                return Err(RequestError::Failed(message));
            }
            Err(RequestError::Refused(message) | RequestError::Denied(message)) => {
                RequestState::Refused(message)
            }
            Ok(()) | Err(RequestError::Exists) => RequestState::InProgress,
            Err(error) => {
                self.memory.forget_request(uid); // it may exist now
                return Err(error);
            }
        };
        self.memory.record_request(uid, Some(state));
        Ok(true)
    }

    async fn read_request(&self, uid: &str) -> Result<bool, RequestError> {
        let Some(version) = self.request_api.known() else {
            return self.discover().await;
        };
        let state = match &version {
            Some(version) => {
                let requests = self.recreate_requests(version);
                let name = recreate_request::name(self.memory.uid(), uid);
                request_with_deadline("ContainerRecreateRequest", requests.read(&name)).await?
            }
            None => None,
        };
        self.memory.record_request(uid, state);
        Ok(true)
    }

    async fn delete_request(&self, uid: &str) -> Result<bool, RequestError> {
        let Some(version) = self.request_api.known() else {
            return self.discover().await;
        };
        if let Some(version) = &version {
            let requests = self.recreate_requests(version);
            let name = recreate_request::name(self.memory.uid(), uid);
            request_with_deadline("ContainerRecreateRequest", requests.delete(&name)).await?;
        }
        self.memory.record_request(uid, None);
        Ok(true)
    }

    async fn discover(&self) -> Result<bool, RequestError> {
        let request = self.request_api.discover(&self.context.client);
        request_with_deadline("versions of ContainerRecreateRequests", request).await?;
        Ok(true)
    }

    fn recreate_requests<'a>(&'a self, version: &'a str) -> RecreateRequests<'a> {
        RecreateRequests {
            client: &self.context.client,
            namespace: self.namespace(),
            version,
        }
    }
}

/// What the backoff of a request is counted by.
fn refusal_key(action: &TargetAction) -> RefusalKey {
    match action {
        TargetAction::DiscoverRequests => RefusalKey::LiveRead,
        TargetAction::Lookup(name) => RefusalKey::PodRead(name.clone()),
        TargetAction::ReadUnmanaged { name, .. } => RefusalKey::PodRead(name.clone()),
        TargetAction::CheckWrite(pod) => RefusalKey::PodRead(pod.metadata.name.clone()),
        TargetAction::Patch(patch) => RefusalKey::PodWrite(patch.pod.metadata.uid.clone()),
        TargetAction::CreateRequest { pod, .. } => {
            RefusalKey::RecreateRequest(pod.metadata.uid.clone())
        }
        TargetAction::DeleteRequest(uid) => RefusalKey::RecreateRequest(uid.clone()),
        TargetAction::ReadRequest(uid) => RefusalKey::PodRead(uid.clone()),
    }
}

/// The strategic merge patch of a Pod.
fn patch_body(patch: &PodPatch) -> Value {
    let metadata = &patch.pod.metadata;
    let mut changes = json!({
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version.to_string(),
    });
    if !patch.labels.is_empty() {
        changes["labels"] = patch.labels.to_merge_patch();
    }
    if !patch.annotations.is_empty() {
        changes["annotations"] = json!(patch.annotations);
    }
    if !patch.remove_finalizers.is_empty() {
        changes["$deleteFromPrimitiveList/finalizers"] = json!(patch.remove_finalizers);
    }
    let mut body = json!({ "metadata": changes });
    if let Some(spec) = &patch.spec {
        body["spec"] = spec.clone();
    }
    body
}
