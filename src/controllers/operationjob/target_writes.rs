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
        let is_discovered = |action: &&TargetAction| **action == TargetAction::DiscoverRequests;
        // One answer is for all targets.
        due.extend(actions.iter().find(is_discovered));
        let others = actions.iter().filter(|action| !is_discovered(action));
        for action in others {
            match self.action_pause(action) {
                Some(pause) => {
                    writes.pause = Some(writes.pause.map_or(pause, |other| other.min(pause)));
                }
                None if due.len() < MAX_REQUESTS => due.push(action),
                None => writes.pause = Some(NEXT_BATCH),
            }
        }
        writes.has_written = !due.is_empty();
        for batch in due.chunks(MAX_CONCURRENT) {
            join_all(batch.iter().map(|action| self.send_action(action))).await;
        }
        writes
    }

    /// The remaining time until a request may be sent: it was refused, or the cache does not show the last write yet.
    fn action_pause(&self, action: &TargetAction) -> Option<Duration> {
        let key = refusal_key(action)?;
        if let Some(pause) = self.memory.pause_of(&key, self.generation()) {
            return Some(pause);
        }
        let TargetAction::Patch(PodPatch { pod, .. }) = action else {
            return None;
        };
        let metadata = &pod.metadata;
        let written = &self.memory.written;
        written.time_until_visible(&metadata.uid, metadata.resource_version, Instant::now())
    }

    async fn send_action(&self, action: &TargetAction) {
        let result = match action {
            TargetAction::Lookup(name) => self.look_up(name).await,
            TargetAction::ReleaseUnmanaged { name, uid, labels } => {
                self.release_unmanaged(name, uid, labels).await
            }
            TargetAction::Patch(patch) => self.patch_pod(patch).await,
            TargetAction::DiscoverRequests => {
                let request = self.request_api.discover(&self.context.client);
                request_with_deadline("versions of ContainerRecreateRequests", request).await
            }
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
        let Some(key) = refusal_key(action) else {
            return;
        };
        match result {
            Ok(()) => self.memory.clear_refusal(&key),
            Err(error) => self.record_refusal(key, &error),
        }
    }

    /// Reads a Pod that is not among the managed Pods. A managed Pod is about to appear there, so it counts as neither.
    async fn look_up(&self, name: &str) -> Result<(), RequestError> {
        let request = pod_requests::get_pod(&self.context.client, self.namespace(), name);
        let pod = request_with_deadline(&format!("Pod {name}"), request).await?;
        match pod {
            None => self.memory.record_name(name, LiveName::Absent),
            Some(pod) if !pod.is_managed() => self.memory.record_name(name, LiveName::Unmanaged),
            Some(_) => {}
        }
        Ok(())
    }

    /// Removes labels from a Pod that is not managed. A Pod that is managed again is released as all others are.
    async fn release_unmanaged(
        &self,
        name: &str,
        uid: &str,
        labels: &[String],
    ) -> Result<(), RequestError> {
        let request = pod_requests::get_pod(&self.context.client, self.namespace(), name);
        let pod = request_with_deadline(&format!("Pod {name}"), request).await?;
        match pod.filter(|pod| pod.metadata.uid == uid) {
            Some(pod) if pod.is_managed() => return Ok(()),
            Some(pod) if labels.iter().any(|key| pod.label(key).is_some()) => {
                let mut patch = PodPatch::of(&Arc::new(pod));
                let removed = labels.iter().map(|key| (key.clone(), None));
                patch.labels.0.extend(removed);
                self.patch_pod(&patch).await?;
            }
            _ => {}
        }
        self.memory.record_gone(uid);
        Ok(())
    }

    async fn patch_pod(&self, patch: &PodPatch) -> Result<(), RequestError> {
        let metadata = &patch.pod.metadata;
        let (uid, name) = (&metadata.uid, &metadata.name);
        let target = (self.namespace(), name.as_str());
        let request =
            pod_requests::patch_pod(&self.context.client, target, None, patch_body(patch));
        let pod = request_with_deadline(&format!("change of Pod {name}"), request).await?;
        let version = pod.metadata.resource_version;
        if version == metadata.resource_version {
            // Nothing was changed: a webhook has undone the change. The same plan would send it again without end.
            return Err(RequestError::not_as_written(&format!("Pod {name}")));
        }
        let written = &self.memory.written;
        written.record_version(uid, version, Instant::now());
        if let Some((reason, message)) = &patch.event {
            let subject = pod_reference(&patch.pod);
            let recorder = &self.context.events;
            recorder.record_distinct_event(&subject, false, reason, message);
        }
        Ok(())
    }

    async fn create_request(
        &self,
        pod: &Arc<Pod>,
        containers: &[String],
        deadline_seconds: i64,
    ) -> Result<(), RequestError> {
        let Some(version) = self.request_api.known().flatten() else {
            return self.discover_again().await;
        };
        let of_pod = pod.spec.containers.iter();
        let chosen: Vec<_> = of_pod.filter(|c| containers.contains(&c.name)).collect();
        let body = recreate_request::body(&version, self.job, pod, &chosen, deadline_seconds);
        let request = self.recreate_requests(&version);
        let description = format!("ContainerRecreateRequest for Pod {}", pod.metadata.name);
        let uid = &pod.metadata.uid;
        match request_with_deadline(&description, request.create(&body)).await {
            Err(RequestError::Refused(message) | RequestError::Denied(message)) => {
                let state = RequestState::Refused(message);
                self.memory.record_request(uid, Some(state));
                Ok(())
            }
            Ok(()) | Err(RequestError::Exists) => {
                let state = RequestState::InProgress;
                self.memory.record_request(uid, Some(state));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn read_request(&self, uid: &str) -> Result<(), RequestError> {
        let Some(version) = self.request_api.known() else {
            return self.discover_again().await;
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
        Ok(())
    }

    async fn delete_request(&self, uid: &str) -> Result<(), RequestError> {
        let Some(version) = self.request_api.known() else {
            return self.discover_again().await;
        };
        if let Some(version) = &version {
            let requests = self.recreate_requests(version);
            let name = recreate_request::name(self.memory.uid(), uid);
            request_with_deadline("ContainerRecreateRequest", requests.delete(&name)).await?;
        }
        self.memory.record_request(uid, None);
        Ok(())
    }

    async fn discover_again(&self) -> Result<(), RequestError> {
        let request = self.request_api.discover(&self.context.client);
        request_with_deadline("versions of ContainerRecreateRequests", request).await
    }

    fn recreate_requests<'a>(&'a self, version: &'a str) -> RecreateRequests<'a> {
        RecreateRequests {
            client: &self.context.client,
            namespace: self.namespace(),
            version,
        }
    }
}

/// What the backoff of a request is counted by; `None` for the one request that is for all targets.
fn refusal_key(action: &TargetAction) -> Option<RefusalKey> {
    let uid = match action {
        TargetAction::DiscoverRequests => return None,
        TargetAction::ReleaseUnmanaged { uid, .. } => uid,
        TargetAction::Lookup(name) => return Some(RefusalKey::PodRead(name.clone())),
        TargetAction::Patch(PodPatch { pod, .. }) | TargetAction::CreateRequest { pod, .. } => {
            &pod.metadata.uid
        }
        TargetAction::ReadRequest(uid) | TargetAction::DeleteRequest(uid) => uid,
    };
    Some(RefusalKey::PodWrite(uid.clone()))
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
