//! What the ledger needs from the cluster: snapshots of rule objects, compare-and-swap, and a view of the Pods.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;

use super::protocol::{BudgetView, Ledger, Operation, Purpose};
use crate::api::podtransitionrule::{self as api, UnknownFields};
use crate::domain::announced_disruption::AnnouncedDisruption;
use crate::domain::inplace::ContainerBefore;
use crate::domain::rules::RuleSet;

/// A Pod's UID.
pub type Uid = Arc<str>;

/// Names a rule object. Ordered by UID: the order in which several rules are claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleKey {
    /// UID.
    pub uid: Uid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What a claim says besides what the protocol reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDetail {
    /// Name of the Pod.
    pub pod_name: String,
    /// When the claim was given first, by the clock of the replica that gave it. For people only.
    pub since: Timestamp,
    /// When the API server has surely given the request up, by the same clock. For people only: the deadline itself is
    /// measured by the leader on its own monotonic clock.
    pub until: Timestamp,
    /// For an in-place change: digest of the admitted spec. For a deadline: its seconds. For another controller: its UID, or
    /// those of all that the Pod was given in turn, with spaces between.
    pub target: Option<String>,
    /// For an in-place change: the containers that it restarts.
    pub containers: Vec<ContainerBefore>,
    /// What a newer build has stored with the claim, if it has.
    pub carried: Option<Arc<CarriedFields>>,
}

/// What this build reads in a claim and does not know. It is written back as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarriedFields {
    /// Of [`Operation::Unknown`]: the claims of all such operations on the Pod.
    pub claims: Vec<api::Claim>,
    /// Fields of the claim.
    pub fields: UnknownFields,
    /// Fields of its containers, by name of the container.
    pub containers: BTreeMap<String, UnknownFields>,
}

impl ClaimDetail {
    /// This detail for a claim that may be written again: it is held since the first time, containers that the earlier
    /// change restarts are still awaited, and of two deadlines the later one is the target: the Pod ends by either.
    ///
    /// `gives_way` says that the kubelet has not begun with the earlier change, a resize, or is done with it while a lifecycle keeps the
    /// Pod off traffic. Another resize may then take its place, such as the change back. Whichever of the two the kubelet makes, the
    /// resources in force tell the end. So they do where there is no claim for the change before, as of a rule that was made since.
    pub fn merge_earlier_detail(
        mut self,
        earlier: Option<&ClaimDetail>,
        operation: Operation,
        gives_way: bool,
    ) -> ClaimDetail {
        if let Some(earlier) = earlier {
            self.since = earlier.since;
            self.carried = earlier.carried.clone();
            if operation == Operation::Deadline {
                self.target = later_deadline(earlier.target.as_ref(), self.target);
            }
            if operation == Operation::Reown {
                self.target = join_owner_uids(earlier.target.as_deref(), self.target);
            }
            let kept = earlier
                .containers
                .iter()
                .filter(|old| self.containers.iter().all(|new| new.name != old.name));
            let kept: Vec<_> = kept.cloned().collect();
            self.containers.extend(kept);
        }
        let former = earlier.map_or(&[][..], |earlier| &earlier.containers);
        let resizes = |containers: &[ContainerBefore]| containers.iter().all(|c| c.image.is_none());
        // The same change, which may not have been written yet, takes no place of itself.
        let is_another = earlier.is_none_or(|earlier| earlier.target != self.target);
        let stacks = gives_way && is_another && resizes(&self.containers) && resizes(former);
        let stays = former.iter().any(|c| c.by_resources);
        for container in &mut self.containers {
            container.by_resources |= stays || stacks;
        }
        self
    }
}

/// All UIDs of both, each once: either request may be the one that is stored.
fn join_owner_uids(earlier: Option<&str>, new: Option<String>) -> Option<String> {
    let known = |uid: &str| earlier.is_some_and(|all| all.split(' ').any(|one| one == uid));
    let new = new.filter(|uid| !known(uid));
    let all: Vec<&str> = earlier.into_iter().chain(new.as_deref()).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// The deadline of more seconds.
fn later_deadline(one: Option<&String>, other: Option<String>) -> Option<String> {
    let seconds = |text: &String| text.parse::<u64>().unwrap_or(u64::MAX);
    one.into_iter().cloned().chain(other).max_by_key(seconds)
}

/// So many controllers one claim tells of.
const MAX_CLAIM_OWNERS: usize = 8;

impl Purpose for ClaimDetail {
    fn may_replace(&self, earlier: &ClaimDetail, operation: Operation) -> bool {
        let resizes = !self.containers.is_empty()
            && self
                .containers
                .iter()
                .all(|c| c.by_resources && c.image.is_none());
        // The change back to the former controller must not have to wait for the end of the Pod.
        let reowns = operation == Operation::Reown
            && (earlier.target.as_ref())
                .is_none_or(|all| all.split(' ').count() < MAX_CLAIM_OWNERS);
        operation == Operation::Deadline || self.target == earlier.target || resizes || reowns
    }
}

/// The claims of a rule object.
pub type Claims = Ledger<Uid, ClaimDetail>;

/// A rule object at one resourceVersion.
#[derive(Clone, Debug)]
pub struct RuleSnapshot {
    /// resourceVersion of the rule object: what a write is conditional on.
    pub version: u64,
    /// The spec, compiled.
    pub rules: Arc<RuleSet>,
    /// The claims.
    pub claims: Arc<Claims>,
    /// resourceVersion at which the object held these claims, or was found without any that count. Where that is before
    /// [`Snapshot::version`], the ledger has vanished since, and what it admitted may still be under way. 0: nobody has seen
    /// a ledger.
    pub held: u64,
    /// The claims of a former ledger that the stored one does not know: somebody began it without them. `claims` are both.
    pub forgotten: Option<Arc<Claims>>,
    /// Why nothing can be decided by the claims as they are stored, with the remedy. Nothing is written to such a ledger.
    pub fault: Option<Arc<str>>,
}

/// Why a write did not happen, or is not known to have happened.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote first.
    #[error("the rule was changed by somebody else")]
    Conflict,
    /// The rule object is gone: a consistent list does not have it.
    #[error("the rule is gone")]
    Gone,
    /// The rule was deleted, and another one was made under its name. This replica has yet to see that.
    #[error("the rule was replaced by another one of its name")]
    Replaced,
    /// The API server did not answer, or refused.
    #[error("{0}")]
    Unreachable(String),
    /// The API server answered that it has written the claims, and the object that it returned does not hold them: why that
    /// may be, and the remedy.
    #[error("{0}")]
    NotStored(String),
}

/// Access to rule objects and Pods.
pub trait LedgerStore: Send + Sync + 'static {
    /// The rule object as the cache has it.
    fn cached_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot>;
    /// Whether the cache has another rule object under the name of this one.
    fn is_replaced(&self, key: &RuleKey) -> bool;
    /// The rule object as etcd has it; `None` when nothing has its name, which a list has proven, or it is being deleted.
    fn live_snapshot(
        &self,
        key: &RuleKey,
    ) -> impl Future<Output = Result<Option<RuleSnapshot>, WriteError>> + Send;
    /// Writes the claims if the object is still at `base.version`; returns the object as written, which holds exactly these
    /// claims.
    fn compare_and_swap(
        &self,
        key: &RuleKey,
        base: &RuleSnapshot,
        claims: &Claims,
    ) -> impl Future<Output = Result<RuleSnapshot, WriteError>> + Send;
    /// Whether the API server would let these claims be written, and keep them: asked by a dry run, which writes nothing.
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
    /// Why the cache is of no use any more, if so: see [`Store::set_back`].
    fn history_lost(&self) -> Option<Arc<str>>;
    /// The cache has seen the Pods at `known`, and etcd is at `found`, which is before that: it was restored from a backup.
    /// From here on [`Store::lost`] says so.
    fn mark_history_lost(&self, known: u64, found: u64);
    /// Looks at the Pods that `rules` selects, at one position of the cache.
    fn with_view<R>(&self, rules: &RuleSet, look: impl FnOnce(&dyn BudgetView<Uid>) -> R) -> R;
    /// The position of the Pods in etcd at this moment, by a consistent read.
    fn read_present_position(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<u64, WriteError>> + Send;
    /// Returns when the Pod cache has reached this position.
    fn wait_position(&self, position: u64) -> impl Future<Output = ()> + Send;
    /// Names of up to `most` Pods that `rules` selects and that are unavailable, longest first, and since when.
    fn unavailable_pods(&self, rules: &RuleSet, most: usize) -> Vec<(String, Option<Timestamp>)>;
    /// Pods that `rules` selects and that serve, but do not count as available, by their names.
    fn announced_disruptions(&self, rules: &RuleSet) -> Vec<(String, AnnouncedDisruption)>;
    /// Name of a Pod that `rules` selects and that counts as not available because the cache has its metadata alone.
    fn unreadable_pod(&self, rules: &RuleSet) -> Option<String>;
    /// Of a Pod that is available: whether the kubelet has deferred its last resize. `None` if the Pod is not available or
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
            assert!(new.may_replace(&earlier, Operation::Reown));
            let both = new.merge_earlier_detail(Some(&earlier), Operation::Reown, false);
            assert_eq!(both.target.as_deref(), wanted);
        }
        let many = (0..MAX_CLAIM_OWNERS).map(|n| n.to_string());
        let many = given(Some(&many.collect::<Vec<_>>().join(" ")));
        assert!(!given(Some("x")).may_replace(&many, Operation::Reown));
    }
}
