//! How the writes of a plan end, on a fake API server.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};

use super::execution::{Execution, RunStep};
use super::memory::JobMemory;
use super::recreate_requests::RequestApi;
use crate::api::keys;
use crate::api::operationjob::OperationJobStatus;
use crate::cluster::objects::{CachedJob, CachedKind, JobObject};
use crate::controllers::ControllerContext;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::operationjob::actions::{PodPatch, TargetAction};
use crate::domain::operationjob::plan::JobPlan;
use crate::domain::pod::Pod;
use crate::domain::standard_conditions::set_condition;

const JOB: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/operationjobs/swap";

/// A job, and an API server that stores it.
struct Fixture {
    api: FakeApi,
    context: Arc<ControllerContext>,
    memory: JobMemory,
    request_api: RequestApi,
}

impl Fixture {
    /// The job has its finalizer and these changes.
    fn new(change: &Value) -> Fixture {
        let api = FakeApi::default();
        let mut object = json!({
            "metadata": {
                "namespace": "n", "name": "swap", "uid": "job", "generation": 1,
                "finalizers": [keys::PROTECTED_FINALIZER],
            },
            "spec": { "action": "Replace", "targets": [{ "name": "web-0" }] },
        });
        json_patch::merge(&mut object, change);
        api.put(JOB, object);
        let fixture = Fixture {
            context: ControllerContext::at_epoch(api.client()),
            api,
            memory: JobMemory::new("job"),
            request_api: RequestApi::default(),
        };
        let stored = fixture.api.0.lock().objects[JOB].to_string();
        let object: JobObject = serde_json::from_str(&stored).unwrap();
        let cache = JobObject::object_cache(&fixture.context.objects);
        cache.apply(object.object_key(), object.into_cached());
        fixture
    }

    fn cached(&self) -> Option<Arc<CachedJob>> {
        self.context.objects.jobs.get("n", "swap")
    }

    async fn carry_out(&self, plan: &JobPlan) -> RunStep {
        let cached = self.cached().unwrap();
        let execution = Execution {
            context: &self.context,
            memory: &self.memory,
            request_api: &self.request_api,
            job: &cached.object,
        };
        execution.carry_out(plan).await
    }
}

/// A webhook puts the finalizer back.
#[tokio::test(start_paused = true)]
async fn finalizer_that_is_put_back_backs_off_and_the_job_stays() {
    let plan = JobPlan {
        remove_finalizer: true,
        ..JobPlan::default()
    };
    for deleted in [Value::Null, json!("2026-01-01T00:00:00Z")] {
        let fixture = Fixture::new(&json!({ "metadata": { "deletionTimestamp": deleted } }));
        fixture.api.0.lock().mutation = Some(|object| {
            object["metadata"]["finalizers"] = json!([keys::PROTECTED_FINALIZER]);
        });
        assert_eq!(fixture.carry_out(&plan).await, RunStep::PlanAgain);
        assert!(fixture.cached().is_some(), "it is still there");
        let step = fixture.carry_out(&plan).await;
        assert!(matches!(step, RunStep::Wait(Some(_))), "{step:?}");
    }
}

#[tokio::test]
async fn deleted_job_is_gone_after_its_last_finalizer() {
    let plan = JobPlan {
        remove_finalizer: true,
        ..JobPlan::default()
    };
    let fixture =
        Fixture::new(&json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    fixture.carry_out(&plan).await;
    assert_eq!(fixture.cached(), None);
}

/// The CustomResourceDefinition drops the conditions.
#[tokio::test(start_paused = true)]
async fn status_that_is_not_stored_as_written_is_not_written_again() {
    let fixture = Fixture::new(&json!({}));
    fixture.api.0.lock().mutation = Some(|object| {
        object["status"]
            .as_object_mut()
            .map(|status| status.shift_remove("conditions"));
    });
    let mut status = OperationJobStatus {
        total_pod_count: 1,
        ..OperationJobStatus::default()
    };
    set_condition(
        &mut status.conditions,
        (Time(Timestamp::UNIX_EPOCH), 1),
        ("Ready", false),
        ("Progressing", "0 of 1".into()),
    );
    let mut plan = JobPlan {
        status: Some(status),
        ..JobPlan::default()
    };
    assert_eq!(fixture.carry_out(&plan).await, RunStep::PlanAgain);
    tokio::time::advance(Duration::from_secs(9)).await;
    let written = fixture.api.requests().len();
    plan.status.as_mut().unwrap().conditions[0].last_transition_time = Time(Timestamp::MAX);
    assert_eq!(fixture.carry_out(&plan).await, RunStep::Wait(None));
    assert_eq!(fixture.api.requests().len(), written);
    plan.status.as_mut().unwrap().failed_pod_count = 1;
    assert_eq!(fixture.carry_out(&plan).await, RunStep::PlanAgain);
}

const POD: &str = "/api/v1/namespaces/n/pods/web-0";

impl Fixture {
    /// Stores the Pod, and returns it as the cache has it.
    fn put_pod(&self) -> Arc<Pod> {
        let pod = json!({ "metadata": { "namespace": "n", "name": "web-0", "uid": "pod" } });
        self.api.put(POD, pod);
        self.stored_pod()
    }

    fn stored_pod(&self) -> Arc<Pod> {
        let stored = self.api.0.lock().objects[POD].clone();
        Arc::new(serde_json::from_value(stored).unwrap())
    }

    /// Sends a change of a label, which the API server answers with this code. `done` says whether it makes the change.
    async fn fail_to_label(
        &self,
        pod: &Arc<Pod>,
        (code, message, done): (u16, &'static str, bool),
    ) {
        self.api.refuse(Some(Refusal {
            of: "PATCH /api/v1",
            code,
            message,
            done,
        }));
        let mut patch = PodPatch::of(pod);
        patch.labels = LabelPatch([("a".to_owned(), Some("b".to_owned()))].into());
        self.act(TargetAction::Patch(patch)).await;
        self.api.refuse(None);
    }

    async fn act(&self, action: TargetAction) {
        let plan = JobPlan {
            actions: vec![action],
            ..JobPlan::default()
        };
        self.carry_out(&plan).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_write_is_open_until_its_outcome_is_seen() {
    let fixture = Fixture::new(&json!({}));
    let is_open = |pod: &Arc<Pod>| {
        !fixture
            .memory
            .unanswered
            .open(&[Arc::clone(pod)])
            .is_empty()
    };
    for done in [true, false] {
        let pod = fixture.put_pod();
        assert!(!is_open(&pod));
        fixture
            .fail_to_label(&pod, (500, "the connection broke", done))
            .await;
        assert!(!fixture.memory.failed_requests()["pod"].is_refusal);
        let check = || fixture.act(TargetAction::CheckWrite(Arc::clone(&pod)));
        let requests = fixture.api.requests().len();
        check().await;
        assert_eq!(fixture.api.requests().len(), requests, "it is too early");
        tokio::time::advance(Duration::from_secs(11)).await;
        check().await;
        assert_eq!(
            is_open(&pod),
            done,
            "only a write that was made is waited for"
        );
        assert!(!is_open(&fixture.stored_pod()));
    }
}

#[tokio::test(start_paused = true)]
async fn denied_write_is_answered() {
    let fixture = Fixture::new(&json!({}));
    let pod = fixture.put_pod();
    let denial = "admission webhook \"a.test\" denied the request: no";
    fixture.fail_to_label(&pod, (400, denial, false)).await;
    assert!(fixture.memory.failed_requests()["pod"].is_refusal);
    assert!(fixture.memory.unanswered.open(&[pod]).is_empty());
}
