//! The requests to a rule object for a claim, and its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::domain::rules::budget::BindingMinimum;
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::{ClaimDetail, RuleKey, Uid};

/// A disruption of a Pod, for which one rule object is asked for a claim.
#[derive(Clone, Debug)]
pub struct Disruption {
    /// The Pod as the request shows it.
    pub pod: Arc<Pod>,
    /// The kind of the disruption.
    pub operation: ClaimOperation,
    /// The detail that the claim keeps.
    pub detail: ClaimDetail,
    /// Names of rule objects whose budget does not hold this disruption, such as bypassed rules. The claim is written
    /// nevertheless.
    pub bypassed_rules: BTreeSet<String>,
    /// The generation of every rule object, by name, at the time when the rules that cover the Pod were looked up. If
    /// one of these objects is gone or has another generation now, its answer does not settle which objects hold the
    /// Pod: whoever changed it may have created another rule before. Empty if the caller does not need this check.
    pub generations: BTreeMap<String, i64>,
}

impl Disruption {
    /// Whether the answer of these rules settles which objects hold the Pod, see [`Disruption::generations`].
    pub(super) fn is_generation_known(&self, rules: &RuleSet) -> bool {
        self.generations.is_empty() || self.generations.get(&rules.name) == Some(&rules.generation)
    }

    /// Denies if the object is gone and the caller asked for the check of [`Disruption::is_generation_known`].
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

/// Evidence for the release of a claim.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// UID of the Pod.
    pub pod: Uid,
    /// The operation of the claim.
    pub operation: ClaimOperation,
    /// The attempt number of the claim when the evidence was found.
    pub attempt: u64,
    /// resourceVersion of the Pod event that is the evidence. 0: no event.
    pub based_on: u64,
    /// Position of the cache in which the evidence was found.
    pub position: u64,
    /// Whether the claim had no effect.
    pub lapsed: bool,
}

/// The answer of one rule object that does not deny.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// No availability rule of the object applies to the Pod.
    NotHeld,
    /// The rule object is gone.
    Gone,
    /// The claim is written.
    Granted(ClaimGrant),
}

/// The denial of a disruption, with the rule and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Name of the rule object. Empty if the reason does not belong to a single object, or if it is not known which
    /// objects hold the Pod.
    pub object: String,
    /// Name of the rule in the object. Empty if the reason does not belong to a single rule.
    pub rule: String,
    /// Why the disruption is denied.
    pub why: DenyReason,
}

impl Denied {
    /// A denial by an unknown rule, or by no particular rule.
    pub fn without_rule(why: DenyReason) -> Denied {
        Denied {
            object: String::new(),
            rule: String::new(),
            why,
        }
    }

    /// A denial because the API server could not be asked.
    pub fn unreachable(why: impl Into<String>) -> Denied {
        Denied::without_rule(DenyReason::Unreachable(why.into()))
    }

    /// A denial by the rule object as a whole.
    pub(super) fn for_rule_object(key: &RuleKey, why: DenyReason) -> Denied {
        Denied {
            object: key.name.clone(),
            rule: String::new(),
            why,
        }
    }
}

/// An available Pod with an in-place change for which the kubelet has not restarted it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedRestart {
    /// Name of the Pod.
    pub pod: String,
    /// Whether the change is a resize that the kubelet has deferred.
    pub deferred: bool,
}

/// Causes, other than unavailable Pods, that keep a budget used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetBlockers {
    /// A Pod that keeps its claim until its `activeDeadlineSeconds` is over, if there is one.
    pub deadline: Option<String>,
    /// An available Pod that keeps its claim until the kubelet restarts it, if there is one.
    pub restart: Option<AwaitedRestart>,
    /// A Pod that does not count as available because the cache has only its metadata, if there is one.
    pub unreadable: Option<String>,
    /// Why the rollout of the owner cannot end under the rule, so that the budget stays used up: a sentence with the
    /// remedy.
    pub rollout: Option<String>,
}

/// The reasons to deny a disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenyReason {
    /// The budget is used up: of `expected` Pods, `used` are unavailable or have a claim, and `limit` may be.
    Full {
        /// How many Pods are unavailable or have a claim.
        used: u32,
        /// How many Pods may be unavailable.
        limit: u32,
        /// How many Pods there should be.
        expected: u32,
        /// Set if the limit follows from `minAvailableValue`.
        minimum: Option<BindingMinimum>,
        /// Up to three Pods that use up the budget, the longest first, and since when.
        holders: Vec<(String, Option<jiff::Timestamp>)>,
        /// Causes that keep the budget used for a long time.
        lasting: Box<BudgetBlockers>,
    },
    /// The Pod is not available, and the rule lets such Pods go only while enough other Pods are available.
    Unhealthy {
        /// How many other Pods are available.
        available: u32,
        /// How many Pods must be available.
        desired: u32,
        /// How many Pods there should be.
        expected: u32,
    },
    /// The rule object was changed or deleted while the request waited for it. Other rule objects may hold the Pod now.
    Changed,
    /// The rule cannot be evaluated: the field, and the remedy.
    Broken(String),
    /// The ledger in the rule's status cannot be read, or has a newer format: why, and the remedy.
    Unusable(String),
    /// This replica's cache has not caught up with the last release.
    Behind,
    /// An owner of Pods cannot be read, so it is unknown how many Pods there should be: the owner, the cause, and the
    /// remedy.
    UnknownOwner(String),
    /// An owner of Pods has a field for the number of its Pods, and the field is not set. Waiting does not help.
    Unset {
        /// Kind and name of the owner.
        owner: String,
        /// Path of the field to set, such as `spec.replicas`.
        field: String,
    },
    /// The stored Pod is not known to be as the request shows it.
    Unconfirmed,
    /// The API server cannot be reached, or refuses the request.
    Unreachable(String),
    /// Containers of the Pod have not restarted yet for an earlier in-place change.
    UnderWay,
    /// The claim of an earlier request for the same Pod and operation had no effect and is closing. It must end before
    /// a new claim is given.
    Closing {
        /// When the claim ends, approximately, by the clock of the replica that admitted the last request.
        until: jiff::Timestamp,
    },
    /// Earlier requests for the same Pod and operation held a claim for a long time without an effect. For a while, the
    /// last of the headroom is left to other requests.
    Resting {
        /// How much longer the request rests, approximately.
        left: Duration,
    },
    /// Too many writers of the rule object, or too many commands in the commit queue.
    Contended,
    /// More rule objects with an availability rule cover the Pod than are allowed.
    Overlapping {
        /// How many rule objects cover the Pod.
        objects: usize,
        /// How many are allowed.
        most: usize,
        /// Names of some of them.
        names: Vec<String>,
    },
    /// The claims of the rule object take up all bytes that its status may use for claims.
    Crowded {
        /// How many claims there are.
        claims: usize,
    },
}
