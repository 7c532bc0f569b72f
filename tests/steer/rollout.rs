//! `kubectl operating rollout`.

use serde_json::json;
use testbed::wait;

use crate::commands::{
    bed, change, collaset, image, operating, plugin_command, set_image, sets, until_set,
};

#[tokio::test]
async fn status_names_rule_that_holds_and_ends_with_rollout() {
    let scope = bed().await.scope("steer").await;
    collaset(&scope, 2, json!({})).await;
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    set_image(&scope, "web:2").await;
    let said = wait::value("the rule to hold both Pods", async || {
        let said = operating(&scope, &["rollout", "status", "cls/web", "--watch=false"]).await;
        let is_held = said
            .out
            .contains("wait for rule availability of PodTransitionRule web");
        // The Pods can wait before the status of the set says so.
        let is_seen = !said.out.contains("has not seen the present spec");
        (is_held && is_seen).then_some(said)
    })
    .await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("0 of 2 Pods are updated"), "{said:?}");

    let waits = ["rollout", "status", "collaset", "web", "--timeout=1s"];
    let said = operating(&scope, &waits).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.out.contains("not complete after 1s (--timeout)"),
        "{said:?}"
    );

    let (_dir, mut waiting) = plugin_command(&scope, &["rollout", "status", "cls/web"]).await;
    let waiting = waiting
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    scope
        .rules()
        .delete("web", &Default::default())
        .await
        .unwrap();
    let output = waiting.wait_with_output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.ends_with("CollaSet web: all 2 Pods are updated and available\n"),
        "{text}"
    );
}

#[tokio::test]
async fn status_of_partition_pause_and_abort() {
    let scope = bed().await.scope("steer").await;
    collaset(&scope, 2, json!({})).await;
    let status = ["rollout", "status", "cls/web", "--timeout=2m"];
    let partition = |n| json!({ "rollingUpdate": { "byPartition": { "partition": n } } });
    change(
        &scope,
        json!({ "spec": { "updateStrategy": partition(1) } }),
    )
    .await;
    set_image(&scope, "web:2").await;
    let said = operating(&scope, &status).await.success();
    assert!(
        said.out
            .contains("1 of 2 Pods are updated; the rollout is complete by partition 1"),
        "{said:?}"
    );

    let paused = operating(&scope, &["rollout", "pause", "cls/web"])
        .await
        .success();
    assert_eq!(paused.out, "collaset/web paused\n");
    let again = operating(&scope, &["rollout", "pause", "cls/web"])
        .await
        .success();
    assert_eq!(again.out, "collaset/web is paused already\n");
    change(
        &scope,
        json!({ "spec": { "updateStrategy": partition(0) } }),
    )
    .await;
    let said = operating(&scope, &status).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("rollout resume cls/web"), "{said:?}");
    let restart = operating(&scope, &["rollout", "restart", "cls/web"]).await;
    assert_eq!(restart.code, Some(1), "{restart:?}");
    assert!(
        restart.err.contains("rollout resume cls/web first"),
        "{restart:?}"
    );

    let _ = operating(&scope, &["rollout", "resume", "cls/web"])
        .await
        .success();
    let said = operating(&scope, &status).await.success();
    assert!(said.out.contains("all 2 Pods"), "{said:?}");

    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    set_image(&scope, "web:3").await;
    until_set(&scope, "the rollout to begin", |set| {
        let status = set.status.clone().unwrap_or_default();
        status.updated_revision != status.current_revision
    })
    .await;
    let abort = json!({ "collaset.kusionstack.io/rollout": "abort" });
    change(&scope, json!({ "metadata": { "annotations": abort } })).await;
    let said = operating(&scope, &status).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("abort"), "{said:?}");
    until_set(&scope, "the rollout to be aborted", |set| {
        let status = set.status.clone().unwrap_or_default();
        status.rollout.is_some_and(|rollout| rollout.aborted)
    })
    .await;
    let restart = operating(&scope, &["rollout", "restart", "cls/web"]).await;
    assert_eq!(restart.code, Some(1), "{restart:?}");
    assert!(restart.err.contains("is aborted"), "{restart:?}");
}

#[tokio::test]
async fn undo_puts_former_template_back() {
    let scope = bed().await.scope("steer").await;
    collaset(&scope, 1, json!({})).await;
    let status = ["rollout", "status", "cls/web", "--timeout=2m"];
    for image in ["web:2", "web:3"] {
        set_image(&scope, image).await;
        let _ = operating(&scope, &status).await.success();
    }
    let history = operating(&scope, &["rollout", "history", "cls/web"])
        .await
        .success();
    let lines: Vec<&str> = history.out.lines().collect();
    assert_eq!(lines.len(), 4, "{history:?}");
    assert!(
        lines[3].contains("current,updated") && lines[3].contains("main=web:3"),
        "{history:?}"
    );
    let first = lines[1].split_whitespace().next().unwrap();
    let revision = format!("--revision={first}");
    let shown = operating(&scope, &["rollout", "history", "cls/web", &revision])
        .await
        .success();
    assert!(shown.out.contains("image: web:1"), "{shown:?}");

    let undo = ["rollout", "undo", "cls/web"];
    let tried = operating(&scope, &[&undo[..], &["--dry-run=server"]].concat())
        .await
        .success();
    assert!(tried.out.contains("(server dry run)"), "{tried:?}");
    assert_eq!(image(&scope).await, "web:3");
    let undone = operating(&scope, &undo).await.success();
    assert!(
        undone.out.contains("rolled back from revision "),
        "{undone:?}"
    );
    assert_eq!(image(&scope).await, "web:2");
    let _ = operating(&scope, &status).await.success();
    let to = format!("--to-revision={first}");
    let _ = operating(&scope, &[&undo[..], &[&to]].concat())
        .await
        .success();
    assert_eq!(image(&scope).await, "web:1");
    let unknown = operating(&scope, &[&undo[..], &["--to-revision=99"]].concat()).await;
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown.err.contains("there is no revision 99"),
        "{unknown:?}"
    );
    let absent = operating(&scope, &["rollout", "undo", "cls/nobody"]).await;
    assert!(absent.err.contains("kubectl get collasets"), "{absent:?}");
}

#[tokio::test]
async fn restart_makes_all_pods_again() {
    let scope = bed().await.scope("steer").await;
    collaset(&scope, 2, json!({})).await;
    let before = scope.list("app=web").await;
    let _ = operating(&scope, &["rollout", "restart", "cls", "web"])
        .await
        .success();
    let status = ["rollout", "status", "cls/web", "--timeout=2m"];
    let _ = operating(&scope, &status).await.success();
    let uids = |pods: &[k8s_openapi::api::core::v1::Pod]| -> Vec<_> {
        pods.iter().map(|pod| pod.metadata.uid.clone()).collect()
    };
    let after = uids(&scope.all_available("app=web", 2).await);
    assert!(uids(&before).iter().all(|uid| !after.contains(uid)));
    let set = sets(&scope).get("web").await.unwrap();
    let annotations = &set.spec.template["metadata"]["annotations"];
    assert!(annotations["kubectl.kubernetes.io/restartedAt"].is_string());
}
