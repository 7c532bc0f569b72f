//! Operations in place on five Pods: the lifecycle lets three of them begin.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::wait;

use super::super::Stage;
use super::super::workload::{LIMIT, NAME, Workload};

const ID: &str = "demo";
const WANTED: usize = 5;
const PATIENCE: Duration = Duration::from_secs(90);

/// Plays the scene.
pub async fn play(stage: &mut Stage<'_>) -> Result<()> {
    stage
        .narrator
        .scene("An operation on 5 Pods in place: 3 may begin, 2 wait their turn");
    stage.narrator.say(format!(
        "An operator asks by two labels on the Pod, {} and {}.\n\
         The answer is a label too: {} means the Pod is off traffic and may be worked on.",
        key("operating"),
        key("operation-type"),
        key("operate"),
    ));
    stage.observer.reset().await?;
    let mut pods = stage.workload.whole().await?;
    pods.truncate(WANTED);
    let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
    try_join_all(names.iter().map(|name| begin(stage.workload, name))).await?;
    let (go, waiting) = settled(stage.workload, &names, LIMIT).await?;
    let narrator = &mut stage.narrator;
    narrator.check("3 Pods may be worked on", go.join(", "), go.len() == LIMIT);
    narrator.check(
        "2 Pods wait",
        waiting.join(", "),
        waiting.len() == WANTED - LIMIT,
    );
    if let Some(reason) = reason(stage.workload, &waiting).await? {
        stage.narrator.say("Why, as the rule's status says:");
        stage.narrator.quote(reason);
    }
    stage.show(&["get", "ptr"]).await?;

    let first = go.first().context("a Pod to finish")?.clone();
    stage.narrator.say(format!(
        "The operation on {first} is finished: the operator takes its label away."
    ));
    finish(stage.workload, &first).await?;
    let next = || async {
        let (go, _) = phases(stage.workload, &waiting).await?;
        Ok(!go.is_empty())
    };
    wait::within("a waiting Pod to follow", PATIENCE, next).await?;
    let (followed, still) = phases(stage.workload, &waiting).await?;
    stage.narrator.check(
        "1 of the 2 follows as soon as that Pod is available",
        followed.join(", "),
        followed.len() == 1 && still.len() == 1,
    );
    stage
        .narrator
        .say("The others are finished as they get their turn.");
    let mut done = vec![first];
    while done.len() < WANTED {
        let waiting: Vec<_> = names
            .iter()
            .filter(|n| !done.contains(n))
            .cloned()
            .collect();
        wait::within("the next Pod's turn", PATIENCE, || async {
            Ok(!phases(stage.workload, &waiting).await?.0.is_empty())
        })
        .await?;
        for name in phases(stage.workload, &waiting).await?.0 {
            finish(stage.workload, &name).await?;
            done.push(name);
        }
    }
    stage.recover().await?;
    wait::within("the lifecycle's labels to go", PATIENCE, || async {
        Ok(stage.workload.list().await?.iter().all(|p| !in_flight(p)))
    })
    .await?;
    stage.check_observer().await
}

fn key(family: &str) -> String {
    format!("{family}.podopslifecycle.kusionstack.io/{ID}")
}

fn in_flight(pod: &Pod) -> bool {
    pod.labels().contains_key(&key("operating"))
}

async fn label(workload: &Workload, pod: &str, labels: Value) -> Result<()> {
    let patch = json!({"metadata": {"labels": labels}});
    let patch = Patch::Merge(&patch);
    let written = workload
        .pods
        .patch(pod, &PatchParams::default(), &patch)
        .await;
    written
        .with_context(|| format!("labelling {pod}"))
        .map(drop)
}

async fn begin(workload: &Workload, pod: &str) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let labels = json!({key("operating"): now.to_string(), key("operation-type"): "upgrade"});
    label(workload, pod, labels).await
}

async fn finish(workload: &Workload, pod: &str) -> Result<()> {
    label(workload, pod, json!({key("operating"): null})).await
}

/// The Pods whose operation may proceed, and those that still wait for permission.
async fn phases(workload: &Workload, names: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let (mut go, mut waiting) = (Vec::new(), Vec::new());
    for pod in workload.list().await? {
        let name = pod.name_any();
        if !names.contains(&name) {
            continue;
        }
        if pod.labels().contains_key(&key("operate")) && in_flight(&pod) {
            go.push(name);
        } else if pod.labels().contains_key(&key("pre-check")) {
            waiting.push(name);
        }
    }
    Ok((go, waiting))
}

/// The same, a moment after at least `count` operations may proceed.
async fn settled(
    workload: &Workload,
    names: &[String],
    count: usize,
) -> Result<(Vec<String>, Vec<String>)> {
    wait::within("the first Pods to be off traffic", PATIENCE, || async {
        Ok(phases(workload, names).await?.0.len() >= count)
    })
    .await?;
    // Time in which a wrong further permission would appear.
    tokio::time::sleep(Duration::from_secs(2)).await;
    phases(workload, names).await
}

/// The reason in the status of the rule for the first waiting Pod.
async fn reason(workload: &Workload, waiting: &[String]) -> Result<Option<String>> {
    let rule = workload.rules.get(NAME).await?;
    let details = rule.data["status"]["details"].as_array().cloned();
    let mut details = details.unwrap_or_default().into_iter();
    let waits = |d: &Value| waiting.iter().any(|name| d["name"] == name.as_str());
    let found = details.find(waits);
    Ok(found.and_then(|d| Some(d["rejectInfo"][0]["reason"].as_str()?.to_owned())))
}
