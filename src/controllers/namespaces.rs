//! Sets and removes the namespace enforcement label, so that the webhooks that claim are called in namespaces with
//! rules and nowhere else.
//!
//! # No rule is stored in a namespace without its label
//!
//! The admission of a rule writes the namespace at a version `p`, which has the label, before the rule is stored
//! (`label_namespace` of the admission). The leader removes the label in four steps. Any time may pass between them,
//! for example because the process is suspended:
//!
//! 1. The leader sees the namespace at a version `v`.
//! 2. It waits for the API server's request timeout and [`LAPSE_MARGIN`], by its own monotonic clock, while it sees no
//!    other version.
//! 3. It lists the rules in etcd, and finds none that needs the label.
//! 4. It sends a patch that the API server applies to `v` only.
//!
//! If `p <= v`, the request that stores the rule began before step 1. The API server has ended this request before step
//! 3: either the list contains the rule, or the rule is never stored. If `p > v` and the patch comes after `p`, the API
//! server answers 409. If the patch comes before `p`, the write at `p` sets the label again, and a patch that removes
//! this label must be for `p` or a later version.
//!
//! The leader also takes these steps to change the label to a weaker value. When it changes the label to a stronger
//! value, the patch depends on the version, too: otherwise the leader could replace an even stronger value that an
//! admission has just set.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use super::ControllerContext;
use super::api_calls::call_api;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::cluster::{paging, request_path};
use crate::domain::rules::RuleSet;
use crate::domain::rules::enforcement::{NamespaceEnforcement, ObservedNamespace};
use crate::ledger::evidence::LAPSE_MARGIN;

/// The controller of the namespace enforcement label.
pub struct NamespaceController {
    context: Arc<ControllerContext>,
    idle: Mutex<IdleVersions>,
}

/// For each namespace with a stronger label than it needs: the last version that was seen, and when it was seen first.
#[derive(Default)]
struct IdleVersions(HashMap<String, (ObservedNamespace, Instant)>);

impl IdleVersions {
    /// How long the namespace has been at this version. The time starts again with every other version.
    fn time_at_version(
        &mut self,
        name: &str,
        observed: &ObservedNamespace,
        now: Instant,
    ) -> Duration {
        match self.0.get(name) {
            Some((earlier, since)) if earlier == observed => now.saturating_duration_since(*since),
            _ => {
                self.0.insert(name.to_owned(), (observed.clone(), now));
                Duration::ZERO
            }
        }
    }

    /// Forgets a namespace that needs its label, or is gone.
    fn forget_namespace(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl NamespaceController {
    pub fn new(context: Arc<ControllerContext>) -> Arc<Self> {
        Arc::new(NamespaceController {
            context,
            idle: Mutex::default(),
        })
    }

    /// Makes the label of the namespace agree with its rules.
    pub async fn reconcile(&self, name: String) -> ReconcileOutcome {
        let observation = observe_namespace(&self.context, &name);
        let Some((observed, needed)) =
            observation.filter(|(observed, needed)| observed.enforcement != *needed)
        else {
            self.idle.lock().forget_namespace(&name);
            return ReconcileOutcome::Done;
        };
        if observed.enforcement > needed {
            let idle_time = self
                .idle
                .lock()
                .time_at_version(&name, &observed, Instant::now());
            let pause = self.context.request_timeout + LAPSE_MARGIN;
            if idle_time < pause {
                return ReconcileOutcome::After(pause - idle_time);
            }
            match self.needed_enforcement(&name).await {
                Ok(live) if live <= needed => {}
                Ok(_) => return ReconcileOutcome::After(LAPSE_MARGIN), // the cache will show the rules
                Err(outcome) => return outcome,
            }
        } else {
            self.idle.lock().forget_namespace(&name);
        }
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let (params, patch) = (
            PatchParams::default(),
            Patch::Merge(observed.label_patch(needed)),
        );
        match call_api(
            "label a namespace",
            namespaces.patch_metadata(&name, &params, &patch),
        )
        .await
        {
            Ok(_) => {
                info!(namespace = %name, label = ?needed, "changed the enforcement label of a namespace");
                ReconcileOutcome::Done
            }
            Err(_) if observe_namespace(&self.context, &name).is_none() => ReconcileOutcome::Done,
            Err(outcome) => outcome,
        }
    }

    /// The label that the rules in etcd need. The list has no resourceVersion, so the API server reads the rules from
    /// etcd.
    async fn needed_enforcement(
        &self,
        name: &str,
    ) -> Result<NamespaceEnforcement, ReconcileOutcome> {
        let list = async {
            let rules: Api<PodTransitionRule> =
                request_path::namespaced_api(&self.context.client, name)?;
            paging::list_all_objects(&rules, RuleSet::compile_if_alive).await
        };
        let rule_sets = call_api("list rules", list).await?;
        Ok(NamespaceEnforcement::for_rules(&rule_sets))
    }
}

/// The namespace in the cache, and the label that its rules need; `None` if the namespace needs no change or is being
/// deleted.
fn observe_namespace(
    context: &ControllerContext,
    name: &str,
) -> Option<(ObservedNamespace, NamespaceEnforcement)> {
    let state = context.index.read_state();
    let namespace = state.namespace(name)?;
    let observed = namespace.observed_label()?;
    namespace.terminating_since.is_none().then(|| {
        let rules = namespace.rules.values().map(|e| &*e.snapshot.rules);
        (observed, NamespaceEnforcement::for_rules(rules))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn observed(uid: &str, version: u64) -> ObservedNamespace {
        ObservedNamespace::new(uid, version, &[].into()).unwrap()
    }

    #[test]
    fn time_at_a_version_begins_anew_with_every_change() {
        let (mut idle, begin) = (IdleVersions::default(), Instant::now());
        let mut after = |seconds, name: &str, namespace: &ObservedNamespace| {
            let now = begin + Duration::from_secs(seconds);
            idle.time_at_version(name, namespace, now).as_secs()
        };
        assert_eq!(after(0, "shop", &observed("a", 7)), 0);
        assert_eq!(after(60, "shop", &observed("a", 7)), 60);
        assert_eq!(after(61, "shop", &observed("a", 8)), 0);
        assert_eq!(after(70, "other", &observed("a", 8)), 0);
        assert_eq!(after(71, "shop", &observed("a", 8)), 10);
        assert_eq!(after(72, "shop", &observed("b", 8)), 0);
        idle.forget_namespace("shop");
        assert_eq!(
            idle.time_at_version("shop", &observed("b", 8), begin),
            Duration::ZERO
        );
    }
}
