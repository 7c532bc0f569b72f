//! `rollout undo`: puts the template of a former revision back.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Target;
use super::revisions::{choose_revision, is_same_template, list_revisions};
use super::writes;
use crate::api::collaset::CollaSet;
use crate::api_request::ApiFailure;
use crate::cli::args::steer::{DryRun, UndoArgs};
use crate::cli::output;
use crate::cli::retries::Retries;

/// How long the read after a failed write is repeated.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Puts the template back, on condition that nobody has changed the spec since it was read.
pub async fn undo_rollout(args: UndoArgs) -> anyhow::Result<()> {
    let target = Target::connect(&args.write.set).await?;
    let set = target.read().await?;
    let revisions = list_revisions(&target, &set).await?;
    let revision = choose_revision(&revisions, args.to_revision);
    let revision = revision.map_err(anyhow::Error::msg)?;
    let template = revision.template.as_ref().with_context(|| {
        format!(
            "ControllerRevision {} has no Pod template: choose another with --to-revision",
            revision.name
        )
    })?;
    if revision.is_template {
        let number = revision.number;
        let text = format!(
            "collaset/{}: nothing to undo, the template is that of revision {number}\n",
            target.name
        );
        return output::write_stdout(&text);
    }
    if revision.has_other_volumes {
        output::write_stderr(&format!(
            "warning: revision {} has other volumeClaimTemplates; only spec.template goes back",
            revision.number
        ));
    }
    let (sets, dry_run) = (target.api()?, args.write.dry_run);
    let patch = undo_patch(&set, template)?;
    let sent = writes::try_send(&sets, &target.name, &patch, dry_run).await;
    if let Err(failure) = sent {
        let retries = Retries::until(Some(Instant::now() + ANSWER_WAIT));
        let now = target.read_with(retries).await;
        match after_failure(&failure, &set, now.as_ref().ok(), template, dry_run) {
            Outcome::Done => {}
            Outcome::Refused => return Err(writes::explain_refusal(&target, failure)),
            Outcome::Changed => bail!(
                "somebody else has changed CollaSet {name} meanwhile, so nothing was undone: look at operating rollout history \
                 cls/{name} -n {namespace}, and name the revision with --to-revision",
                name = target.name,
                namespace = target.namespace
            ),
            Outcome::Unknown => bail!(
                "whether CollaSet {name} has the template of revision {number} is unknown ({reason}): look at operating rollout \
                 history cls/{name} -n {namespace}, and name the revision with --to-revision={number} if the template is \
                 another",
                name = target.name,
                namespace = target.namespace,
                number = revision.number,
                reason = failure.text()
            ),
        }
    }
    let from = revisions.iter().rev().find(|r| r.is_template);
    let from = from.map_or_else(
        || "a template without a revision".to_owned(),
        |from| format!("revision {}", from.number),
    );
    let done = format!("rolled back from {from} to revision {}", revision.number);
    writes::report(&target, &done, dry_run)
}

/// What a failed write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The set has the template.
    Done,
    /// The write was refused.
    Refused,
    /// Somebody else has changed the set before, so the conditions of the patch did not hold.
    Changed,
    /// The write may have been stored, or may be stored yet.
    Unknown,
}

/// Decides what a failed write has done. `now` is the set after it, if it can be read.
fn after_failure(
    failure: &ApiFailure,
    before: &CollaSet,
    now: Option<&CollaSet>,
    template: &Value,
    dry_run: DryRun,
) -> Outcome {
    let of = |set: &CollaSet| (set.metadata.uid.clone(), set.metadata.generation);
    let has_template = |now: &&CollaSet| {
        dry_run == DryRun::None
            && now.metadata.uid == before.metadata.uid
            && is_same_template(&now.spec.template, template)
    };
    if now.filter(has_template).is_some() {
        return Outcome::Done;
    }
    match now {
        // A failed condition of the patch has the same status as a refusal by admission.
        Some(now) if !failure.is_passing() && failure.code().is_some() => {
            match of(now) == of(before) {
                true => Outcome::Refused,
                false => Outcome::Changed,
            }
        }
        None if failure.code().is_some() && !failure.is_passing() => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

/// The patch with its conditions. The generation changes with each write of the spec, but not with those of the status.
fn undo_patch(set: &CollaSet, template: &Value) -> anyhow::Result<Patch<Value>> {
    let patch = json!([
        { "op": "test", "path": "/metadata/uid", "value": set.metadata.uid },
        { "op": "test", "path": "/metadata/generation", "value": set.metadata.generation },
        { "op": "replace", "path": "/spec/template", "value": template },
    ]);
    let patch = serde_json::from_value(patch).context("cannot write the patch")?;
    Ok(Patch::Json(patch))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[test]
    fn failed_write_is_judged_by_stored_template() {
        let set = |uid: &str, generation: i64, image: &str| -> CollaSet {
            let set = json!({
                "metadata": { "name": "web", "uid": uid, "generation": generation },
                "spec": { "template": { "spec": { "containers": [{ "image": image }] } } },
            });
            serde_json::from_value(set).unwrap()
        };
        let before = set("u", 3, "web:2");
        let wanted = set("u", 0, "web:1").spec.template;
        let lost = ApiFailure::NoAnswer(std::time::Duration::ZERO);
        let status = kube::core::Status::failure("no", "Invalid").with_code(422);
        let refused = ApiFailure::Answered(Box::new(status));
        let done = set("u", 4, "web:1");
        let other = set("u", 4, "web:3");
        for (failure, now, outcome) in [
            (&lost, Some(&done), Outcome::Done),
            (&refused, Some(&done), Outcome::Done),
            (&lost, Some(&before), Outcome::Unknown),
            (&lost, Some(&other), Outcome::Unknown),
            (&lost, None, Outcome::Unknown),
            (&refused, Some(&before), Outcome::Refused),
            (&refused, Some(&other), Outcome::Changed),
            (&refused, Some(&set("v", 1, "web:1")), Outcome::Changed),
        ] {
            let found = after_failure(failure, &before, now, &wanted, DryRun::None);
            assert_eq!(found, outcome, "{failure:?} {now:?}");
        }
        let tried = after_failure(&lost, &before, Some(&done), &wanted, DryRun::Server);
        assert_eq!(tried, Outcome::Unknown);
    }

    #[test]
    fn patch_applies_only_to_the_spec_that_was_read() {
        let stored = json!({
            "metadata": { "name": "web", "uid": "u", "generation": 3 },
            "spec": { "template": { "spec": { "containers": [{ "image": "web:2" }] } } },
        });
        let set: CollaSet = serde_json::from_value(stored.clone()).unwrap();
        let Patch::Json(patch) = undo_patch(&set, &json!({ "spec": "former" })).unwrap() else {
            panic!("another kind of patch");
        };
        let mut patched = stored.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched["spec"]["template"], json!({ "spec": "former" }));
        for (field, value) in [("generation", json!(4)), ("uid", json!("other"))] {
            let mut changed = stored.clone();
            changed["metadata"][field] = value;
            assert!(json_patch::patch(&mut changed, &patch).is_err(), "{field}");
        }
    }
}
