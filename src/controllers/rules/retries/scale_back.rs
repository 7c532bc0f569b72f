//! Sets the replicas of an old ReplicaSet back to the number of its Pods.

use k8s_openapi::api::core::v1::ObjectReference;
use tracing::info;

use super::super::rollouts::StuckScaleDown;
use super::owner_backoff::OwnerBackoff;
use super::{OwnerKey, deployment_reference};
use crate::cluster::owner_sizes::Workload;
use crate::cluster::replicasets;
use crate::controllers::ControllerContext;
use crate::controllers::api_calls::call_api_again;
use crate::domain::messages;
use crate::domain::rules::RuleSet;
use crate::ledger::store::Uid;

/// Reason of the Event on a Deployment whose old ReplicaSet was scaled back.
const SCALED_BACK_REASON: &str = "ReplicaSetScaledBack";

/// A ReplicaSet whose `spec.replicas` will be set to the number of its living Pods.
pub struct ScaleBack {
    /// The ReplicaSet.
    pub key: OwnerKey,
    name: String,
    version: u64,
    living: u32,
    /// The Deployment.
    about: ObjectReference,
    message: String,
    /// Whether the last attempt failed.
    failing: bool,
}

impl ScaleBack {
    /// Prepares the scale-back of a ReplicaSet (UID and object) that is due by `pace`.
    pub fn from_stuck_rollout(
        rules: &RuleSet,
        (uid, set): (&Uid, &Workload),
        overhang: &StuckScaleDown<'_>,
        pace: &OwnerBackoff,
    ) -> Option<ScaleBack> {
        let (old, failing) = (&set.name, &overhang.failing.name);
        let (wanted, living) = (overhang.spec_replicas, overhang.living);
        let rule = &rules.name;
        let pods = messages::count_pods(usize::try_from(living).unwrap_or(0));
        Some(ScaleBack {
            key: (rules.namespace.clone(), uid.clone()),
            name: old.clone(),
            version: set.version,
            living,
            about: deployment_reference(rules, set, overhang.deployment)?,
            message: format!(
                "the replicas of the old ReplicaSet {old} were set from {wanted} back to its {pods}: \
                 PodTransitionRule {rule} lets none of them go now, and the Deployment controller does not take away the \
                 failing Pods of ReplicaSet {failing} while {old} has more available Pods than replicas"
            ),
            failing: pace.is_failing(),
        })
    }

    /// Writes `spec.replicas` and records an Event. Returns whether the write succeeded.
    pub async fn send_scale_back(&self, context: &ControllerContext) -> bool {
        let (namespace, uid) = &self.key;
        let (version, living) = (self.version, self.living);
        let place = (namespace.as_str(), self.name.as_str());
        let scale = replicasets::patch_replicas(&context.client, place, uid, version, living);
        let scale = call_api_again("set the replicas of a ReplicaSet back", self.failing, scale);
        let written = scale.await.is_ok();
        if written {
            info!(
                %namespace,
                replicaset = self.name,
                replicas = living,
                "set the replicas of an old ReplicaSet back to its Pods"
            );
            let (about, message) = (&self.about, &self.message);
            context
                .events
                .record_event(about, false, SCALED_BACK_REASON, message);
        }
        written
    }
}
