//! `operating uninstall` of a cluster whose server runs outside: it refuses while the server runs, and leaves nothing
//! blocked.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::json;
use testbed::pods::names;
use testbed::scope::refusal;
use testbed::{Bed, wait};

/// The uninstallation, with the text on standard output and on standard error.
fn uninstall(bed: &Bed, flags: &[&str]) -> (bool, String) {
    let done = bed.operating(&[&["uninstall"], flags].concat());
    let text = [done.stdout, done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// The Pod has left traffic for its operation, or serves again.
async fn until_serving(scope: &testbed::Scope, pod: &str, serves: bool) {
    let expected = if serves { "True" } else { "False" };
    let description = format!("{pod} to be Ready: {expected}");
    wait::until(&description, async || {
        let now = scope.get(pod).await;
        let conditions = now.status.and_then(|s| s.conditions).unwrap_or_default();
        let is = |type_: &str| {
            conditions
                .iter()
                .any(|c| c.type_ == type_ && c.status == expected)
        };
        is("Ready") && is(keys::SERVICE_READY)
    })
    .await;
}

#[tokio::test]
async fn nothing_is_removed_without_consent_or_while_a_server_runs() {
    let bed = Bed::own().await;
    let scope = bed.scope("kept").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    for (flags, expected) in [
        (&["--dry-run"][..], "a server still runs"),
        (&["--yes"], "a server still runs"),
    ] {
        let (done, text) = uninstall(&bed, flags);
        assert!(!done && text.contains(expected), "{text}");
    }
    bed.kill_all().await;
    let (done, text) = uninstall(&bed, &["--dry-run"]);
    assert!(done && text.contains("1 podtransitionrules"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    let (done, text) = uninstall(&bed, &[]);
    assert!(!done && text.contains("pass --yes"), "{text}");
    // The webhooks are still called.
    let refused = refusal(scope.delete(&pods[0]).await);
    assert!(
        refused.message.contains("failed calling webhook"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn pods_in_operate_serve_again_after_uninstalling() {
    let bed = Bed::own().await;
    let scope = bed.scope("operate").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    scope.begin(&pods[0], "x").await.unwrap();
    until_serving(&scope, &pods[0], false).await;
    let label = testbed::keys::operation("operate", "x");
    wait::until("the operation to begin", async || {
        scope.get(&pods[0]).await.labels().contains_key(&label)
    })
    .await;
    bed.kill_all().await;
    let (done, text) = uninstall(&bed, &["--yes"]);
    assert!(done, "{text}");
    let warned = format!("they get traffic again: {}/{}", scope.namespace, pods[0]);
    assert!(text.contains(&warned), "{text}");
    assert!(
        text.contains("1 Pod was off traffic and may serve again"),
        "{text}"
    );
    until_serving(&scope, &pods[0], true).await;
    let now = scope.get(&pods[0]).await;
    assert!(
        now.labels().contains_key(&label),
        "labels stay: {:?}",
        now.labels()
    );
}

#[tokio::test]
async fn uninstalling_leaves_nothing_blocked() {
    let bed = Bed::own().await;
    let scope = bed.scope("left").await;
    scope.deploy("web", 2, json!({})).await;
    let pods = names(&scope.all_available("app=web", 2).await);
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    scope.begin(&pods[0], "x").await.unwrap();
    assert_eq!(refusal(scope.delete(&pods[1]).await).code, 429);
    bed.kill_all().await;
    let (done, text) = uninstall(&bed, &["--yes"]);
    assert!(done, "{text}");
    scope.delete(&pods[1]).await.unwrap();
    scope.evict(&pods[0]).await.unwrap();
    scope
        .label(
            &scope.list("app=web").await[0]
                .metadata
                .name
                .clone()
                .unwrap(),
            json!({"a": "b"}),
        )
        .await
        .unwrap();
    scope.pod("new", json!({})).await;
    scope.delete("new").await.unwrap();
    scope
        .deployments()
        .delete("web", &kube::api::DeleteParams::background())
        .await
        .unwrap();
    wait::until("all to be deleted", async || {
        scope.list("app=web").await.is_empty()
    })
    .await;
}
