//! Rollouts of Deployments, StatefulSets and DaemonSets that cannot end under a rule object: the texts of the condition
//! `RolloutsHeld`, and the warning when a user applies the object. `cluster/held_rollouts.rs` finds the rollouts.

use super::{AND_OTHERS, ConditionFinding, join_names, new_finding};
use crate::domain::rules::RuleSet;

/// Why a rollout can't end under a rule object. All causes except [`RolloutHeldCause::Leaves`] concern only
/// Deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutHeldCause {
    /// Strategy `Recreate` deletes every Pod before it creates a new one, and the rules do not let all Pods go.
    Recreates,
    /// The template creates Pods that the rules do not hold, while all Pods of the owner count as expected.
    Leaves,
    /// The rules hold Pods of an old ReplicaSet, so that it has more ready Pods than its `spec.replicas`. In this case
    /// the Deployment controller neither deletes failing Pods of other old ReplicaSets nor creates new Pods.
    StuckScaleDown,
}

impl RolloutHeldCause {
    /// What happens to the Deployment of this name, and the remedy; see [`Self::describe_owners`].
    pub fn describe_deployment(self, deployment: &str, rule: &str) -> String {
        self.describe_owners(&format!("Deployment {deployment}"), rule)
    }

    /// What happens to the owners, and the remedy, as a sentence without a semicolon. It begins with `owners` and a
    /// colon. `owners` lists each owner as `Kind name`. `rule` is the name of the rule object.
    pub fn describe_owners(self, owners: &str, rule: &str) -> String {
        match self {
            RolloutHeldCause::Recreates => format!(
                "{owners}: strategy Recreate deletes every Pod before it creates a new one, and \
                 PodTransitionRule {rule} does not let all Pods go: the rollout waits. Use strategy RollingUpdate with maxSurge \
                 of at least 1, or relax the rule"
            ),
            RolloutHeldCause::Leaves => format!(
                "{owners}: the template makes Pods that PodTransitionRule {rule} does not hold, while all Pods of their owner \
                 count as expected there: the rule lets no more of the old Pods go, and the rollout waits. Delete or relax the \
                 rule, or undo the change of the template's labels"
            ),
            RolloutHeldCause::StuckScaleDown => format!(
                "{owners}: an old ReplicaSet has more Pods than its number, because PodTransitionRule {rule} lets none \
                 of them go. Until it does, the Deployment controller does not delete the failing Pods of another old \
                 ReplicaSet, and the rollout waits. The server sets the number back a few times. If the rollout still \
                 waits, scale the ReplicaSet of the failing Pods to 0, or relax the rule"
            ),
        }
    }
}

/// The sentence about an owner in the message of a condition that is True. `None` if the message does not name the
/// owner. `owner` is `Kind name`.
pub fn owner_sentence<'a>(message: &'a str, owner: &str) -> Option<&'a str> {
    message.split("; ").find(|sentence| {
        let owners = sentence.split_once(": ").map_or("", |(owners, _)| owners);
        let owners = owners.trim_end_matches(AND_OTHERS);
        owners.split(", ").any(|name| name == owner)
    })
}

/// An owner whose rollout can't end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRollout {
    pub kind: &'static str,
    pub name: String,
    pub cause: RolloutHeldCause,
    /// Whether the rollout is held now. If false, the next rollout will be held.
    pub held_now: bool,
}

/// The condition `RolloutsHeld`. The condition is True while a rollout is held, and False with the reason
/// `RecreateUnderRule` if the next rollout of a Deployment will be held. `None` if neither is the case.
pub fn rollouts_held_condition(
    rules: &RuleSet,
    rollouts: &[HeldRollout],
) -> Option<ConditionFinding> {
    let rollouts_by = |cause: RolloutHeldCause, held_now: bool| {
        rollouts
            .iter()
            .filter(move |r| r.cause == cause && r.held_now == held_now)
    };
    let causes = [
        (RolloutHeldCause::Recreates, "RecreateHeld"),
        (RolloutHeldCause::Leaves, "TemplateLeavesRule"),
        (RolloutHeldCause::StuckScaleDown, "OldReplicaSetHeld"),
    ];
    let texts = causes.map(|(cause, reason)| {
        let owners = rollouts_by(cause, true).map(|r| format!("{} {}", r.kind, r.name));
        let owners = join_names(owners.collect())?;
        Some((reason, cause.describe_owners(&owners, &rules.name)))
    });
    let mut texts = texts.into_iter().flatten();
    if let Some((reason, first)) = texts.next() {
        let rollouts: Vec<_> = [first]
            .into_iter()
            .chain(texts.map(|(_, text)| text))
            .collect();
        return Some(new_finding("True", reason, rollouts.join("; ")));
    }
    let deployments = rollouts_by(RolloutHeldCause::Recreates, false).map(|r| r.name.clone());
    let deployments = join_names(deployments.collect())?;
    Some(new_finding(
        "False",
        "RecreateUnderRule",
        format!(
            "no rollout is held now; {}",
            describe_next_rollout(&deployments)
        ),
    ))
}

/// A warning for a user who applies a rule object that covers Deployments with strategy `Recreate`. `None` if there are
/// none.
pub fn recreate_warning(rules: &RuleSet, deployments: Vec<String>) -> Option<String> {
    let deployments = join_names(deployments)?;
    Some(format!(
        "PodTransitionRule {}: {}",
        rules.name,
        describe_next_rollout(&deployments)
    ))
}

fn describe_next_rollout(deployments: &str) -> String {
    format!(
        "the next rollout of Deployment {deployments} will delete as many Pods as the budget allows and then wait: strategy \
         Recreate deletes every Pod before it creates a new one. Use strategy RollingUpdate with maxSurge of at least 1"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::podtransitionrule::PodTransitionRule;

    fn rollout(deployment: &str, cause: RolloutHeldCause, held_now: bool) -> HeldRollout {
        HeldRollout {
            kind: "Deployment",
            name: deployment.to_owned(),
            cause,
            held_now,
        }
    }

    fn condition_of(rollouts: &[HeldRollout]) -> Option<(&'static str, &'static str, String)> {
        let rules = RuleSet::compile(&PodTransitionRule::new("web", Default::default()));
        rollouts_held_condition(&rules, rollouts)
            .map(|finding| (finding.status, finding.reason, finding.message))
    }

    #[test]
    fn no_condition_without_held_deployments() {
        assert_eq!(condition_of(&[]), None);
        let rules = RuleSet::compile(&PodTransitionRule::new("web", Default::default()));
        assert_eq!(recreate_warning(&rules, Vec::new()), None);
    }

    #[test]
    fn held_rollout_is_named_with_the_remedy() {
        let rollouts = [
            rollout("later", RolloutHeldCause::Recreates, false),
            rollout("api", RolloutHeldCause::Leaves, true),
        ];
        let (status, reason, message) = condition_of(&rollouts).unwrap();
        assert_eq!((status, reason), ("True", "TemplateLeavesRule"));
        assert!(
            message.contains("Deployment api") && message.contains("PodTransitionRule web"),
            "{message}"
        );
        assert!(!message.contains("later"), "{message}");
        let both = [
            rollouts[1].clone(),
            rollout("web", RolloutHeldCause::Recreates, true),
        ];
        let (_, reason, message) = condition_of(&both).unwrap();
        assert_eq!(reason, "RecreateHeld");
        assert!(
            message.contains("Deployment api") && message.contains("Deployment web"),
            "{message}"
        );
    }

    #[test]
    fn owners_of_other_kinds_are_named_by_kind() {
        let daemons = HeldRollout {
            kind: "DaemonSet",
            ..rollout("agent", RolloutHeldCause::Leaves, true)
        };
        let rollouts = [
            rollout("web", RolloutHeldCause::Recreates, true),
            rollout("api", RolloutHeldCause::Leaves, true),
            daemons,
        ];
        let (_, _, message) = condition_of(&rollouts).unwrap();
        let sentence_about = |owner: &str| owner_sentence(&message, owner);
        let both = sentence_about("DaemonSet agent").unwrap();
        assert!(
            both.starts_with("DaemonSet agent, Deployment api: the template makes Pods"),
            "{both}"
        );
        assert_eq!(sentence_about("Deployment api"), Some(both));
        assert!(
            sentence_about("Deployment web")
                .unwrap()
                .contains("Recreate")
        );
        assert_eq!(sentence_about("Deployment agent"), None);
        let many: Vec<_> = (0..4)
            .map(|n| rollout(&format!("d{n}"), RolloutHeldCause::Leaves, true))
            .collect();
        let (_, _, message) = condition_of(&many).unwrap();
        assert!(
            owner_sentence(&message, "Deployment d2").is_some(),
            "{message}"
        );
    }

    #[test]
    fn recreate_deployments_are_reported_before_their_rollout() {
        let many: Vec<_> = (0..5)
            .map(|n| rollout(&format!("d{n}"), RolloutHeldCause::Recreates, false))
            .collect();
        let (status, reason, message) = condition_of(&many).unwrap();
        assert_eq!((status, reason), ("False", "RecreateUnderRule"));
        assert!(
            message.contains("d0, d1, d2 and others") && message.contains("RollingUpdate"),
            "{message}"
        );
    }
}
