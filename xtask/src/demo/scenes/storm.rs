//! Ten deletes at once.

use anyhow::{Result, bail};
use futures::future::join_all;
use kube::api::DeleteParams;
use kube::{Error, ResourceExt};

use super::super::Stage;
use super::super::workload::{LIMIT, REPLICAS};

/// Plays the scene.
pub async fn play(stage: &mut Stage<'_>) -> Result<()> {
    stage
        .narrator
        .scene("A storm: all 10 Pods are deleted at once");
    stage.narrator.say(
        "For a moment no node takes new Pods, as on a full cluster: what goes is not replaced,\n\
         so a fourth Pod must not go.",
    );
    stage.observer.reset().await?;
    stage.workload.set_nodes_schedulable(false).await?;
    let pods = stage.workload.list().await?;
    let deletes = pods.iter().map(|pod| async {
        let name = pod.name_any();
        stage
            .workload
            .pods
            .delete(&name, &DeleteParams::default())
            .await
    });
    let (mut admitted, mut refused) = (0, Vec::new());
    for answer in join_all(deletes).await {
        match answer {
            Ok(_) => admitted += 1,
            Err(Error::Api(status)) if status.code == 429 => refused.push(status.message.clone()),
            Err(error) => bail!("a delete was answered otherwise: {error}"),
        }
    }
    let narrator = &mut stage.narrator;
    narrator.check("exactly 3 deletes admitted", admitted, admitted == LIMIT);
    let expected_refusals = REPLICAS - LIMIT;
    narrator.check(
        "the other 7 refused with 429, too many requests",
        refused.len(),
        refused.len() == expected_refusals,
    );
    narrator.say("The text of a denial:");
    if let Some(text) = refused.first() {
        narrator.quote(text);
    }
    let complete = refused.iter().all(|text| {
        ["PodTransitionRule web", "limit is 3", "try again"]
            .iter()
            .all(|part| text.contains(part))
    });
    narrator.check(
        "every denial names the rule, the limit and what to do",
        if complete {
            "all three"
        } else {
            "not all three"
        },
        complete && !refused.is_empty(),
    );
    stage.workload.used_up().await?;
    stage.show(&["get", "ptr"]).await?;
    stage.narrator.say("The nodes take new Pods again.");
    stage.workload.set_nodes_schedulable(true).await?;
    stage.recover().await?;
    stage.check_observer().await
}
