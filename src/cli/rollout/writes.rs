//! Sends the writes of `rollout`, with errors that say what to do.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Target;
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api_request::{self, ApiFailure};
use crate::cli::args::steer::{DryRun, RolloutWriteArgs};
use crate::cli::output;
use crate::cli::why::api_reads;
use crate::domain::collaset::RETRY;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};

/// Longest wait for one answer. Admission tries templates by dry runs, which take longer than a read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(35);
/// The field manager of writes of users, as `kubectl rollout` has one.
const FIELD_MANAGER: &str = "kubectl-operating";
/// The annotation of a template whose change makes all Pods again.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// `rollout pause` and `rollout resume`.
pub async fn set_paused(args: RolloutWriteArgs, paused: bool) -> anyhow::Result<()> {
    let target = Target::connect(&args.set).await?;
    let set = target.read().await?;
    let done = if paused { "paused" } else { "resumed" };
    if set.spec.paused == paused {
        return output::write_stdout(&format!("collaset/{} is {done} already\n", target.name));
    }
    let patch = json!({ "spec": { "paused": paused } });
    send(&target, &patch_of(&set, patch), args.dry_run).await?;
    report(&target, done, args.dry_run)
}

/// `rollout restart`.
pub async fn restart(args: RolloutWriteArgs) -> anyhow::Result<()> {
    let target = Target::connect(&args.set).await?;
    let set = target.read().await?;
    let reach = restart_reach(&set).map_err(anyhow::Error::msg)?;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let annotations = json!({ RESTARTED_AT: now });
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
    send(&target, &patch_of(&set, patch), args.dry_run).await?;
    if let Some(reach) = reach {
        output::write_stderr(&format!("warning: {reach}"));
    }
    report(&target, "restarted", args.dry_run)
}

/// Which Pods a restart reaches, if not all.
///
/// # Errors
/// Why a restart would have another effect or none, and the remedy.
fn restart_reach(set: &CollaSet) -> Result<Option<String>, String> {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    if set.spec.paused {
        return Err(format!(
            "CollaSet {name} is paused, so no Pod would be made again: run operating rollout resume cls/{name} first"
        ));
    }
    let rollout = set
        .status
        .as_ref()
        .and_then(|status| status.rollout.as_ref());
    if rollout.is_some_and(|rollout| rollout.aborted) {
        return Err(format!(
            "the rollout of CollaSet {name} is aborted, and a restart would roll the aborted template out: put the former one \
             back with operating rollout undo cls/{name}, or set the annotation {}={RETRY}",
            keys::ROLLOUT
        ));
    }
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    match strategy.scope {
        UpdateScope::Partition(0) => Ok(None),
        UpdateScope::Partition(kept) if kept >= strategy.replicas => Err(format!(
            "partition {kept} of CollaSet {name} keeps all Pods, so no Pod would be made again: lower \
             spec.updateStrategy.rollingUpdate.byPartition first"
        )),
        UpdateScope::Partition(kept) => Ok(Some(format!(
            "partition {kept} keeps that many Pods as they are"
        ))),
        UpdateScope::ByLabel => Ok(Some(format!(
            "byLabel restarts only the Pods that have the label {}",
            keys::UPDATE_INCLUDED
        ))),
    }
}

/// A merge patch that has no effect on another object of the same name.
fn patch_of(set: &CollaSet, mut patch: Value) -> Patch<Value> {
    patch["metadata"] = json!({ "uid": set.metadata.uid });
    Patch::Merge(patch)
}

/// Sends a patch.
pub async fn send(target: &Target, patch: &Patch<Value>, dry_run: DryRun) -> anyhow::Result<()> {
    let sets = target.api()?;
    try_send(&sets, &target.name, patch, dry_run)
        .await
        .map_err(|failure| explain_refusal(target, failure))
}

/// Like [`send`], with the failure as it is.
pub async fn try_send(
    sets: &kube::Api<CollaSet>,
    name: &str,
    patch: &Patch<Value>,
    dry_run: DryRun,
) -> Result<(), ApiFailure> {
    let params = PatchParams {
        dry_run: dry_run == DryRun::Server,
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let sent = api_request::within(WRITE_TIMEOUT, sets.patch(name, &params, patch));
    sent.await.map(|_| ())
}

/// Describes a write that was refused.
pub fn explain_refusal(target: &Target, failure: ApiFailure) -> anyhow::Error {
    match failure.code() {
        Some(404) => anyhow::Error::msg(target.missing()),
        Some(409) => anyhow::anyhow!(
            "CollaSet {} was deleted and made again meanwhile: nothing was changed; run the command again",
            target.name
        ),
        _ => api_reads::explain_failure("patch", "collasets", Some(&target.namespace), failure),
    }
}

/// Says what was done.
pub fn report(target: &Target, done: &str, dry_run: DryRun) -> anyhow::Result<()> {
    let how = match dry_run {
        DryRun::None => "",
        DryRun::Server => " (server dry run)",
    };
    output::write_stdout(&format!("collaset/{} {done}{how}\n", target.name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn restart_is_refused_where_it_reaches_no_pod_or_another_template() {
        let reach = |changes: Value| {
            let mut set = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 2 } });
            json_patch::merge(&mut set, &changes);
            restart_reach(&serde_json::from_value(set).unwrap())
        };
        let strategy =
            |rolling: Value| json!({ "spec": { "updateStrategy": { "rollingUpdate": rolling } } });
        assert_eq!(reach(json!({})), Ok(None));
        let aborted = json!({ "status": { "rollout": { "revision": "r", "aborted": true } } });
        for (changes, remedy) in [
            (json!({ "spec": { "paused": true } }), "rollout resume"),
            (aborted, "rollout undo"),
            (
                strategy(json!({ "byPartition": { "partition": 2 } })),
                "byPartition",
            ),
        ] {
            let refusal = reach(changes).unwrap_err();
            assert!(refusal.contains(remedy), "{refusal}");
        }
        for (rolling, part) in [
            (
                json!({ "byPartition": { "partition": 1 } }),
                "partition 1 keeps",
            ),
            (json!({ "byLabel": {} }), "update-included"),
        ] {
            let warning = reach(strategy(rolling)).unwrap().unwrap();
            assert!(warning.contains(part), "{warning}");
        }
    }
}
