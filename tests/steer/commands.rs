//! Runs `kubectl operating`, found by kubectl as its plugin.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use kube::api::{Api, Patch, PatchParams, PostParams};
use operating::api::collaset::CollaSet;
use serde_json::{Value, json};
use testbed::kubectl::Said;
use testbed::{Bed, Scope, wait};
use tokio::process::Command;

/// The bed of all tests of this program.
pub async fn bed() -> &'static Bed {
    Bed::shared().await
}

/// A command `kubectl operating ARGS… -n NAMESPACE`. The directory has the plugin.
pub async fn plugin_command(scope: &Scope, args: &[&str]) -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().unwrap();
    symlink(
        env!("CARGO_BIN_EXE_operating"),
        dir.path().join("kubectl-operating"),
    )
    .unwrap();
    let namespace = ["-n", scope.namespace.as_str()];
    let (before, after) = match args.iter().position(|arg| *arg == "--") {
        Some(position) => args.split_at(position),
        None => (args, &[][..]),
    };
    let mut command = bed()
        .await
        .kubectl([&["operating"][..], before, &namespace, after].concat());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(PathBuf::from(dir.path())).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(dirs).unwrap());
    (dir, command)
}

/// Runs `kubectl operating ARGS…` in the namespace of a test.
pub async fn operating(scope: &Scope, args: &[&str]) -> Said {
    let (_dir, mut command) = plugin_command(scope, args).await;
    command.output().await.unwrap().into()
}

/// A CollaSet `web`, at rest.
pub async fn collaset(scope: &Scope, replicas: usize, spec: Value) {
    let mut set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
            },
        },
    });
    json_patch::merge(&mut set["spec"], &spec);
    let set = serde_json::from_value(set).unwrap();
    sets(scope)
        .create(&PostParams::default(), &set)
        .await
        .unwrap();
    let _ = scope.all_available("app=web", replicas).await;
    until_set(scope, "the set to be at rest", |set| {
        let status = set.status.clone().unwrap_or_default();
        status
            .conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True")
    })
    .await;
}

/// The CollaSets of the namespace.
pub fn sets(scope: &Scope) -> Api<CollaSet> {
    Api::namespaced(scope.client.clone(), &scope.namespace)
}

/// Changes the CollaSet `web`.
pub async fn change(scope: &Scope, patch: Value) -> CollaSet {
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    sets(scope).patch("web", &params, &patch).await.unwrap()
}

/// Gives the template another image.
pub async fn set_image(scope: &Scope, image: &str) -> CollaSet {
    let containers = json!([{ "name": "main", "image": image }]);
    change(
        scope,
        json!({ "spec": { "template": { "spec": { "containers": containers } } } }),
    )
    .await
}

/// Waits until the CollaSet `web` satisfies the condition.
pub async fn until_set(
    scope: &Scope,
    condition: &str,
    wanted: impl Fn(&CollaSet) -> bool,
) -> CollaSet {
    wait::value(condition, async || {
        let set = sets(scope).get("web").await.unwrap();
        Some(set).filter(|set| wanted(set))
    })
    .await
}

/// The image of the template of the CollaSet `web`.
pub async fn image(scope: &Scope) -> String {
    let set = sets(scope).get("web").await.unwrap();
    let image = &set.spec.template["spec"]["containers"][0]["image"];
    image.as_str().unwrap().to_owned()
}
