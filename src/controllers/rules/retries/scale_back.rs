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
    deployment: ObjectReference,
    message: String,
    /// Whether the last attempt failed.
    failing: bool,
}

impl ScaleBack {
    /// Prepares the scale-back of a ReplicaSet (UID and object) that is due by `backoff`.
    pub fn from_stuck_scale_down(
        rules: &RuleSet,
        (uid, set): (&Uid, &Workload),
        stuck: &StuckScaleDown<'_>,
        backoff: &OwnerBackoff,
    ) -> Option<ScaleBack> {
        let (old, failing) = (&set.name, &stuck.failing.name);
        let (spec_replicas, living) = (stuck.spec_replicas, stuck.living);
        let rule = &rules.name;
        let pods = messages::count_pods(usize::try_from(living).unwrap_or(0));
        Some(ScaleBack {
            key: (rules.namespace.clone(), uid.clone()),
            name: old.clone(),
            version: set.version,
            living,
            deployment: deployment_reference(rules, set, stuck.deployment)?,
            message: format!(
                "spec.replicas of the old ReplicaSet {old} was set from {spec_replicas} back to its {pods}: \
                 PodTransitionRule {rule} allows no disruption of these Pods now, and the Deployment controller does not \
                 delete the failing Pods of ReplicaSet {failing} while {old} has more available Pods than replicas"
            ),
            failing: backoff.is_failing(),
        })
    }

    /// Writes `spec.replicas` and records an Event. Returns whether the write succeeded.
    pub async fn send_scale_back(&self, context: &ControllerContext) -> bool {
        let (namespace, uid) = &self.key;
        let (version, living) = (self.version, self.living);
        let replica_set = (namespace.as_str(), self.name.as_str());
        let scale = replicasets::patch_replicas(&context.client, replica_set, uid, version, living);
        let scale = call_api_again("set the replicas of a ReplicaSet back", self.failing, scale);
        let written = scale.await.is_ok();
        if written {
            info!(
                %namespace,
                replicaset = self.name,
                replicas = living,
                "set the replicas of an old ReplicaSet back to its Pods"
            );
            context
                .events
                .record_event(&self.deployment, false, SCALED_BACK_REASON, &self.message);
        }
        written
    }
}
