//! Completion of command lines: by the real kubectl for its plugin, and by bash for the program itself.

use std::os::unix::fs::symlink;
use std::path::Path;

use kube::api::{Api, PostParams};
use operating::api::collaset::CollaSet;
use serde_json::json;
use testbed::kubectl::Said;
use testbed::{Scope, wait};
use tokio::process::Command;

use crate::plugin::path_with;
use crate::wait_events::bed;

/// A directory with the program under the names by which kubectl and a shell find it.
fn programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "kubectl-operating",
        "kubectl_complete-operating",
        "operating",
    ] {
        symlink(env!("CARGO_BIN_EXE_operating"), dir.path().join(name)).unwrap();
    }
    dir
}

/// What kubectl suggests at the end of `kubectl operating WORDS…`, and its last line.
async fn suggested(words: &[&str]) -> (Vec<String>, String) {
    let dir = programs();
    let mut command = bed()
        .await
        .kubectl([&["__complete", "operating"], words].concat());
    command.env("PATH", path_with(dir.path()));
    let said = Said::from(command.output().await.unwrap()).success();
    let mut lines: Vec<_> = said.out.lines().map(str::to_owned).collect();
    let directive = lines.pop().unwrap();
    (lines, directive)
}

async fn scope_with_objects() -> Scope {
    let scope = bed().await.scope("completion").await;
    for pod in ["web-0", "web-1"] {
        scope.pod(pod, json!({})).await;
    }
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "store" },
        "spec": {
            "replicas": 0,
            "selector": { "matchLabels": { "app": "store" } },
            "template": {
                "metadata": { "labels": { "app": "store" } },
                "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
            },
        },
    });
    let sets: Api<CollaSet> = scope.api();
    let set = serde_json::from_value(set).unwrap();
    sets.create(&PostParams::default(), &set).await.unwrap();
    scope
}

#[tokio::test]
async fn kubectl_suggests_commands_flags_and_names_of_the_cluster() {
    let scope = scope_with_objects().await;
    let namespace = scope.namespace.as_str();
    let (lines, _) = suggested(&["wh"]).await;
    assert!(lines[0].starts_with("why\tShow why Pods wait"), "{lines:?}");
    for (words, expected, directive) in [
        (
            &["why", "-n", namespace, "pod/"][..],
            &["pod/web-0", "pod/web-1"][..],
            ":4",
        ),
        (&["why", "-n", namespace, "po"], &["pod/"], ":6"),
        (
            &["why", "-n", namespace, "pod", ""],
            &["web-0", "web-1"],
            ":4",
        ),
        (
            &["rollout", "status", "-n", namespace, ""],
            &["cls/store"],
            ":4",
        ),
        (
            &["rollout", "undo", "-n", namespace, "cls/"],
            &["cls/store"],
            ":4",
        ),
        (
            &["lifecycle", "begin", "-n", namespace, "pod/web-1"],
            &["pod/web-1"],
            ":4",
        ),
        (&["why", "-n", namespace], &[namespace], ":4"),
        (&["check", "--context", ""], &["operating-plane"], ":4"),
        (&["why", "-n", "no-such-namespace", "pod/"], &[], ":4"),
        (&["why", "--context", "no-such-context", "pod/"], &[], ":4"),
    ] {
        let found = suggested(words).await;
        let expected: Vec<_> = expected.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(found, (expected, directive.to_owned()), "{words:?}");
    }
}

/// Asks the program as kubectl does. The answer succeeds and writes nothing to standard error.
async fn ask_directly(kubeconfig: &Path, words: &[&str]) -> String {
    let dir = programs();
    let mut command = Command::new(dir.path().join("kubectl_complete-operating"));
    command
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .kill_on_drop(true);
    let asked = tokio::time::timeout(wait::PATIENCE, command.output());
    let said = Said::from(asked.await.expect("an answer").unwrap()).success();
    assert_eq!(said.err, "", "{words:?}");
    said.out
}

#[tokio::test]
async fn names_that_cannot_be_read_are_not_suggested_and_nothing_is_said() {
    let bed = bed().await;
    let scope = scope_with_objects().await;
    let names = ["why", "-n", &scope.namespace, "pod/"];
    assert!(
        ask_directly(bed.kubeconfig(), &names)
            .await
            .contains("pod/web-0")
    );

    let nobody = bed
        .kubeconfig_for_service_account(&scope.namespace, "default")
        .await
        .unwrap();
    assert_eq!(ask_directly(&nobody, &names).await, ":4\n");

    let dir = tempfile::tempdir().unwrap();
    // The listener accepts no connection: the API server does not answer.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let blocks = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["3600"],
        "interactiveMode": "Never",
    } });
    for (name, port, user) in [
        ("does-not-answer", port, json!({})),
        ("refuses", closed, json!({})),
        ("blocks", closed, blocks),
    ] {
        let file = dir.path().join(name);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "k", "cluster": { "server": format!("https://127.0.0.1:{port}") } }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        });
        std::fs::write(&file, config.to_string()).unwrap();
        assert_eq!(ask_directly(&file, &names).await, ":4\n", "{name}");
    }
    for text in ["", "no kubeconfig: [", "{}"] {
        let file = dir.path().join("malformed");
        std::fs::write(&file, text).unwrap();
        assert_eq!(ask_directly(&file, &names).await, ":4\n", "{text}");
        assert_eq!(
            ask_directly(&file, &["check", "--context", ""]).await,
            ":4\n",
            "{text}"
        );
    }
}

/// A script that bash runs with the programs on its path.
async fn bash(script: &str) -> String {
    let dir = programs();
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .env("PATH", path_with(dir.path()))
        .env("KUBECONFIG", bed().await.kubeconfig());
    let said = Said::from(command.output().await.unwrap()).success();
    assert_eq!(said.err, "");
    said.out
}

#[tokio::test]
async fn bash_completes_names_by_the_script() {
    let scope = scope_with_objects().await;
    let _ = bash("operating completion bash | bash -n").await;
    let complete = |line: &str| {
        format!(
            "source <(operating completion bash)\n\
             COMP_WORDS=({line}) COMP_TYPE=9\n\
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _clap_complete_operating operating \"${{COMP_WORDS[COMP_CWORD]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
    };
    let line = format!("operating why -n {} pod/", scope.namespace);
    assert_eq!(bash(&complete(&line)).await, "pod/web-0\npod/web-1\n");
    assert_eq!(bash(&complete("operating rollout und")).await, "undo\n");
    // As bash splits `--namespace=NAME pod/` and `--output=js`.
    let line = format!("operating why --namespace = {} pod/", scope.namespace);
    assert_eq!(bash(&complete(&line)).await, "pod/web-0\npod/web-1\n");
    assert_eq!(
        bash(&complete("operating why --output = js")).await,
        "json\n"
    );
    assert_eq!(
        bash(&complete("operating why --output = json --name")).await,
        "--namespace\n"
    );
}

#[tokio::test]
async fn every_shell_has_its_script() {
    for (shell, part) in [
        ("bash", "complete -o nospace"),
        ("zsh", "#compdef operating"),
        ("fish", "complete --keep-order"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = bash(&format!("operating completion {shell}")).await;
        assert!(script.contains(part), "{shell}: {script}");
        assert!(script.contains("OPERATING_COMPLETE"), "{shell}: {script}");
    }
}
