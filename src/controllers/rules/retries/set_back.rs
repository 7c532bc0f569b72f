//! The number of an old ReplicaSet that is set back to its Pods.

use k8s_openapi::api::core::v1::ObjectReference;
use tracing::info;

use super::super::rollouts::Overhang;
use super::pace::Pace;
use super::{Key, about};
use crate::cluster::replicasets;
use crate::cluster::sizes::Workload;
use crate::controllers::{Context, write_again};
use crate::domain::rules::RuleSet;
use crate::domain::wording;
use crate::ledger::store::Uid;

/// Reason of the Event on a Deployment whose old ReplicaSet got its number back.
const SET_BACK: &str = "ReplicaSetScaledBack";

/// A ReplicaSet whose `spec.replicas` is to become the number of its living Pods.
pub struct SetBack {
    /// The ReplicaSet.
    pub key: Key,
    name: String,
    version: u64,
    living: u32,
    /// The Deployment.
    about: ObjectReference,
    message: String,
    /// Whether the attempt before failed.
    failing: bool,
}

impl SetBack {
    /// A ReplicaSet, with its UID, whose turn it is by `pace`.
    pub fn of(
        rules: &RuleSet,
        (uid, set): (&Uid, &Workload),
        overhang: &Overhang<'_>,
        pace: &Pace,
    ) -> Option<SetBack> {
        let (old, failing) = (&set.name, &overhang.failing.name);
        let (wanted, living) = (overhang.wanted, overhang.living);
        let rule = &rules.name;
        let pods = wording::pods(usize::try_from(living).unwrap_or(0));
        Some(SetBack {
            key: (rules.namespace.clone(), uid.clone()),
            name: old.clone(),
            version: set.version,
            living,
            about: about(rules, set, overhang.deployment)?,
            message: format!(
                "the replicas of the old ReplicaSet {old} were set from {wanted} back to its {pods}: \
                 PodTransitionRule {rule} lets none of them go now, and the Deployment controller does not take away the \
                 failing Pods of ReplicaSet {failing} while {old} has more available Pods than replicas"
            ),
            failing: pace.is_failing(),
        })
    }

    /// Sets the number and tells of it by an Event. Returns whether the number was written.
    pub async fn send(&self, context: &Context) -> bool {
        let (namespace, uid) = &self.key;
        let (version, living) = (self.version, self.living);
        let place = (namespace.as_str(), self.name.as_str());
        let scale = replicasets::scale(&context.client, place, uid, version, living);
        let scale = write_again("set the replicas of a ReplicaSet back", self.failing, scale);
        let written = scale.await.is_ok();
        if written {
            info!(
                %namespace,
                replicaset = self.name,
                replicas = living,
                "set the replicas of an old ReplicaSet back to its Pods"
            );
            let (about, message) = (&self.about, &self.message);
            context.events.record(about, false, SET_BACK, message);
        }
        written
    }
}
