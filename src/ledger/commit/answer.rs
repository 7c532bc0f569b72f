//! What a rule object is asked, and what it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::domain::rules::budget::BindingMinimum;
use crate::ledger::protocol::{ClaimGrant, Operation};
use crate::ledger::store::{ClaimDetail, RuleKey, Uid};

/// A disruption of a Pod that one rule object is asked about.
#[derive(Clone, Debug)]
pub struct Disruption {
    /// The Pod as the request has it.
    pub pod: Arc<Pod>,
    /// What is to be done to it.
    pub operation: Operation,
    /// Kept in the claim.
    pub detail: ClaimDetail,
    /// Names of rule objects whose budget does not hold this one: whoever asks may bypass them. It is claimed all the same.
    pub bypassed_rules: BTreeSet<String>,
    /// Generations of all rule objects, by name, at the moment when those that cover the Pod were looked up. What one of them says
    /// that is gone, or has another one now, does not settle which objects hold the Pod: whoever has changed it may have made
    /// another one before. Empty: whoever asks does not need to know.
    pub generations: BTreeMap<String, i64>,
}

impl Disruption {
    /// Whether what these rules say settles which objects hold the Pod, see [`Disruption::generations`].
    pub(super) fn is_generation_known(&self, rules: &RuleSet) -> bool {
        self.generations.is_empty() || self.generations.get(&rules.name) == Some(&rules.generation)
    }

    /// Refuses the answer of an object that is gone, as [`Disruption::knows`] would.
    pub(super) fn reject_gone_object(
        &self,
        key: &RuleKey,
        answer: &ClaimAnswer,
    ) -> Result<(), Denied> {
        match answer {
            ClaimAnswer::Gone if !self.generations.is_empty() => {
                Err(Denied::for_rule_object(key, DenyReason::Changed))
            }
            _ => Ok(()),
        }
    }
}

/// Evidence for a release, from a view at `position`.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The Pod.
    pub pod: Uid,
    /// The operation of the claim.
    pub operation: Operation,
    /// The attempt that was looked at.
    pub attempt: u64,
    /// The Pod event that it rests on (0: none).
    pub based_on: u64,
    /// Position of the cache it was seen in.
    pub position: u64,
    /// Whether nothing came of the claim.
    pub lapsed: bool,
}

/// The answer of one rule object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// No availability rule of the object applies to the Pod: it holds nothing.
    NotHeld,
    /// The object is gone.
    Gone,
    /// The claim is written.
    Granted(ClaimGrant),
}

/// Why a disruption is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Name of the rule object.
    pub object: String,
    /// Name of the rule in it; empty when the reason is not a single rule's.
    pub rule: String,
    /// The reason.
    pub why: DenyReason,
}

impl Denied {
    /// By a rule that is not known, or by none in particular.
    pub fn without_rule(why: DenyReason) -> Denied {
        Denied {
            object: "(unknown)".to_owned(),
            rule: String::new(),
            why,
        }
    }

    /// Because the API server could not be asked.
    pub fn unreachable(why: impl Into<String>) -> Denied {
        Denied::without_rule(DenyReason::Unreachable(why.into()))
    }

    /// By the object as a whole.
    pub(super) fn for_rule_object(key: &RuleKey, why: DenyReason) -> Denied {
        Denied {
            object: key.name.clone(),
            rule: String::new(),
            why,
        }
    }
}

/// An available Pod with an in-place change that the kubelet has yet to restart it for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedRestart {
    /// Name of the Pod.
    pub pod: String,
    /// Whether the change is a resize that the kubelet has deferred.
    pub deferred: bool,
}

/// What keeps the places of a budget taken although it is not an unavailable Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetBlockers {
    /// A Pod that keeps its place until its `activeDeadlineSeconds` is over, if there is one.
    pub deadline: Option<String>,
    /// A Pod that is available and keeps its place until the kubelet restarts it, if there is one.
    pub restart: Option<AwaitedRestart>,
    /// A Pod that counts as not available because the cache has its metadata alone, if there is one.
    pub unreadable: Option<String>,
    /// Why the budget stays used up, if the rollout of the owner can't end under the rule: a sentence with the remedy.
    pub rollout: Option<String>,
}

/// Reasons to hold a disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenyReason {
    /// The budget is used up: `used` of `limit` Pods are unavailable or about to be, of `expected`.
    Full {
        /// Unavailable or claimed.
        used: u32,
        /// How many may be.
        limit: u32,
        /// How many Pods there should be.
        expected: u32,
        /// Set if `minAvailableValue` gives the limit.
        minimum: Option<BindingMinimum>,
        /// Up to three Pods that use the budget up, the longest first, and since when.
        holders: Vec<(String, Option<jiff::Timestamp>)>,
        /// What keeps places taken for long.
        lasting: Box<BudgetBlockers>,
    },
    /// The Pod is not available, and the rule lets such Pods go only while enough others are.
    Unhealthy {
        /// How many others are available.
        available: u32,
        /// How many must be.
        desired: u32,
        /// How many Pods there should be.
        expected: u32,
    },
    /// The object has been changed or deleted while the request waited for it: others may hold the Pod now.
    Changed,
    /// The rule can't be evaluated: the field and the remedy.
    Broken(String),
    /// The ledger in the rule's status can't be read, or is of a newer format: why, and the remedy.
    Unusable(String),
    /// This replica's cache has not caught up with the last release.
    Behind,
    /// An owner of Pods can't be read, so that it is not known how many Pods there should be: which one, why, and what
    /// helps.
    UnknownOwner(String),
    /// An owner of Pods does not say how many there should be, although it could. Waiting does not help.
    Unset {
        /// Kind and name of the owner.
        owner: String,
        /// Path of the field to be set, such as `spec.replicas`.
        field: String,
    },
    /// The Pod is not stored as the request shows it.
    Unconfirmed,
    /// The API server can't be reached, or refuses.
    Unreachable(String),
    /// Containers of the Pod have yet to restart for an earlier in-place change.
    UnderWay,
    /// An earlier request for the same Pod and operation has the place and had no effect. The place is given back before
    /// a new one is given.
    Closing {
        /// When about, by the clock of the replica that admitted the last request.
        until: jiff::Timestamp,
    },
    /// Earlier requests for the same Pod and operation held a place for long and had no effect. The one place that is left is
    /// for others, for a while.
    Resting {
        /// How long about.
        left: Duration,
    },
    /// Too many writers, or too many waiting.
    Contended,
    /// More rule objects with an availability rule cover the Pod than may.
    Overlapping {
        /// How many there are.
        objects: usize,
        /// How many may be.
        most: usize,
        /// Names of some of them.
        names: Vec<String>,
    },
    /// The claims of the rule object take as many bytes as its status may have for them.
    Crowded {
        /// How many there are.
        claims: usize,
    },
}
