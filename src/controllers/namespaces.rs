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
use crate::cluster::path;
use crate::cluster::queue::Outcome;
use crate::domain::rules::RuleSet;
use crate::domain::rules::mark::Mark;

/// A namespace keeps its mark for this long after its last rule is gone: a rule that is being made just then relies on it.
const LINGER: Duration = Duration::from_secs(30);

/// The controller.
pub struct Namespaces {
    context: Arc<Context>,
    /// Since when marked namespaces have been without a rule that needs the mark.
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
        if looked.is_none_or(|(marked, needed)| marked <= needed) {
            self.idle.lock().remove(&name);
        }
        let Some((marked, needed)) = looked.filter(|(marked, needed)| marked != needed) else {
            return Outcome::Done;
        };
        if marked > needed {
            let since = *self
                .idle
                .lock()
                .entry(name.clone())
                .or_insert_with(Instant::now);
            let left = LINGER.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Outcome::After(left);
            }
            match self.needed(&name).await {
                Ok(live) if live <= needed => {}
                Ok(_) => return Outcome::After(LINGER), // the cache will say so
                Err(outcome) => return outcome,
            }
        }
        let patch =
            json!({ "metadata": { "labels": { (keys::NAMESPACE_HAS_RULES): needed.value() } } });
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let params = PatchParams::default();
        match write(
            "mark a namespace",
            namespaces.patch_metadata(&name, &params, &Patch::Merge(patch)),
        )
        .await
        {
            Ok(_) => {
                info!(namespace = %name, mark = ?needed, "the mark for namespaces with rules was changed");
                Outcome::Done
            }
            Err(_) if look(&self.context, &name).is_none() => Outcome::Done,
            Err(outcome) => outcome,
        }
    }

    /// The mark that the rules in etcd need: a rule just made may rely on the one that is to go.
    async fn needed(&self, name: &str) -> Result<Mark, Outcome> {
        let list = async {
            let rules: Api<PodTransitionRule> = path::namespaced(&self.context.client, name)?;
            rules.list(&ListParams::default()).await
        };
        let list = write("list rules", list).await?;
        let sets: Vec<_> = list.items.iter().map(RuleSet::compile).collect();
        Ok(Mark::for_rules(&sets))
    }
}

/// The mark that the namespace has, and the one that its rules need; `None` when there is nothing to mark.
fn look(context: &Context, name: &str) -> Option<(Mark, Mark)> {
    let state = context.index.read();
    let namespace = state.namespace(name)?;
    let labels = namespace.labels.as_ref()?;
    namespace.terminating_since.is_none().then(|| {
        let rules = namespace.rules.values().map(|e| &*e.snapshot.rules);
        (Mark::of(labels), Mark::for_rules(rules))
    })
}
