//! Marks the namespaces that hold rules, so that the webhooks that claim are called there and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tracing::info;

use super::{Context, write};
use crate::api::keys;
use crate::cluster::queue::Outcome;

/// A namespace keeps its mark for this long after its last rule is gone: a rule that is being made just then relies on it.
const LINGER: Duration = Duration::from_secs(30);

/// Makes the mark agree with the rules of the namespace.
pub async fn reconcile(context: &Arc<Context>, name: String) -> Outcome {
    let Some((marked, ruled)) = look(context, &name) else {
        return Outcome::Done;
    };
    if marked == ruled {
        return Outcome::Done;
    }
    if !ruled {
        tokio::time::sleep(LINGER).await;
        if look(context, &name) != Some((true, false)) {
            return Outcome::Done; // changed meanwhile, which put the key into the queue again
        }
    }
    let value = if ruled { json!("true") } else { json!(null) };
    let patch = json!({ "metadata": { "labels": { (keys::NAMESPACE_HAS_RULES): value } } });
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let params = PatchParams::default();
    match write(
        "mark a namespace",
        namespaces.patch_metadata(&name, &params, &Patch::Merge(patch)),
    )
    .await
    {
        Ok(_) => {
            info!(namespace = %name, marked = ruled, "the mark for namespaces with rules was changed");
            Outcome::Done
        }
        Err(_) if look(context, &name).is_none() => Outcome::Done,
        Err(outcome) => outcome,
    }
}

/// Whether the namespace has the mark, and whether it holds rules; `None` when there is nothing to mark.
fn look(context: &Context, name: &str) -> Option<(bool, bool)> {
    let state = context.index.read();
    let namespace = state.namespace(name)?;
    let labels = namespace.labels.as_ref()?;
    (!namespace.terminating).then(|| {
        (
            labels.contains_key(keys::NAMESPACE_HAS_RULES),
            !namespace.rules.is_empty(),
        )
    })
}
