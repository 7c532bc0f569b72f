//! Marks the namespaces that hold rules, so that the webhooks that claim are called there and nowhere else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use super::{Context, write};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::queue::Outcome;

/// A namespace keeps its mark for this long after its last rule is gone: a rule that is being made just then relies on it.
const LINGER: Duration = Duration::from_secs(30);

/// The controller.
pub struct Namespaces {
    context: Arc<Context>,
    /// Since when marked namespaces have been without a rule.
    idle: Mutex<HashMap<String, Instant>>,
}

impl Namespaces {
    /// A controller.
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Namespaces {
            context,
            idle: Mutex::default(),
        })
    }

    /// Makes the mark agree with the rules of the namespace.
    pub async fn reconcile(&self, name: String) -> Outcome {
        let looked = look(&self.context, &name);
        if looked != Some((true, false)) {
            self.idle.lock().remove(&name);
        }
        let Some((marked, ruled)) = looked.filter(|(marked, ruled)| marked != ruled) else {
            return Outcome::Done;
        };
        if marked {
            let since = *self
                .idle
                .lock()
                .entry(name.clone())
                .or_insert_with(Instant::now);
            let left = LINGER.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Outcome::After(left);
            }
            match self.has_rules(&name).await {
                Ok(false) => {}
                Ok(true) => return Outcome::After(LINGER), // the cache will say so
                Err(outcome) => return outcome,
            }
        }
        let value = if ruled { json!("true") } else { json!(null) };
        let patch = json!({ "metadata": { "labels": { (keys::NAMESPACE_HAS_RULES): value } } });
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
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
            Err(_) if look(&self.context, &name).is_none() => Outcome::Done,
            Err(outcome) => outcome,
        }
    }

    /// Whether etcd holds a rule of the namespace: a rule just made may rely on the mark that is to go.
    async fn has_rules(&self, name: &str) -> Result<bool, Outcome> {
        let rules: Api<PodTransitionRule> = Api::namespaced(self.context.client.clone(), name);
        let list = write(
            "list rules",
            rules.list_metadata(&ListParams::default().limit(1)),
        )
        .await?;
        Ok(!list.items.is_empty())
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
