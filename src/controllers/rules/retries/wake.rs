//! Wakes the controller of one owner.

use std::sync::Arc;

use tracing::debug;

use super::owner_backoff::OwnerBackoff;
use super::{OwnerKey, is_namespace_excluded, owner_state};
use crate::cluster::index::{NamespaceIndex, RuleEntry};
use crate::cluster::pod_requests;
use crate::controllers::ControllerContext;
use crate::controllers::api_calls::call_api_again;
use crate::domain::pod::Pod;
use crate::ledger::store::{RuleKey, Uid};

pub struct OwnerWake {
    pub key: OwnerKey,
    /// The Pod whose annotation is changed.
    pod: Arc<Pod>,
    /// Rule objects whose ledgers store the deletion of a Pod of the owner.
    pub rules: Vec<RuleKey>,
    /// Whether this is the first attempt.
    pub first: bool,
    /// Whether the last attempt failed.
    failing: bool,
}

impl OwnerWake {
    /// Prepares the wake of an owner that is due by `backoff`. `rules` are the rule objects that may deny the deletion.
    pub fn new_wake(
        key: &OwnerKey,
        pod: &Arc<Pod>,
        backoff: &OwnerBackoff,
        rules: Vec<RuleKey>,
    ) -> OwnerWake {
        OwnerWake {
            key: key.clone(),
            pod: Arc::clone(pod),
            rules,
            first: backoff.is_first_attempt(),
            failing: backoff.is_failing(),
        }
    }

    /// Changes an annotation of the Pod, so that the controller reconciles its object. Returns whether the write
    /// succeeded.
    pub async fn send_wake(&self, context: &ControllerContext) -> bool {
        let patch = pod_requests::patch_metadata(
            &context.client,
            &self.pod,
            pod_requests::wake_annotation((context.now)()),
        );
        let written = call_api_again("wake a controller", self.failing, patch)
            .await
            .is_ok();
        if written {
            let (namespace, pod) = (&self.pod.metadata.namespace, &self.pod.metadata.name);
            debug!(%namespace, %pod, "woke the controller, because the budget has headroom");
        }
        written
    }
}

/// The rule objects whose ledgers store the deletion of a Pod of the owner.
pub fn ledgers_covering_owner(
    context: &ControllerContext,
    namespace: &str,
    namespace_index: &NamespaceIndex,
    uid: &Uid,
) -> Vec<RuleKey> {
    if is_namespace_excluded(context, namespace, namespace_index) {
        return Vec::new();
    }
    let limiting = |entry: &&RuleEntry| entry.snapshot.rules.availability_limits().next().is_some();
    owner_state::rules_counting_owner(namespace_index, uid)
        .filter(limiting)
        .map(RuleEntry::rule_key)
        .collect()
}
