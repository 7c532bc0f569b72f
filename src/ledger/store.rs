//! The interface that the ledger needs from the cluster: snapshots of rule objects, compare-and-swap, and a view of the
//! Pods.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;

use super::protocol::{BudgetView, ClaimOperation, Ledger, Purpose};
use crate::api::podtransitionrule::{self as api, UnknownFields};
use crate::domain::inplace::ContainerBefore;
use crate::domain::pending_disruption::PendingDisruption;
use crate::domain::rules::{ExpectedPods, RuleSet};

/// The UID of a Pod or a rule object.
pub type Uid = Arc<str>;

/// The expected Pods of a view.
pub fn expected_pods(view: &dyn BudgetView<Uid>) -> ExpectedPods {
    ExpectedPods {
        total: view.expected(),
        base: view.percentage_base(),
    }
}

/// The identity of a rule object. Keys are ordered by UID first: claims on several rules are taken in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleKey {
    /// UID of the rule object.
    pub uid: Uid,
    /// Namespace of the rule object.
    pub namespace: String,
    /// Name of the rule object.
    pub name: String,
}

/// The part of a claim that the protocol does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDetail {
    /// Name of the Pod.
    pub pod_name: String,
    /// When the claim was first given, by the clock of the replica that gave it. For people only.
    pub since: Timestamp,
    /// When the API server has given up the request at the latest, by the same clock. For people only: the leader
    /// measures the deadline on its own monotonic clock.
    pub until: Timestamp,
    /// For an in-place change: the digest of the admitted spec. For a deadline: its seconds. For another controller:
    /// its UID, or the UIDs of all controllers that the Pod was given in turn, separated by spaces.
    pub target: Option<String>,
    /// For an in-place change: the containers that the change restarts.
    pub containers: Vec<ContainerBefore>,
    /// What a newer build has stored with the claim, if anything.
    pub carried: Option<Arc<CarriedFields>>,
}

/// Stored fields of a claim that this build does not know. They are written back as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarriedFields {
    /// For [`ClaimOperation::Unknown`]: the claims of all such operations on the Pod.
    pub claims: Vec<api::Claim>,
    /// Unknown fields of the claim.
    pub fields: UnknownFields,
    /// Unknown fields of the claim's containers, by name of the container.
    pub containers: BTreeMap<String, UnknownFields>,
}

impl ClaimDetail {
    /// Merges the detail of an earlier claim for the same operation into this one. The claim keeps the time when it was
    /// first given, and still awaits the containers that the earlier change restarts. Of two deadlines, the later one
    /// is the target, because the Pod ends by either.
    ///
    /// `gives_way` says that another resize may replace the earlier one, for example the change back. This is so if the
    /// kubelet has not begun with the earlier resize, or has finished it while a lifecycle keeps the Pod off traffic.
    /// The kubelet may make either resize. Therefore only the resources in force prove the end of the new claim. The
    /// same holds if the earlier resize has no claim, for example because the rule was created later.
    pub fn merge_earlier_detail(
        mut self,
        earlier: Option<&ClaimDetail>,
        operation: ClaimOperation,
        gives_way: bool,
    ) -> ClaimDetail {
        if let Some(earlier) = earlier {
            self.since = earlier.since;
            self.carried = earlier.carried.clone();
            if operation == ClaimOperation::Deadline {
                self.target = later_deadline(earlier.target.as_ref(), self.target);
            }
            if operation == ClaimOperation::Reown {
                self.target = join_owner_uids(earlier.target.as_deref(), self.target);
            }
            let other_containers = earlier
                .containers
                .iter()
                .filter(|old| self.containers.iter().all(|new| new.name != old.name));
            let other_containers: Vec<_> = other_containers.cloned().collect();
            self.containers.extend(other_containers);
        }
        let former = earlier.map_or(&[][..], |earlier| &earlier.containers);
        let resizes = |containers: &[ContainerBefore]| containers.iter().all(|c| c.image.is_none());
        // The same change sent again does not replace itself: the first request may not have been stored yet.
        let is_another = earlier.is_none_or(|earlier| earlier.target != self.target);
        let stacks = gives_way && is_another && resizes(&self.containers) && resizes(former);
        let stays = former.iter().any(|c| c.by_resources);
        for container in &mut self.containers {
            container.by_resources |= stays || stacks;
        }
        self
    }
}

/// All UIDs of both claims, each once: the API server may store either request.
fn join_owner_uids(earlier: Option<&str>, new: Option<String>) -> Option<String> {
    let known = |uid: &str| earlier.is_some_and(|all| all.split(' ').any(|known| known == uid));
    let new = new.filter(|uid| !known(uid));
    let all: Vec<&str> = earlier.into_iter().chain(new.as_deref()).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// The deadline with more seconds.
fn later_deadline(first: Option<&String>, other: Option<String>) -> Option<String> {
    let seconds = |text: &String| text.parse::<u64>().unwrap_or(u64::MAX);
    first.into_iter().cloned().chain(other).max_by_key(seconds)
}

/// How many controllers one claim can name.
const MAX_CLAIM_OWNERS: usize = 8;

impl Purpose for ClaimDetail {
    fn may_replace(&self, earlier: &ClaimDetail, operation: ClaimOperation) -> bool {
        let resizes = !self.containers.is_empty()
            && self
                .containers
                .iter()
                .all(|c| c.by_resources && c.image.is_none());
        // The change back to the former controller must not wait until the Pod ends.
        let reowns = operation == ClaimOperation::Reown
            && (earlier.target.as_ref())
                .is_none_or(|all| all.split(' ').count() < MAX_CLAIM_OWNERS);
        operation == ClaimOperation::Deadline || self.target == earlier.target || resizes || reowns
    }
}

/// The claims of a rule object.
pub type Claims = Ledger<Uid, ClaimDetail>;

/// A rule object at one resourceVersion.
#[derive(Clone, Debug)]
pub struct RuleSnapshot {
    /// resourceVersion of the rule object. A write succeeds only if the object still has this version.
    pub version: u64,
    /// The compiled spec.
    pub rules: Arc<RuleSet>,
    /// The claims that count, including those of `forgotten`.
    pub claims: Arc<Claims>,
    /// resourceVersion at which the object held these claims, or was found without any valid claim. If it is smaller
    /// than [`RuleSnapshot::version`], the ledger has vanished since, and the disruptions that it admitted may still be
    /// under way. 0: nobody has seen a ledger.
    pub held: u64,
    /// The claims of a former ledger that the stored ledger does not have, because another writer began a new ledger
    /// without them. `claims` contains both.
    pub forgotten: Option<Arc<Claims>>,
    /// Why no decision is possible by the stored claims, with the remedy. Such a ledger is never written.
    pub fault: Option<Arc<str>>,
}

/// Why a write did not happen, or may not have happened.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another writer changed the object first.
    #[error("the rule was changed by somebody else")]
    Conflict,
    /// The rule object is gone: a consistent list does not contain it.
    #[error("the rule is gone")]
    Gone,
    /// The rule was deleted, and another rule was created under its name. This replica has not seen the new rule yet.
    #[error("the rule was replaced by another one of its name")]
    Replaced,
    /// The API server did not answer, or refused the request.
    #[error("{0}")]
    Unreachable(String),
    /// The API server reported success, but the object that it returned does not hold the claims. The text has the
    /// likely cause and the remedy.
    #[error("{0}")]
    NotStored(String),
}

/// Access to rule objects and Pods, for decisions by the ledger.
pub trait LedgerStore: Send + Sync + 'static {
    /// The rule object from the cache.
    fn cached_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot>;
    /// Whether the cache has another rule object under the name of `key`.
    fn is_replaced(&self, key: &RuleKey) -> bool;
    /// The rule object from etcd. `None` if the object is being deleted, or if a list has proven that no object has its
    /// name.
    fn live_snapshot(
        &self,
        key: &RuleKey,
    ) -> impl Future<Output = Result<Option<RuleSnapshot>, WriteError>> + Send;
    /// Writes the claims if the object still has the version `base.version`. Returns the written object, which holds
    /// exactly these claims.
    fn compare_and_swap(
        &self,
        key: &RuleKey,
        base: &RuleSnapshot,
        claims: &Claims,
    ) -> impl Future<Output = Result<RuleSnapshot, WriteError>> + Send;
    /// Checks by a dry run, which writes nothing, whether the API server would accept these claims and keep them.
    fn dry_run_swap(
        &self,
        key: &RuleKey,
        claims: &Claims,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;
    /// The largest resourceVersion that the Pod watch has delivered.
    fn position(&self) -> u64;
    /// Whether the Pod watch is connected, so that the cache is about as new as the cluster.
    fn is_following(&self) -> bool;
    /// Returns when the Pod watch is connected.
    fn wait_followed(&self) -> impl Future<Output = ()> + Send;
    /// Why the cache can no longer be used, if [`LedgerStore::mark_history_lost`] was called.
    fn history_lost(&self) -> Option<Arc<str>>;
    /// Records that etcd was restored from a backup: the cache has seen the Pods at `known`, but etcd is at `found`,
    /// which is older. From then on [`LedgerStore::history_lost`] returns the reason.
    fn mark_history_lost(&self, known: u64, found: u64);
    /// Calls `read` with a view of the Pods that `rules` selects, all at one position of the cache.
    fn with_view<R>(&self, rules: &RuleSet, read: impl FnOnce(&dyn BudgetView<Uid>) -> R) -> R;
    /// The present position of the Pods in etcd, by a consistent read.
    fn read_present_position(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<u64, WriteError>> + Send;
    /// Returns when the Pod cache has reached this position.
    fn wait_position(&self, position: u64) -> impl Future<Output = ()> + Send;
    /// Names of up to `most` unavailable Pods that `rules` selects, each with the time since when it is unavailable,
    /// longest first.
    fn unavailable_pods(&self, rules: &RuleSet, most: usize) -> Vec<(String, Option<Timestamp>)>;
    /// Names of Pods that `rules` selects and that serve, but do not count as available, each with the reason.
    fn pending_disruptions(&self, rules: &RuleSet) -> Vec<(String, PendingDisruption)>;
    /// Name of a Pod that `rules` selects and that does not count as available, because the cache has only its
    /// metadata.
    fn unreadable_pod(&self, rules: &RuleSet) -> Option<String>;
    /// For an available Pod: whether the kubelet has deferred its last resize. `None` if the Pod is not available or
    /// not known.
    fn serves_deferred(&self, rules: &RuleSet, pod: &Uid) -> Option<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(controllers: Option<&str>) -> ClaimDetail {
        ClaimDetail {
            pod_name: "web-1".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::UNIX_EPOCH,
            target: controllers.map(str::to_owned),
            containers: Vec::new(),
            carried: None,
        }
    }

    #[test]
    fn claim_records_all_new_controllers_of_pod() {
        for (earlier, new, wanted) in [
            (Some("a"), None, Some("a")),
            (Some("a"), Some("a"), Some("a")),
            (Some("a"), Some("b"), Some("a b")),
            (Some("a b"), Some("b"), Some("a b")),
            (None, Some("b"), Some("b")),
            (None, None, None),
        ] {
            let (earlier, new) = (given(earlier), given(new));
            assert!(new.may_replace(&earlier, ClaimOperation::Reown));
            let both = new.merge_earlier_detail(Some(&earlier), ClaimOperation::Reown, false);
            assert_eq!(both.target.as_deref(), wanted);
        }
        let many = (0..MAX_CLAIM_OWNERS).map(|n| n.to_string());
        let many = given(Some(&many.collect::<Vec<_>>().join(" ")));
        assert!(!given(Some("x")).may_replace(&many, ClaimOperation::Reown));
    }
}
