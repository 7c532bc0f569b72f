#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::api::validation::operationjob::RESTART_METHODS;
use crate::domain::operationjob::restart::settings::RestartMethod;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(4)
}

async fn mutate(request: &Request) -> Verdict {
    OperationJobMutator.review(request, deadline()).await
}

async fn validate(request: &Request) -> Verdict {
    OperationJobValidator.review(request, deadline()).await
}

/// A valid OperationJob with `part` merged into its spec.
fn job(part: Value) -> Value {
    let mut spec = json!({
        "action": "Restart", "targets": [{ "name": "web-a" }],
        "activeDeadlineSeconds": 10_800, "TTLSecondsAfterFinished": 1_800,
    });
    json_patch::merge(&mut spec, &part);
    json!({ "metadata": { "name": "fix" }, "spec": spec })
}

/// The same job with an annotation that says how it restarts.
fn restarting_by(method: &str, part: Value) -> Value {
    let mut job = job(part);
    job["metadata"]["annotations"] = json!({ keys::RESTART_BY: method });
    job
}

fn request(old: Option<Value>, new: Value) -> Request {
    let (group, version) = (keys::GROUP, keys::VERSION);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "namespace": "shop", "name": "fix", "dryRun": true,
            "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
            "kind": { "group": group, "version": version, "kind": KIND },
            "resource": { "group": group, "version": version, "resource": "operationjobs" },
            "object": new, "oldObject": old,
        },
    });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

fn create(part: Value) -> Request {
    request(None, job(part))
}

fn update(old: Value, new: Value) -> Request {
    request(Some(job(old)), job(new))
}

/// The text of a denial with the status of an invalid object, without the name of the object.
fn invalid(verdict: &Verdict) -> &str {
    let status = (verdict.is_allowed(), verdict.code(), verdict.reason());
    assert_eq!(status, (false, 422, "Invalid"), "{}", verdict.message());
    let message = verdict.message();
    message
        .strip_prefix("OperationJob fix is invalid: ")
        .unwrap()
}

#[tokio::test]
async fn defaults_are_a_minimal_patch_in_a_dry_run_too() {
    let without = json!({ "activeDeadlineSeconds": null, "TTLSecondsAfterFinished": null, "newer": { "deep": [1] } });
    let patch = serde_json::to_value(mutate(&create(without)).await.patch().unwrap()).unwrap();
    assert_eq!(
        patch,
        json!([
            { "op": "add", "path": "/spec/activeDeadlineSeconds", "value": 10_800 },
            { "op": "add", "path": "/spec/TTLSecondsAfterFinished", "value": 1_800 },
        ])
    );
    let complete = mutate(&create(json!({}))).await;
    assert!(complete.is_allowed() && complete.patch().is_none_or(|patch| patch.0.is_empty()));
}

#[tokio::test]
async fn both_webhooks_report_all_errors() {
    let request = create(json!({ "action": "Paint", "targets": [{}], "activeDeadlineSeconds": 0 }));
    let want = "spec.action: \"Paint\": must be Replace, Restart, or <domain>/<name> for the action of another program; \
                spec.targets[0].name: is required: set it to the name of a Pod in the namespace of the job; \
                spec.activeDeadlineSeconds: 0: must be 1 or more: it is the number of seconds that each target may take; set a \
                number, or leave it out for the default";
    for verdict in [mutate(&request).await, validate(&request).await] {
        assert_eq!(invalid(&verdict), want);
    }
}

#[tokio::test]
async fn value_of_wrong_type_is_left_to_the_schema() {
    let request = create(json!({ "partition": "all" }));
    assert!(mutate(&request).await.is_allowed());
    let verdict = validate(&request).await;
    assert_eq!(verdict.code(), 422);
    assert!(
        verdict
            .message()
            .starts_with("the OperationJob can't be read"),
        "{}",
        verdict.message()
    );
}

#[tokio::test]
async fn object_without_spec_is_refused() {
    let request = request(None, json!({ "metadata": { "generateName": "fix-" } }));
    for verdict in [mutate(&request).await, validate(&request).await] {
        let start = "OperationJob fix- is invalid: spec.action: is required";
        assert_eq!(verdict.code(), 422);
        assert!(
            verdict.message().starts_with(start),
            "{}",
            verdict.message()
        );
    }
}

#[tokio::test]
async fn immutable_fields_and_partition_are_compared_with_stored_job() {
    for (old, new) in [
        (json!({}), json!({ "activeDeadlineSeconds": 60 })),
        (json!({ "partition": 0 }), json!({ "partition": 1 })),
        (json!({ "partition": 1 }), json!({})),
    ] {
        let verdict = validate(&update(old, new)).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    for (old, new, want) in [
        (
            json!({}),
            json!({ "action": "Replace" }),
            "spec.action: \"Replace\": is immutable",
        ),
        (
            json!({}),
            json!({ "targets": [{ "name": "web-b" }] }),
            "spec.targets: is immutable",
        ),
        (
            json!({ "partition": 1 }),
            json!({ "partition": 0 }),
            "spec.partition: 0: may not decrease",
        ),
        (
            json!({}),
            json!({ "partition": 1 }),
            "spec.partition: 1: can't be set afterwards",
        ),
    ] {
        let verdict = validate(&update(old, new)).await;
        assert!(invalid(&verdict).starts_with(want), "{}", verdict.message());
    }
}

#[tokio::test]
async fn annotation_of_restart_is_checked() {
    let create = async |action: &str, method: &str| {
        let job = restarting_by(method, json!({ "action": action }));
        validate(&request(None, job)).await
    };
    for (action, method) in [
        ("Restart", "auto"),
        ("Restart", "ImageReference"),
        ("Replace", "kill"),
    ] {
        let verdict = create(action, method).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    let verdict = create("Restart", "kill").await;
    let want =
        "metadata.annotations[operationjob.kusionstack.io/restart-by]: \"kill\": must be auto or";
    assert!(invalid(&verdict).starts_with(want), "{}", verdict.message());

    let stored = restarting_by("kill", json!({}));
    let longer = json!({ "activeDeadlineSeconds": 60 });
    for (method, is_allowed) in [("kill", true), ("exec", false)] {
        let changed = restarting_by(method, longer.clone());
        let verdict = validate(&request(Some(stored.clone()), changed)).await;
        assert_eq!(verdict.is_allowed(), is_allowed, "{method}");
    }
}

#[tokio::test]
async fn stored_fault_does_not_block_other_changes() {
    let targets = json!([{ "name": "a" }, { "name": "a" }, {}]);
    let stored = json!({ "action": "Paint", "targets": targets, "partition": -1 });
    let changed = |part: Value| {
        let mut changed = stored.clone();
        json_patch::merge(&mut changed, &part);
        update(stored.clone(), changed)
    };
    for part in [
        json!({ "TTLSecondsAfterFinished": 5 }),
        json!({ "partition": 1 }),
    ] {
        let verdict = validate(&changed(part)).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    let verdict = validate(&changed(json!({ "operationDelaySeconds": -2 }))).await;
    let want = "spec.operationDelaySeconds: -2: must be 0 or more";
    assert_eq!(invalid(&verdict), want);
    assert_eq!(validate(&create(stored.clone())).await.code(), 422);
}

#[tokio::test]
async fn only_a_changed_spec_is_judged() {
    let invalid = json!({ "action": "Paint", "targets": [{}] });
    let mut released = job(invalid.clone());
    released["metadata"]["finalizers"] = json!([]);
    let mut deleting = job(json!({ "targets": null, "partition": -3 }));
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for new in [released, deleting] {
        let request = request(Some(job(invalid.clone())), new);
        for verdict in [mutate(&request).await, validate(&request).await] {
            assert!(verdict.is_allowed(), "{}", verdict.message());
        }
    }
}

#[tokio::test]
async fn containers_of_a_replacement_give_a_warning() {
    let part = json!({ "action": "Replace", "targets": [{ "name": "a", "containers": ["x"] }] });
    let verdict = validate(&create(part.clone())).await;
    assert!(verdict.is_allowed());
    let [warning] = verdict.warnings() else {
        panic!("{:?}", verdict.warnings());
    };
    assert!(warning.starts_with("spec.targets[0].containers: is ignored"));
    let mutated = mutate(&create(part)).await;
    assert!(mutated.warnings().is_empty(), "the user is warned once");
}

#[tokio::test]
async fn fallback_skips_defaults_and_denies_validation() {
    let request = create(json!({}));
    let mutated = OperationJobMutator.fallback(&request, "why");
    assert!(mutated.is_allowed() && mutated.patch().is_none());
    let denied = |verdict: &Verdict| (verdict.code(), verdict.message().to_owned());
    let denial = OperationJobValidator.fallback(&request, "the server is overloaded");
    let want = "the OperationJob can't be checked: the server is overloaded; try again in a moment";
    assert_eq!(denied(&denial), (503, want.to_owned()));
    let excessive = OperationJobValidator.deny_excessive(&request, "it takes too much memory");
    let want = "OperationJob: it takes too much memory; list fewer targets";
    assert_eq!(denied(&excessive), (413, want.to_owned()));
    let status = update(json!({}), json!({}));
    assert!(
        OperationJobValidator
            .deny_excessive(&status, "")
            .is_allowed()
    );
}

/// The review of a large job has its whole status in both objects.
#[tokio::test]
async fn job_with_many_targets_can_be_continued() {
    let targets: Vec<_> = (0..2_000)
        .map(|n| json!({ "name": format!("web-{n}") }))
        .collect();
    let details = json!({ "targetDetails": vec![json!({ "name": "x".repeat(600) }); 2_000] });
    let with = |partition: Value| {
        let mut job = job(json!({ "targets": targets, "partition": partition }));
        job["status"] = details.clone();
        job
    };
    let request = request(Some(with(json!(1))), with(json!(2)));
    for verdict in [mutate(&request).await, validate(&request).await] {
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
}

#[test]
fn accepted_methods_are_those_that_the_controller_reads() {
    for method in RESTART_METHODS {
        assert!(RestartMethod::parse(method).is_some(), "{method}");
    }
}
