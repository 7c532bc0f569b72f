//! What admission refuses, with which texts; which defaults it adds; and that stored objects can always be deleted.

use kube::api::{DeleteParams, Patch, PatchParams};
use operating::api::keys;
use operating::api::operationjob::OperationJob;
use serde_json::{Value, json};
use testbed::kubectl::Said;
use testbed::{Bed, Scope, wait};

/// An OperationJob that replaces `web-a` and `web-b`, with `part` merged into its spec.
fn object(name: &str, part: Value) -> Value {
    let mut spec =
        json!({ "action": "Replace", "targets": [{ "name": "web-a" }, { "name": "web-b" }] });
    json_patch::merge(&mut spec, &part);
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// An OperationJob that restarts the same Pods by `method`, with `part` merged into its spec.
fn restart_by(name: &str, method: &str, part: Value) -> Value {
    let mut job = object(name, json!({ "action": "Restart" }));
    job["metadata"]["annotations"] = json!({ keys::RESTART_BY: method });
    json_patch::merge(&mut job["spec"], &part);
    job
}

/// `kubectl create --dry-run=server` of an OperationJob.
async fn dry_run(scope: &Scope, object: &Value) -> Said {
    let namespace = &scope.namespace;
    let args = [
        "create",
        "--dry-run=server",
        "-o",
        "json",
        "-n",
        namespace.as_str(),
    ];
    Bed::shared().await.ask_kubectl_about(&args, object).await
}

/// A namespace in which the server already judges OperationJobs.
async fn scope(prefix: &str) -> Scope {
    let scope = Bed::shared().await.scope(prefix).await;
    let twice = json!({ "targets": [{ "name": "web-a" }, { "name": "web-a" }] });
    let bad = object("probe", twice);
    wait::until("OperationJobs to be judged", async || {
        !dry_run(&scope, &bad).await.succeeded()
    })
    .await;
    scope
}

#[tokio::test]
async fn dry_run_adds_defaults_and_nothing_else() {
    let scope = scope("job-defaults").await;
    let mut wanted = object("fix", json!({ "partition": 1 }));
    let stored = dry_run(&scope, &wanted).await.json();
    wanted["spec"]["activeDeadlineSeconds"] = json!(10_800);
    wanted["spec"]["TTLSecondsAfterFinished"] = json!(1_800);
    assert_eq!(stored["spec"], wanted["spec"]);

    let chosen = json!({ "activeDeadlineSeconds": 60, "TTLSecondsAfterFinished": 1 });
    let wanted = object("fix", chosen);
    let stored = dry_run(&scope, &wanted).await.json();
    assert_eq!(stored["spec"], wanted["spec"]);
    let nothing = scope.api::<OperationJob>().get_opt("fix").await.unwrap();
    assert_eq!(nothing, None);
}

/// Changes of a valid spec, and a part of the text with which each is refused.
fn refusals() -> Vec<(Value, &'static str)> {
    let containers =
        |names: Value| json!({ "targets": [{ "name": "web-a", "containers": names }] });
    let many: Vec<_> = (0..2_001)
        .map(|n| json!({ "name": format!("web-{n}") }))
        .collect();
    vec![
        (
            json!({ "action": null }),
            "spec.action: is required: set it to Replace, Restart, or <domain>/<name>",
        ),
        (
            json!({ "action": "Paint" }),
            "spec.action: \"Paint\": must be Replace, Restart, or <domain>/<name>",
        ),
        (
            json!({ "action": "example.com/-" }),
            "spec.action: \"example.com/-\": must be Replace, Restart, or <domain>/<name>",
        ),
        (
            json!({ "targets": [] }),
            "spec.targets: is required: list the Pods",
        ),
        (
            json!({ "targets": many }),
            "spec.targets: has 2001 entries and may have 2000, because the status",
        ),
        (
            json!({ "targets": [{ "name": "" }] }),
            "spec.targets[0].name: is required",
        ),
        (
            json!({ "targets": [{ "name": "Web_A" }] }),
            "spec.targets[0].name: \"Web_A\": must have at most 253 lower-case letters",
        ),
        (
            json!({ "targets": [{ "name": "web-a" }, { "name": "web-a" }] }),
            "spec.targets[1].name: \"web-a\": is the name of spec.targets[0], too",
        ),
        (
            containers(json!([""])),
            "spec.targets[0].containers[0]: \"\": must not be empty",
        ),
        (
            containers(json!(["app", "app"])),
            "spec.targets[0].containers[1]: \"app\": is the name of spec.targets[0].containers[0], too",
        ),
        (
            json!({ "partition": -1 }),
            "spec.partition: -1: must be 0 or more",
        ),
        (
            json!({ "operationDelaySeconds": -1 }),
            "spec.operationDelaySeconds: -1: must be 0 or more",
        ),
        (
            json!({ "activeDeadlineSeconds": 0 }),
            "spec.activeDeadlineSeconds: 0: must be 1 or more",
        ),
        (
            json!({ "TTLSecondsAfterFinished": 0 }),
            "spec.TTLSecondsAfterFinished: 0: must be 1 or more",
        ),
    ]
}

#[tokio::test]
async fn unusable_spec_is_refused_with_field_and_remedy() {
    let scope = scope("job-refused").await;
    let refuse = async |object: &Value, text: &str| {
        let said = dry_run(&scope, object).await;
        assert!(!said.succeeded(), "{text}: is accepted");
        assert!(said.err.contains(text), "{text} in {}", said.err);
    };
    for (part, text) in refusals() {
        refuse(&object("fix", part), text).await;
    }
    let text =
        "metadata.annotations[operationjob.kusionstack.io/restart-by]: \"kill\": must be auto or";
    refuse(&restart_by("fix", "kill", json!({})), text).await;

    for usable in [
        restart_by("fix", "ImageReference", json!({})),
        object("fix", json!({ "action": "example.com/Drain" })),
    ] {
        let said = dry_run(&scope, &usable).await.success();
        assert!(!said.err.contains("Warning"), "{}", said.err);
    }
}

#[tokio::test]
async fn replacement_of_containers_gives_a_warning() {
    let scope = scope("job-warned").await;
    let targets = json!([{ "name": "web-a", "containers": ["app"] }]);
    let job = object("fix", json!({ "targets": targets }));
    let said = dry_run(&scope, &job).await.success();
    let text = "Warning: spec.targets[0].containers: is ignored";
    assert!(said.err.contains(text), "{}", said.err);
}

#[tokio::test]
async fn change_of_immutable_field_or_smaller_partition_is_refused() {
    let scope = scope("job-changed").await;
    let api = scope.api::<OperationJob>();
    for (name, partition) in [("some", json!(1)), ("all", Value::Null)] {
        let job = object(name, json!({ "partition": partition }));
        let _ = scope.store::<OperationJob>(job).await;
    }
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |name: &str, part: Value| {
        let patch = Patch::Merge(json!({ "spec": part }));
        api.patch(name, &params, &patch).await
    };
    for part in [
        json!({ "partition": 2 }),
        json!({ "partition": null }),
        json!({ "activeDeadlineSeconds": 60 }),
    ] {
        change("some", part).await.unwrap();
    }
    for (name, part, text) in [
        (
            "some",
            json!({ "action": "Restart" }),
            "spec.action: \"Restart\": is immutable, it was \"Replace\"",
        ),
        (
            "some",
            json!({ "targets": [{ "name": "web-a" }] }),
            "spec.targets: is immutable: create another OperationJob",
        ),
        (
            "some",
            json!({ "partition": 0 }),
            "spec.partition: 0: may not decrease, it was 1",
        ),
        (
            "all",
            json!({ "partition": 2 }),
            "spec.partition: 2: can't be set afterwards",
        ),
    ] {
        let refusal = change(name, part).await.unwrap_err().to_string();
        assert!(refusal.contains(text), "{text} in {refusal}");
    }
}

#[tokio::test]
async fn stored_invalid_job_can_be_changed_and_deleted() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-stored").await;
    bed.without_server().await;
    let twice = json!({ "targets": [{ "name": "web-a" }, { "name": "web-a" }, {}] });
    let mut job = restart_by("fix", "kill", twice);
    job["metadata"]["finalizers"] = json!(["example.com/held"]);
    let _ = scope.store::<OperationJob>(job).await;
    bed.with_server().await;

    let api = scope.api::<OperationJob>();
    let change = async |patch: Value| {
        api.patch("fix", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    wait::until("OperationJobs to be judged", async || {
        let refused = change(json!({ "spec": { "operationDelaySeconds": -1 } })).await;
        let text = "spec.operationDelaySeconds: -1: must be 0 or more";
        refused.unwrap_err().to_string().contains(text)
    })
    .await;
    change(json!({ "metadata": { "labels": { "seen": "1" } } }))
        .await
        .unwrap();
    change(json!({ "spec": { "operationDelaySeconds": 1 } }))
        .await
        .unwrap();
    api.delete("fix", &DeleteParams::default()).await.unwrap();
    change(json!({ "metadata": { "finalizers": null } }))
        .await
        .unwrap();
    wait::until("the OperationJob to be deleted", async || {
        api.get_opt("fix").await.is_ok_and(|job| job.is_none())
    })
    .await;
}

#[tokio::test]
async fn without_server_jobs_are_refused_and_can_be_deleted() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-unjudged").await;
    let _ = scope
        .store::<OperationJob>(object("fix", json!({ "partition": 1 })))
        .await;
    bed.kill_all().await;

    let api = scope.api::<OperationJob>();
    let patch = async |patch: Value| {
        api.patch("fix", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    // The mutating webhook may be missing, so the message names the validating webhook.
    let refused = patch(json!({ "spec": { "partition": 2 } })).await;
    let refused = refused.unwrap_err().to_string();
    let text = "failed calling webhook \"operationjob.validate.apps.kusionstack.io\"";
    assert!(refused.contains(text), "{refused}");
    patch(json!({ "metadata": { "labels": { "seen": "1" }, "finalizers": null } }))
        .await
        .unwrap();
    api.delete("fix", &DeleteParams::default()).await.unwrap();
}
