//! Writes the finalizer, the report and the Events of an employer.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::params::Patch;
use serde_json::{Map, Value, json};
use tracing::{debug, info, warn};
use traffic::EmployerKind;

use super::super::api_calls::{call_outcome, with_api_deadline};
use super::object_writes::{self, ObjectWrite};
use super::{EmployerMemory, TrafficController};
use crate::api::keys;
use crate::api_request::ApiFailure;
use crate::cluster::events::EventRecorder;
use crate::cluster::request_path::ResourcePath;
use crate::cluster::traffic::EmployerObject;
use crate::cluster::traffic::employers::{CachedEmployer, is_clean_finalizer};
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::standard_conditions::set_condition;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::report::EmployerReport;

/// The reason of Events about failures. Kuperator has one for each kind of failure; this is the most general.
const FAILED_REASON: &str = "SyncEmployeesFailed";

/// Whether an employer has the finalizer, and none of Kuperator.
pub fn has_finalizer(employer: &CachedEmployer) -> bool {
    let finalizers = employer.state.finalizers.iter();
    let ours: Vec<_> = finalizers.filter(|f| is_clean_finalizer(f)).collect();
    ours == [keys::CLEAN_FINALIZER]
}

/// Whether an employer has the finalizer and the record of its adapter, so that members may be registered.
pub fn is_prepared(employer: &CachedEmployer, adapter: &str) -> bool {
    let annotations = &employer.state.employer.annotations;
    let present = AdapterInUse::of(annotations).present();
    let records = keys::CONSIST_RECORDS.iter();
    let has_records = records
        .into_iter()
        .any(|key| annotations.contains_key(*key));
    has_finalizer(employer) && present == Some(adapter) && !has_records
}

/// Whether the stored report says the same as this one, apart from the time of the next try: each try would write the
/// employer otherwise.
pub fn is_reported(employer: &CachedEmployer, report: &EmployerReport) -> bool {
    stored_report(employer).is_some_and(|stored| stored.says_same(report))
}

/// The stored report; `None` if there is none that can be read.
pub fn stored_report(employer: &CachedEmployer) -> Option<EmployerReport> {
    let annotations = &employer.state.employer.annotations;
    serde_json::from_str(annotations.get(keys::CONSIST_STATUS)?).ok()
}

impl TrafficController {
    /// Gives an employer the finalizer, and records its adapter. If it was replaced by its manifest, it has lost both, or has
    /// an earlier record. Then the adapters whose members this leader knows are recorded again. Returns the employer as it is
    /// stored then; `None` if the API server has stored something else.
    pub(super) async fn prepare(
        &self,
        employer: &CachedEmployer,
        adapter: &str,
        memory: &EmployerMemory,
    ) -> Result<Option<Arc<CachedEmployer>>, ReconcileOutcome> {
        let others = employer
            .state
            .finalizers
            .iter()
            .filter(|f| !is_clean_finalizer(f));
        let mut finalizers: Vec<_> = others.map(String::as_str).collect();
        let others_only = finalizers.len() == employer.state.finalizers.len();
        finalizers.push(keys::CLEAN_FINALIZER);
        let in_use = AdapterInUse::of(&employer.state.employer.annotations);
        let is_replaced = others_only && in_use.present().is_none();
        let has_record = in_use.present().is_some();
        let known = memory.plans.iter().filter(|(_, plan)| {
            is_replaced && !plan.is_empty() || has_record && plan.may_have_members()
        });
        let known = known.map(|(name, _)| name.as_str());
        let mut annotations = no_records();
        annotations.insert(
            keys::CONSIST_ADAPTER_IN_USE.to_owned(),
            json!(in_use.moved_to(adapter, known)),
        );
        let metadata = json!({ "finalizers": finalizers, "annotations": annotations });
        self.patch_object(employer, "prepare an employer", metadata)
            .await?;
        let stored = self.context.traffic.employers.get(&employer.name);
        let Some(stored) = stored else {
            return Err(ReconcileOutcome::Done); // it is gone, or has given up its traffic
        };
        Ok(Some(stored).filter(|stored| is_prepared(stored, adapter)))
    }

    /// Forgets a former adapter whose members have all been removed.
    pub(super) async fn forget_former(
        &self,
        employer: &CachedEmployer,
        former: &str,
    ) -> Result<(), ReconcileOutcome> {
        let in_use = AdapterInUse::of(&employer.state.employer.annotations);
        let annotations = json!({ (keys::CONSIST_ADAPTER_IN_USE): in_use.without(former) });
        let metadata = json!({ "annotations": annotations });
        self.patch_object(employer, "forget the former adapter", metadata)
            .await
    }

    /// Reads an employer live.
    pub(super) async fn read_employer(
        &self,
        name: &EmployerName,
    ) -> Result<Option<EmployerObject>, ReconcileOutcome> {
        let Some(cache) = self.context.traffic.employers.kind(&name.kind) else {
            return Ok(None);
        };
        let request = async {
            let request = path_of(&cache.kind, &name.namespace)?.get(&name.name)?;
            self.context.client.request::<EmployerObject>(request).await
        };
        match with_api_deadline(request).await {
            Err(ApiFailure::Answered(status)) if status.code == 404 => Ok(None),
            answer => call_outcome("read an employer", false, answer).map(Some),
        }
    }

    /// Tells users that members stay registered, because their adapter is gone.
    pub(super) fn report_left_members(&self, employer: &CachedEmployer, formers: &[String]) {
        let Some(former) = formers.first() else {
            return;
        };
        let about = reference(self.kind_of(employer), employer);
        let message = format!(
            "adapter {former} is not configured any more, so the members that it may have registered stay registered; \
             remove them by hand"
        );
        record_failure(&self.context.events, &about, &message);
    }

    /// Removes everything of ResourceConsist from an employer that has no marks and no members any more.
    pub(super) async fn finish(&self, employer: &CachedEmployer) -> Result<(), ReconcileOutcome> {
        let present = &employer.state.employer.annotations;
        let has_report = present.contains_key(keys::CONSIST_STATUS);
        let conditions = conditions_without_ours(employer);
        // The report goes with the condition, after the finalizer: a refusal is reported, and the report keeps the
        // employer in the cache.
        let report_is_last = has_report && conditions.is_some();
        if let Some(conditions) = conditions.as_ref().filter(|_| !has_report) {
            self.remove_condition(employer, conditions).await?;
        }
        let employers = &self.context.traffic.employers;
        let Some(employer) = employers.get(&employer.name) else {
            return Ok(());
        };
        let finalizers = employer.state.finalizers.iter();
        let others: Vec<_> = finalizers.filter(|f| !is_clean_finalizer(f)).collect();
        let mut annotations = no_records();
        let mut goes = others.len() < employer.state.finalizers.len();
        for key in keys::CONSIST_WRITTEN {
            if key != keys::CONSIST_STATUS || !report_is_last {
                goes |= employer.state.employer.annotations.contains_key(key);
                annotations.insert(key.to_owned(), Value::Null);
            }
        }
        if goes {
            let metadata = json!({ "finalizers": others, "annotations": annotations });
            self.patch_object(&employer, "finish an employer", metadata)
                .await?;
        }
        match (conditions, employers.get(&employer.name)) {
            (Some(conditions), Some(employer)) if report_is_last => {
                self.remove_condition(&employer, &conditions).await
            }
            _ => Ok(()),
        }
    }

    /// Replaces the conditions of an employer, and removes its report.
    async fn remove_condition(
        &self,
        employer: &CachedEmployer,
        conditions: &[Condition],
    ) -> Result<(), ReconcileOutcome> {
        let body = json!({
            "metadata": { "annotations": { (keys::CONSIST_STATUS): Value::Null } },
            "status": { "conditions": conditions },
        });
        let description = "remove the condition of an employer";
        self.patch(employer, description, Some("status"), body)
            .await
    }

    /// Writes the report into the annotation, and the condition into the status of a Service.
    pub(super) async fn write_report(
        &self,
        employer: &CachedEmployer,
        report: &EmployerReport,
    ) -> Result<(), ReconcileOutcome> {
        if is_reported(employer, report) {
            return Ok(());
        }
        let failed_before = stored_report(employer).is_some_and(|s| s.last_error.is_some());
        match &report.last_error {
            Some(error) if !failed_before => {
                warn!(
                    employer = employer.name.key(),
                    adapter = report.adapter,
                    error,
                    "traffic is not as the Pods need"
                );
            }
            None if failed_before => info!(
                employer = employer.name.key(),
                adapter = report.adapter,
                "the failure has ended"
            ),
            _ => {}
        }
        if let Some(error) = &report.last_error {
            let about = reference(self.kind_of(employer), employer);
            let message = format!("traffic is not as the Pods need: {error}");
            record_failure(&self.context.events, &about, &message);
        }
        let text = serde_json::to_string(report).unwrap_or_default();
        let annotations = json!({ (keys::CONSIST_STATUS): text });
        if !is_service(employer) {
            let body = json!({ "metadata": { "annotations": annotations } });
            return self
                .patch(employer, "write the report of an employer", None, body)
                .await;
        }
        // The API server takes annotations with the status of a Service, so one request writes both.
        let mut conditions = employer.state.conditions.clone();
        let (value, reason, message) = report.condition();
        set_condition(
            &mut conditions,
            (Time((self.context.now)()), employer.state.generation),
            (keys::CONSIST_CONDITION, value),
            (reason, message),
        );
        let body = json!({
            "metadata": { "annotations": annotations },
            "status": { "conditions": conditions },
        });
        self.patch(
            employer,
            "write the status of a Service",
            Some("status"),
            body,
        )
        .await
    }

    /// Merge-patches the metadata of an employer, unless the same write was refused or taken back a moment ago.
    async fn patch_object(
        &self,
        employer: &CachedEmployer,
        purpose: &'static str,
        metadata: Value,
    ) -> Result<(), ReconcileOutcome> {
        let adapter = &metadata["annotations"][keys::CONSIST_ADAPTER_IN_USE];
        let write = ObjectWrite {
            uid: employer.state.employer.uid.clone(),
            purpose,
            adapter: adapter.as_str().unwrap_or_default().to_owned(),
        };
        let name = &employer.name;
        if let Some(pause) = self.object_writes.pause(name, &write) {
            return Err(ReconcileOutcome::After(pause));
        }
        let body = json!({ "metadata": metadata });
        let answer = self.send_patch(employer, None, body).await;
        let refusal = answer.as_ref().err().and_then(object_writes::refusal);
        if answer.is_ok() || refusal.is_some() {
            self.object_writes.add(name, write, refusal);
        }
        self.take_answer(employer, purpose, answer)
    }

    /// Merge-patches an employer on condition of its resourceVersion, and takes the answer into the cache.
    async fn patch(
        &self,
        employer: &CachedEmployer,
        description: &'static str,
        subresource: Option<&str>,
        body: Value,
    ) -> Result<(), ReconcileOutcome> {
        let answer = self.send_patch(employer, subresource, body).await;
        self.take_answer(employer, description, answer)
    }

    async fn send_patch(
        &self,
        employer: &CachedEmployer,
        subresource: Option<&str>,
        mut body: Value,
    ) -> Result<Option<EmployerObject>, ApiFailure> {
        let Some(kind) = self.kind_of(employer) else {
            return Ok(None);
        };
        let metadata = body
            .as_object_mut()
            .map(|body| body.entry("metadata").or_insert(json!({})));
        if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), json!(employer.state.employer.uid));
            metadata.insert("resourceVersion".to_owned(), json!(employer.state.version));
        }
        let request = async {
            let path = path_of(kind, &employer.name.namespace)?;
            let request = path.patch(&employer.name.name, subresource, &Patch::Merge(body))?;
            self.context.client.request::<EmployerObject>(request).await
        };
        with_api_deadline(request).await.map(Some)
    }

    fn take_answer(
        &self,
        employer: &CachedEmployer,
        description: &'static str,
        answer: Result<Option<EmployerObject>, ApiFailure>,
    ) -> Result<(), ReconcileOutcome> {
        if let Err(ApiFailure::Answered(status)) = &answer
            && status.code == 404
        {
            debug!(description, "the employer is gone");
            return Ok(());
        }
        let traffic = &self.context.traffic;
        let stored = call_outcome(description, false, answer)?;
        if let (Some(cache), Some(stored)) = (traffic.employers.kind(&employer.name.kind), stored) {
            cache.apply_own_write(&traffic.adapters, stored);
        }
        Ok(())
    }

    fn kind_of(&self, employer: &CachedEmployer) -> Option<&EmployerKind> {
        let cache = self.context.traffic.employers.kind(&employer.name.kind)?;
        Some(&cache.kind)
    }
}

/// Tells users of a failure. Each text is an Event of its own, because a Service can have several failures at once: one of
/// a Pod, one of its load balancer, and members that are left.
fn record_failure(events: &EventRecorder, about: &ObjectReference, message: &str) {
    events.record_distinct_event(about, true, FAILED_REASON, message);
}

/// The conditions of a released Service without ours; `None` if nothing has to be written.
fn conditions_without_ours(employer: &CachedEmployer) -> Option<Vec<Condition>> {
    let conditions = &employer.state.conditions;
    let is_ours = |condition: &&Condition| condition.type_ == keys::CONSIST_CONDITION;
    conditions.iter().find(is_ours)?;
    let goes = employer.state.employer.deleting || !is_service(employer);
    let others = conditions.iter().filter(|condition| !is_ours(condition));
    (!goes).then(|| others.cloned().collect())
}

/// The annotations of Kuperator, to be removed.
fn no_records() -> Map<String, Value> {
    let records = keys::CONSIST_RECORDS.iter();
    records
        .map(|key| ((*key).to_owned(), Value::Null))
        .collect()
}

fn is_service(employer: &CachedEmployer) -> bool {
    employer.name.kind == "Service"
}

fn path_of(kind: &EmployerKind, namespace: &str) -> Result<ResourcePath, kube::Error> {
    ResourcePath::from_parts(&kind.api_path(), namespace, &kind.plural)
}

fn reference(kind: Option<&EmployerKind>, employer: &CachedEmployer) -> ObjectReference {
    ObjectReference {
        api_version: kind.map(EmployerKind::api_version),
        kind: Some(employer.name.kind.clone()),
        namespace: Some(employer.name.namespace.clone()),
        name: Some(employer.name.name.clone()),
        uid: Some(employer.state.employer.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use jiff::Timestamp;
    use testbed::api::FakeApi;

    use super::*;

    /// The messages of the Events that are created when these failures of these Services are told within a second.
    async fn created(failures: &[(&str, String)]) -> Vec<String> {
        let api = FakeApi::default();
        let events = EventRecorder::new(api.client(), || Timestamp::UNIX_EPOCH);
        for (service, message) in failures {
            let about = ObjectReference {
                namespace: Some("shop".to_owned()),
                name: Some((*service).to_owned()),
                uid: Some((*service).to_owned()),
                ..ObjectReference::default()
            };
            record_failure(&events, &about, message);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let bodies = api.bodies("POST /api/v1/namespaces/shop/events");
        let message = |body: &Value| body["message"].as_str().unwrap().to_owned();
        bodies.iter().map(message).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_of_each_service_is_an_event() {
        let (pod, left) = ("Pod web-0: no port".to_owned(), "members stay".to_owned());
        let failures = [
            ("web", pod.clone()),
            ("web", left.clone()),
            ("web", pod.clone()),
            ("api", pod.clone()),
        ];
        let told = created(&failures).await;
        assert_eq!(told, [pod.clone(), left, pod], "once each");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_always_differ_are_no_flood() {
        let failures: Vec<_> = (0..100).map(|n| ("web", format!("request {n}"))).collect();
        assert_eq!(created(&failures).await.len(), 21);
    }
}
