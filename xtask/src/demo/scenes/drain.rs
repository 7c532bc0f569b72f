//! kubectl drains a node.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::super::Stage;
use super::super::narrator::Narrator;
use super::super::workload::{LIMIT, NAME};

/// kubectl tries again 5 s after a refusal.
const DEADLINE: Duration = Duration::from_secs(180);

/// Plays the scene.
pub async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in stage.workload.list().await? {
        let node = pod.spec.and_then(|spec| spec.node_name);
        *by_node.entry(node.context("a Pod on a node")?).or_default() += 1;
    }
    let most = by_node.iter().max_by_key(|(_, count)| **count);
    let (node, count) = most.context("a node with Pods")?;
    let (node, count) = (node.clone(), *count);
    stage.narrator.scene("kubectl drains a node");
    stage.narrator.say(format!(
        "{count} of the Pods run on {node}. kubectl evicts all of them at once; what is refused\n\
         it tries again every 5 seconds, by itself."
    ));
    stage.observer.reset().await?;
    let drained = drain(stage, &node).await;
    // Even after a failure, because the node may belong to an existing cluster.
    let uncordon = stage
        .cluster
        .plane
        .kubectl(["uncordon", &node])
        .output()
        .await;
    let drained = drained?;
    let outcome = if drained { "it did" } else { "it did not" };
    stage.narrator.check("the drain finishes", outcome, drained);
    let remaining = stage.workload.list().await?;
    let on_node = |pod: &&k8s_openapi::api::core::v1::Pod| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|s| s.node_name.as_deref() == Some(&node))
    };
    let remaining = remaining.iter().filter(on_node).count();
    stage
        .narrator
        .check("no Pod is left on the node", remaining, remaining == 0);
    stage.check_observer().await?;
    if count > LIMIT {
        let most = stage.observer.most_unavailable().await?;
        stage.narrator.say(format!(
            "(the drain wanted {count} at once; {most} went at once)"
        ));
    }
    uncordon.context("kubectl uncordon")?;
    stage.recover().await
}

/// Whether kubectl succeeded within the deadline; its output is quoted as it arrives.
async fn drain(stage: &Stage<'_>, node: &str) -> Result<bool> {
    let selector = format!("--pod-selector=app={NAME},kusionstack.io/control=true");
    let args = ["drain", node, &selector, "--ignore-daemonsets"];
    stage.narrator.say(format!("$ kubectl {}", args.join(" ")));
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let mut command = stage
        .cluster
        .plane
        .kubectl(args.iter().copied().chain([timeout.as_str()]));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting kubectl")?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (out.context("its output")?, err.context("its errors")?);
    let (status, out, err) = tokio::join!(
        child.wait(),
        quote(&stage.narrator, out),
        quote(&stage.narrator, err)
    );
    out?;
    err?;
    Ok(status?.success())
}

async fn quote(narrator: &Narrator, from: impl AsyncRead + Unpin) -> Result<()> {
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        narrator.quote(line);
    }
    Ok(())
}
