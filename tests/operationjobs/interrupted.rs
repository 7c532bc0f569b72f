//! Something happens in the middle of a replacement: nothing hangs, nothing stays on Pods, and no stranger is touched.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::operationjob::{OperationJob, Progress};
use serde_json::{Value, json};
use testbed::{Bed, wait};

use crate::fixtures::{Job, has_finalizer, info, object, reason};
use crate::sets::{Set, label};

const NEW_POD: &str = "NewPod";

/// A set of one Pod whose replacement has a new Pod and is held by a rule. Returns the name of the Pod.
async fn held_pair<'a>(set: &Set<'a>) -> (Job<'a>, String, String) {
    set.hold().await;
    let pod = set.pod(0).await.name_any();
    let job = Job::replace(set.scope, "swap", &[&pod]).await;
    let detail = job
        .until_target(&pod, "its new Pod", |d| info(d, NEW_POD).is_some())
        .await;
    let new = info(&detail, NEW_POD).unwrap().to_owned();
    (job, pod, new)
}

#[tokio::test]
async fn origin_deleted_by_hand_leaves_its_new_pod() {
    let scope = Bed::shared().await.scope("job-origin-gone").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let (job, pod, new) = held_pair(&set).await;
    scope.delete(&pod).await.unwrap();
    let status = job.succeeded().await;
    assert_eq!(info(&status.target_details[0], NEW_POD), Some(&*new));
    set.release().await;
    set.settled().await;
    assert_eq!(set.pods().await.len(), 1);
}

/// The old Pod is taken out of management while a rule holds it.
#[tokio::test]
async fn old_pod_without_management_fails_its_replacement() {
    let scope = Bed::shared().await.scope("job-origin-unmanaged").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let (job, pod, _) = held_pair(&set).await;
    let unmanaged = json!({ (keys::CONTROL): null });
    scope.label(&pod, unmanaged).await.unwrap();
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "NotManaged");
    assert_eq!(label(&scope.get(&pod).await, keys::TO_REPLACE), None);
}

/// The new Pod is lost and the set makes another one: the job follows that one.
#[tokio::test]
async fn lost_new_pod_is_followed_by_the_next_one() {
    let scope = Bed::shared().await.scope("job-new-gone").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let (job, pod, new) = held_pair(&set).await;
    scope.delete(&new).await.unwrap();
    let detail = job
        .until_target(&pod, "another new Pod", |d| {
            info(d, NEW_POD).is_some_and(|name| name != new)
        })
        .await;
    set.release().await;
    let status = job.succeeded().await;
    assert_eq!(
        info(&status.target_details[0], NEW_POD),
        info(&detail, NEW_POD)
    );
}

#[tokio::test]
async fn scale_in_of_the_pair_ends_the_job() {
    let scope = Bed::shared().await.scope("job-scaled-in").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let (job, pod, _) = held_pair(&set).await;
    set.edit(json!({ "replicas": 0 })).await;
    set.release().await;
    wait::until("the Pods to go", async || {
        scope.list("app=web").await.is_empty()
    })
    .await;
    let status = job.failed().await;
    let detail = &status.target_details[0];
    assert_eq!(reason(detail), "PodNotFound", "{pod}");
    assert!(detail.error.as_ref().unwrap().message.contains("scaled in"));
    job.delete().await;
    job.gone().await;
}

#[tokio::test]
async fn deleted_set_ends_the_job() {
    let scope = Bed::shared().await.scope("job-set-gone").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let (job, _, _) = held_pair(&set).await;
    set.api
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    set.release().await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "PodNotFound");
    wait::until("the Pods to go", async || {
        scope.list("app=web").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn namespace_goes_with_an_open_job() {
    let scope = Bed::shared().await.scope("job-namespace").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let (job, pod, _) = held_pair(&set).await;
    let named = job.get().await.name_any();
    assert_eq!(
        (named.as_str(), scope.get(&pod).await.finalizers().len()),
        ("swap", 0)
    );
    set.release().await;
    scope.delete_namespace().await;
    wait::until("the namespace to go", async || {
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> =
            kube::Api::all(scope.client.clone());
        namespaces
            .get_opt(&scope.namespace)
            .await
            .is_ok_and(|found| found.is_none())
    })
    .await;
}

/// A Pod of the same name is another Pod.
#[tokio::test]
async fn successor_of_the_same_name_is_not_touched() {
    let scope = Bed::shared().await.scope("job-same-name").await;
    let part = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let set = Set::new(&scope, "web", 1, part).await;
    set.hold().await;
    set.edit(json!({ "paused": true })).await;
    let first = set.pod(0).await;
    let job = Job::replace(&scope, "swap", &["web-0"]).await;
    job.until_target("web-0", "its start", |d| {
        d.progress == Some(Progress::Processing)
    })
    .await;
    set.edit(json!({ "paused": true })).await;
    scope.delete("web-0").await.unwrap();
    wait::until("another Pod", async || {
        let pod = scope.pods().get_opt("web-0").await.ok().flatten();
        pod.is_some_and(|pod| pod.uid() != first.uid())
    })
    .await;
    let status = job.failed().await;
    assert_eq!(reason(&status.target_details[0]), "PodNotFound");
    let successor = scope.get("web-0").await;
    assert_eq!(label(&successor, keys::TO_REPLACE), None);
    // The request of another job on the stranger.
    let request = json!({ (keys::TO_REPLACE): "operationjob" });
    scope.label("web-0", request).await.unwrap();
    job.delete().await;
    job.gone().await;
    assert_eq!(
        label(&scope.get("web-0").await, keys::TO_REPLACE),
        Some("operationjob")
    );
}

/// What Kuperator has stored: a job in progress whose Pod carries its label and its finalizer.
#[tokio::test]
async fn job_of_kuperator_is_taken_over_without_its_finalizer() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-takeover").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let late = Set::new(&scope, "late", 1, json!({})).await;
    let late_pod = late.pod(0).await;
    let pod = set.pod(0).await;
    let name = pod.name_any();
    bed.without_server().await;
    let held = json!({ "metadata": {
        "labels": { (keys::TO_REPLACE): "true" },
        "finalizers": [keys::REPLACE_PROTECTED_FINALIZER],
    } });
    scope.patch(&name, held.clone()).await.unwrap();
    let part = json!({ "metadata": { "finalizers": [keys::PROTECTED_FINALIZER] } });
    scope.patch(&late_pod.name_any(), held).await.unwrap();
    let swap = object("swap", "Replace", &[&name], part.clone());
    scope.store::<OperationJob>(swap).await;
    // A job whose deadline has passed, and which Kuperator has not released.
    let expired = object("expired", "Replace", &[&late_pod.name_any()], part);
    scope.store::<OperationJob>(expired).await;
    let detail = json!({ "name": late_pod.name_any(), "progress": "Failed", "startTime": "2026-11-01T00:00:00Z" });
    let failed = json!({
        "progress": "Failed", "startTime": "2026-11-01T00:00:00Z", "endTime": "2099-01-01T00:00:00Z",
        "totalPodCount": 1, "targetDetails": [detail],
    });
    scope.store_status::<OperationJob>("expired", failed).await;
    let job = Job::named(&scope, "swap");
    let status = json!({ "status": {
        "progress": "Processing", "startTime": "2026-11-01T00:00:00Z", "totalPodCount": 1,
        "targetDetails": [{ "name": name, "progress": "Processing", "startTime": "2099-01-01T00:00:00Z" }],
    } });
    let patch = Patch::Merge(status);
    job.api
        .patch_status("swap", &PatchParams::default(), &patch)
        .await
        .unwrap();
    bed.with_server().await;
    Job::named(&scope, "expired").released().await;
    let released = scope.get(&late_pod.name_any()).await;
    assert_eq!(released.uid(), late_pod.uid());
    assert_eq!(released.finalizers(), [""; 0]);
    assert_eq!(label(&released, keys::TO_REPLACE), None);
    job.succeeded().await;
    wait::until("the old Pod to go", async || {
        scope
            .pods()
            .get_opt(&name)
            .await
            .is_ok_and(|pod| pod.is_none())
    })
    .await;
    set.settled().await;
}

#[tokio::test]
async fn stored_job_of_unknown_action_fails_and_is_deletable() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-stored").await;
    bed.without_server().await;
    let crds: Api<CustomResourceDefinition> = Api::all(scope.client.clone());
    let definition = "operationjobs.apps.kusionstack.io";
    let strict = crds.get(definition).await.unwrap();
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut loose = json!(strict);
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = any;
    let store_definition = async |schema: &Value| {
        let patch = json!([{ "op": "replace", "path": "/spec/versions", "value": schema["spec"]["versions"] }]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
        let params = PatchParams::default();
        crds.patch(definition, &params, &patch).await.unwrap();
    };
    store_definition(&loose).await;
    let held = json!({ "metadata": { "finalizers": [keys::PROTECTED_FINALIZER] } });
    for (name, part) in [("paint", json!({})), ("held", held)] {
        let job = object(name, "Paint", &["web-0"], part);
        let job: OperationJob = serde_json::from_value(job).unwrap();
        let jobs: Api<OperationJob> = scope.api();
        wait::until("the job to be stored", async || {
            jobs.create(&PostParams::default(), &job).await.is_ok()
        })
        .await;
    }
    store_definition(&json!(strict)).await;
    bed.with_server().await;
    for name in ["paint", "held"] {
        let job = Job::named(&scope, name);
        let status = job.failed().await;
        assert_eq!(reason(&status.target_details[0]), "ActionFailed");
        assert!(!has_finalizer(&job.get().await));
        job.delete().await;
        job.gone().await;
    }
}

/// The leader is killed again and again while a job replaces Pods.
#[tokio::test]
async fn replacement_survives_kill_of_the_leader() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-killed").await;
    let set = Set::new(&scope, "web", 4, json!({})).await;
    let before = set.pods().await;
    let names: Vec<String> = before.values().map(|pod| pod.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let observer = testbed::observer::Observer::start(&scope).await;
    let job = Job::replace(&scope, "swap", &names).await;
    for _ in 0..3 {
        let leader = bed.leader().await;
        bed.kill(leader).await;
        bed.restart(leader).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let status = job.succeeded().await;
    assert_eq!(status.succeeded_pod_count, 4);
    set.settled().await;
    let versions = observer.versions().await;
    let existed: std::collections::BTreeSet<_> =
        versions.iter().filter_map(ResourceExt::uid).collect();
    assert_eq!(existed.len(), 8, "each Pod was replaced once");
}
