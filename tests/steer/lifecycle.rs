//! `kubectl operating lifecycle`.

use std::process::Stdio;

use operating::api::keys::Family;
use serde_json::json;
use testbed::pods::{condition, has_label, is_available, is_idle, may_operate};
use testbed::{Scope, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::commands::{bed, operating, plugin_command};

const ID: &str = "upgrade-1";

/// An available Pod `web` without an owner.
async fn web() -> Scope {
    let scope = bed().await.scope("operate").await;
    scope.pod("web", json!({})).await;
    scope.until_pod("web", "available", is_available).await;
    scope
}

#[tokio::test]
async fn operation_begins_waits_and_finishes() {
    let scope = web().await;
    let operation = |verb, more: &[&'static str]| {
        [&["lifecycle", verb, "pod/web", "--id", ID][..], more].concat()
    };
    let begin = operation("begin", &["--type=upgrade"]);
    let said = operating(&scope, &begin).await.success();
    assert!(said.out.ends_with("begun\n"), "{said:?}");
    let said = operating(&scope, &begin).await.success();
    assert!(said.out.ends_with("has begun before\n"), "{said:?}");
    let other = operating(&scope, &operation("begin", &["--type=resize"])).await;
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.err.contains("choose another --id"), "{other:?}");
    let _ = operating(&scope, &operation("wait", &[])).await.success();
    let pod = scope.get("web").await;
    assert!(may_operate(&pod, ID) && condition(&pod, "Ready") == Some(false));
    let _ = operating(&scope, &operation("finish", &[])).await.success();
    let pod = scope.get("web").await;
    assert!(is_available(&pod) && is_idle(&pod));
    for more in [&[][..], &["--no-wait"]] {
        let unknown = operating(&scope, &operation("finish", more)).await;
        assert_eq!(unknown.code, Some(1), "{unknown:?}");
        assert!(unknown.err.contains("has no operation"), "{unknown:?}");
    }
    let nothing = operating(&scope, &operation("cancel", &[])).await;
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    assert!(
        nothing.err.contains("has no operation upgrade-1"),
        "{nothing:?}"
    );
}

#[tokio::test]
async fn wait_that_times_out_says_why_and_operation_can_be_cancelled() {
    let scope = web().await;
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 1).await;
    let object = ["pod/web", "--id", ID];
    let begin = [&["lifecycle", "begin", "--type=upgrade"][..], &object].concat();
    let _ = operating(&scope, &begin).await.success();
    let wait = [&["lifecycle", "wait", "--timeout=1s"][..], &object].concat();
    let said = operating(&scope, &wait).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("PodTransitionRule web"), "{said:?}");
    let cancel = [&["lifecycle", "cancel"][..], &object].concat();
    let _ = operating(&scope, &cancel).await.success();
    let pod = scope.get("web").await;
    assert!(is_idle(&pod) && is_available(&pod));
}

#[tokio::test]
async fn pod_without_control_label_is_refused() {
    let scope = bed().await.scope("operate").await;
    let labels = json!({ "metadata": { "labels": { "kusionstack.io/control": null } } });
    scope.pod("web", labels).await;
    let begin = ["lifecycle", "begin", "web", "--id", ID, "--type=upgrade"];
    let said = operating(&scope, &begin).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("kusionstack.io/control"), "{said:?}");
}

/// `lifecycle run` with this shell command.
async fn start_run(scope: &Scope, script: &str, more: &[&str]) -> (tempfile::TempDir, Child) {
    let args = [
        &["lifecycle", "run", "pod/web", "--id", ID, "--type=upgrade"][..],
        more,
        &["--", "sh", "-c", script],
    ]
    .concat();
    let (dir, mut command) = plugin_command(scope, &args).await;
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    (dir, child.unwrap())
}

async fn run(scope: &Scope, script: &str, more: &[&str]) -> testbed::kubectl::Said {
    let (_dir, child) = start_run(scope, script, more).await;
    child.wait_with_output().await.unwrap().into()
}

#[tokio::test]
async fn command_runs_off_traffic_and_its_failure_leaves_operation() {
    let scope = web().await;
    let env = run(&scope, "echo $POD_NAMESPACE/$POD_NAME $OPERATION_ID", &[])
        .await
        .success();
    assert_eq!(env.out, format!("{}/web {ID}\n", scope.namespace));
    assert!(is_available(&scope.get("web").await));

    let failed = run(&scope, "exit 7", &[]).await;
    assert_eq!(failed.code, Some(7), "{failed:?}");
    assert!(
        failed.err.contains("operating lifecycle finish pod/web"),
        "{failed:?}"
    );
    assert!(may_operate(&scope.get("web").await, ID));

    let failed = run(&scope, "exit 7", &["--finish-on-failure"]).await;
    assert_eq!(failed.code, Some(7), "{failed:?}");
    scope.until_pod("web", "serving again", is_available).await;
    let deleted = "kubectl delete pod -n $POD_NAMESPACE $POD_NAME --wait=true";
    let said = run(&scope, deleted, &[]).await.success();
    assert!(
        said.err.contains("was deleted, which ends the operation"),
        "{said:?}"
    );
}

#[tokio::test]
async fn signal_reaches_command() {
    let scope = web().await;
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let script = format!(
        "trap 'exit 5' TERM; touch {}; while :; do sleep 0.05; done",
        started.display()
    );
    let (_dir, child) = start_run(&scope, &script, &[]).await;
    wait::until("the command to run", async || started.exists()).await;
    signal(&child, rustix::process::Signal::TERM);
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(may_operate(&scope.get("web").await, ID));
}

/// `nohup` is for work that outlasts its terminal.
#[tokio::test]
async fn run_under_nohup_and_its_command_outlast_their_terminal() {
    let scope = web().await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let (started, hung_up) = (file("started"), file("hung-up"));
    // The command sends itself the signal, too: a terminal sends it to all its processes.
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.05; done; kill -HUP $$; exit 5",
        started.display(),
        hung_up.display()
    );
    let args = ["lifecycle", "run", "pod/web", "--id", ID, "--type=upgrade"];
    let args = [&args[..], &["--", "sh", "-c", &script]].concat();
    let (_dir, plugin) = plugin_command(&scope, &args).await;
    let plugin = plugin.as_std();
    let mut command = Command::new("nohup");
    command.arg(plugin.get_program()).args(plugin.get_args());
    for (name, value) in plugin.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait::until("the command to run", async || started.exists()).await;
    signal(&child, rustix::process::Signal::HUP);
    std::fs::write(&hung_up, "").unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[tokio::test]
async fn killed_run_is_taken_up_at_each_step() {
    let scope = web().await;
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let count = dir.path().join("count");
    let script = format!(
        "echo x >> {}; touch {}; ",
        count.display(),
        started.display()
    );
    let runs = || std::fs::read_to_string(&count).map_or(0, |text| text.lines().count());

    // While the operation waits in PreCheck.
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 1).await;
    let (_plugin, child) = start_run(&scope, &script, &[]).await;
    let pre_check = Family::PreCheck.key(ID);
    scope
        .until_pod("web", "in PreCheck", |pod| has_label(pod, &pre_check))
        .await;
    kill(child).await;
    assert_eq!(runs(), 0);
    scope
        .rules()
        .delete("web", &Default::default())
        .await
        .unwrap();

    // While the Pod goes off traffic: the kubelet does not report it not Ready.
    scope.pause_kubelet("web").await;
    let (_plugin, child) = start_run(&scope, &script, &[]).await;
    let preparing = Family::Preparing.key(ID);
    scope
        .until_pod("web", "in Preparing", |pod| has_label(pod, &preparing))
        .await;
    kill(child).await;
    assert_eq!(runs(), 0);
    scope.resume_kubelet("web").await;

    // While the command runs.
    let endless = format!("{script} exec sleep 30");
    let (_plugin, child) = start_run(&scope, &endless, &[]).await;
    wait::until("the command to run", async || started.exists()).await;
    kill(child).await;
    assert!(may_operate(&scope.get("web").await, ID));
    assert_eq!(runs(), 1);

    // While the Pod waits in PostCheck.
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "rules": [{
            "name": "back", "stage": "PostCheck",
            "labelCheck": { "requires": { "matchLabels": { "back": "yes" } } },
        }],
    });
    scope.try_rule("back", spec).await.unwrap();
    wait::until("the rule to be seen", async || {
        let rule = scope.rules().get("back").await.unwrap();
        rule.data["status"]["observedGeneration"] == 1
    })
    .await;
    let (_plugin, child) = start_run(&scope, &script, &[]).await;
    let post_check = Family::PostCheck.key(ID);
    scope
        .until_pod("web", "in PostCheck", |pod| has_label(pod, &post_check))
        .await;
    kill(child).await;
    assert_eq!(runs(), 2);
    let said = run(&scope, &script, &[]).await;
    assert_eq!(said.code, Some(75), "{said:?}");
    assert!(said.err.contains("was finished before"), "{said:?}");
    scope.label("web", json!({ "back": "yes" })).await.unwrap();
    assert_eq!(runs(), 2, "the command does not run again");
    scope.until_pod("web", "serving again", is_available).await;
}

#[tokio::test]
async fn run_does_not_finish_operation_of_another_run() {
    let scope = web().await;
    let dir = tempfile::tempdir().unwrap();
    let (started, end) = (dir.path().join("started"), dir.path().join("end"));
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.05; done",
        started.display(),
        end.display()
    );
    let (_dir, mut child) = start_run(&scope, &script, &[]).await;
    wait::until("the command to run", async || started.exists()).await;
    let object = ["pod/web", "--id", ID];
    let finish = [&["lifecycle", "finish"][..], &object].concat();
    let _ = operating(&scope, &finish).await.success();
    let begin = [&["lifecycle", "begin", "--type=upgrade"][..], &object].concat();
    let _ = operating(&scope, &begin).await.success();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut text = String::new();
    while !text.contains("warning: somebody else") {
        text += &lines.next_line().await.unwrap().expect(&text);
    }
    std::fs::write(&end, "").unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?} {text}");
    scope
        .until_pod("web", "in Operate", |pod| may_operate(pod, ID))
        .await;
}

#[tokio::test]
async fn run_that_gives_up_withdraws_operation() {
    let scope = web().await;
    let args = [
        "lifecycle",
        "run",
        "web",
        "--id",
        ID,
        "--type=upgrade",
        "--",
        "no-such-program",
    ];
    let said = operating(&scope, &args).await;
    assert_eq!(said.code, Some(127), "{said:?}");
    assert!(is_idle(&scope.get("web").await));

    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 1).await;
    let kept = run(&scope, "true", &["--timeout=1s", "--keep"]).await;
    assert_eq!(kept.code, Some(1), "{kept:?}");
    assert!(kept.err.contains("PodTransitionRule web"), "{kept:?}");
    assert!(!is_idle(&scope.get("web").await));
    let given_up = run(&scope, "true", &["--timeout=1s"]).await;
    assert_eq!(given_up.code, Some(1), "{given_up:?}");
    assert!(given_up.err.contains("is withdrawn"), "{given_up:?}");
    assert!(is_idle(&scope.get("web").await));
}

async fn kill(mut child: Child) {
    child.kill().await.unwrap();
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
