//! `rollout undo`: puts the template of a former revision back.

use anyhow::Context as _;
use kube::api::Patch;
use serde_json::{Value, json};

use super::Target;
use super::revisions::{choose_revision, list_revisions};
use super::writes;
use crate::api::collaset::CollaSet;
use crate::cli::args::steer::UndoArgs;
use crate::cli::output;

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
        eprintln!(
            "warning: revision {} has other volumeClaimTemplates; only spec.template goes back",
            revision.number
        );
    }
    let (sets, dry_run) = (target.api()?, args.write.dry_run);
    let patch = undo_patch(&set, template)?;
    let sent = writes::try_send(&sets, &target.name, &patch, dry_run).await;
    if let Err(failure) = sent {
        // A failed condition of the patch has the same status as a refusal by admission.
        let now = target.read().await?;
        anyhow::ensure!(
            (&now.metadata.uid, now.metadata.generation)
                == (&set.metadata.uid, set.metadata.generation),
            "somebody else has changed CollaSet {name} meanwhile, so nothing was undone: look at operating rollout \
             history cls/{name} -n {namespace}, and run the command again",
            name = target.name,
            namespace = target.namespace
        );
        return Err(writes::explain_refusal(&target, failure));
    }
    let done = format!("rolled back to revision {}", revision.number);
    writes::report(&target, &done, dry_run)
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
