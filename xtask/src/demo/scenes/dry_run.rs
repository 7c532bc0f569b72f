//! A dry run gets the same verdict as the real request and changes nothing.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kube::ResourceExt;

use super::super::Stage;
use super::super::workload::NAME;

/// Plays the scene.
pub async fn play(stage: &mut Stage<'_>) -> Result<()> {
    stage
        .narrator
        .scene("A dry run asks for the verdict and writes nothing");
    let pod = stage
        .workload
        .list()
        .await?
        .pop()
        .context("a Pod")?
        .name_any();
    let before = versions(stage).await?;
    stage
        .show(&["delete", "pod", &pod, "--dry-run=server"])
        .await?;
    let after = versions(stage).await?;
    let changed = after
        .iter()
        .filter(|(k, v)| before.get(*k) != Some(*v))
        .count();
    let expected = "the delete would be admitted, no Pod and no rule is written";
    let is_unchanged = before.len() == after.len() && changed == 0;
    stage
        .narrator
        .check(expected, format!("{changed} objects changed"), is_unchanged);
    Ok(())
}

/// Versions of all Pods and of the rule, after the status of the rule has stopped changing.
async fn versions(stage: &Stage<'_>) -> Result<BTreeMap<String, String>> {
    let mut last = BTreeMap::new();
    loop {
        let rule = stage.workload.rules.get(NAME).await?;
        let mut now = BTreeMap::from([(
            "rule".to_owned(),
            rule.resource_version().unwrap_or_default(),
        )]);
        for pod in stage.workload.list().await? {
            now.insert(pod.name_any(), pod.resource_version().unwrap_or_default());
        }
        if now == last {
            return Ok(now);
        }
        last = now;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}
