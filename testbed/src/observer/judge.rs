//! Finds the changes that made an available Pod unavailable although the limit of missing Pods was reached.
//!
//! The judge replays all changes in the order in which they were stored. It is lenient where the server
//! cannot know better: a number of replicas counts as desired only after it was stored for [`Leniency`], and
//! a Pod that was lost without a request does not count as missing for as long.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use super::{Change, Fact, Owner, Pod};

/// Maximum number of changes in a printed history.
const SHOWN: usize = 25;

/// Limit of unavailable Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// A number of Pods.
    Count(i64),
    /// A percentage of the expected Pods, rounded up.
    Percent(i64),
}

impl Limit {
    fn resolve_to_count(self, expected: i64) -> i64 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (expected.max(0) * percent + 99) / 100,
        }
    }
}

/// The parts of a rule that the observer checks.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Name of the PodTransitionRule.
    pub name: String,
    /// `matchLabels` of its selector.
    pub selector: BTreeMap<String, String>,
    /// Its `maxUnavailable`.
    pub limit: Limit,
}

impl Rule {
    /// A rule over the Pods that carry `key=value`.
    #[must_use]
    pub fn over(name: &str, key: &str, value: &str, limit: Limit) -> Self {
        Self {
            name: name.to_owned(),
            selector: [(key.to_owned(), value.to_owned())].into(),
            limit,
        }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let carries = |(key, value)| labels.get(key) == Some(value);
        self.selector.iter().all(carries)
    }

    fn covers(&self, pod: &Pod) -> bool {
        pod.is_managed() && self.matches(&pod.labels)
    }

    fn expects(&self, owner: &Owner) -> i64 {
        let managed = owner.labels.get("kusionstack.io/control");
        let counts = managed.is_some_and(|v| v == "true") && self.matches(&owner.labels);
        match owner.expected {
            Some(expected) if counts && !owner.deleting => expected,
            _ => 0,
        }
    }
}

/// Time for which the server may not know a change that caused no admission request.
pub type Leniency = Duration;

/// Why an available Pod became unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The deletion began.
    Deleted,
    /// The garbage collector deleted the Pod, because its owner was deleted or is being deleted.
    OwnerGone,
    /// The control label was removed.
    LeftManagement,
    /// A label of the selector was removed or changed.
    LeftRule,
    /// The availability label was removed.
    LabelRemoved,
    /// A container has to restart.
    Changed,
    /// `activeDeadlineSeconds` was set or lowered.
    Deadline,
    /// The controller is now an object that does not exist.
    Controller,
    /// A Pod-level resize restarts a container.
    PodResized,
    /// The Pod is not Ready any more.
    NotReady,
    /// The Pod has ended by itself.
    Finished,
}

impl Cause {
    /// Whether a request caused it, so that a rule must hold it.
    #[must_use]
    pub fn is_voluntary(self) -> bool {
        !matches!(self, Self::OwnerGone | Self::NotReady | Self::Finished)
    }
}

/// A Pod that became unavailable.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Resource version of the change.
    pub version: u64,
    /// When the observer saw the change.
    pub at: Instant,
    /// UID of the Pod.
    pub uid: String,
    /// `Pod/name`.
    pub name: String,
    /// Why.
    pub cause: Cause,
}

/// A change that made a Pod unavailable beyond the limit.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule.
    pub rule: String,
    /// The change.
    pub loss: Loss,
    /// Number of missing Pods before the change.
    pub missing: i64,
    /// Number of expected Pods.
    pub expected: i64,
    /// Limit of missing Pods.
    pub limit: i64,
    /// The changes that lead to the violation, the oldest first.
    pub history: Vec<String>,
    /// Names of the Pods concerned, without the kind.
    pub pods: BTreeSet<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "rule {}: {} became unavailable ({:?}) while {} of {} Pods were missing and the limit is {}:",
            self.rule, self.loss.name, self.loss.cause, self.missing, self.expected, self.limit
        )?;
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// The judgement about one rule.
#[derive(Debug, Clone, Default)]
pub struct Judgement {
    /// Maximum number of missing Pods, after all were available for the first time.
    pub worst: i64,
    /// The limit at that moment.
    pub limit: i64,
    /// Losses, by cause.
    pub losses: BTreeMap<Cause, usize>,
    /// The changes that broke the rule.
    pub violations: Vec<Violation>,
}

/// Replays all changes, which are sorted by version.
#[must_use]
pub fn judge(changes: &[Change], rule: &Rule, leniency: Leniency) -> Judgement {
    let mut replay = Replay {
        rule,
        leniency,
        pods: BTreeMap::new(),
        owners: BTreeMap::new(),
        expected: BTreeMap::new(),
        flaps: BTreeMap::new(),
        flapped: BTreeMap::new(),
        full: false,
        recent: Vec::new(),
        judgement: Judgement::default(),
    };
    for change in changes {
        replay.apply(change);
    }
    replay.judgement
}

struct Known {
    pod: Pod,
    available: bool,
    doomed: bool,
    /// Since when the Pod has no controller; `None` with one, `Some(None)` since before the observer.
    bare: Option<Option<Instant>>,
}

struct Replay<'a> {
    rule: &'a Rule,
    leniency: Leniency,
    pods: BTreeMap<String, Known>,
    owners: BTreeMap<String, Owner>,
    /// The number of Pods that each owner wanted, and since when; the oldest first.
    expected: BTreeMap<String, Vec<(Option<Instant>, i64)>>,
    /// Pods that are missing without a request, and the time of the loss.
    flaps: BTreeMap<String, Instant>,
    /// The same for Pods that may be back: the leader takes the label off a moment later.
    flapped: BTreeMap<String, Instant>,
    full: bool,
    /// The changes since all Pods were available, each with its Pod.
    recent: Vec<(Option<String>, String)>,
    judgement: Judgement,
}

impl Replay<'_> {
    fn apply(&mut self, change: &Change) {
        match change.object.as_deref() {
            Some(Fact::Owner(owner)) => self.owner(change, Some(owner)),
            None if self.owners.contains_key(&change.uid) => self.owner(change, None),
            Some(Fact::Pod(pod)) => self.pod(change, Some(pod)),
            None => self.pod(change, None),
        }
        self.measure(change.at);
    }

    fn owner(&mut self, change: &Change, owner: Option<&Owner>) {
        // The number that its controller wants counts.
        let root = |o: &&Owner| o.controller.is_none();
        let expected = owner.filter(root).map_or(0, |o| self.rule.expects(o));
        let history = self.expected.entry(change.uid.clone()).or_default();
        if history.is_empty() {
            history.push((None, if change.listed { expected } else { 0 }));
        }
        if history.last().is_some_and(|(_, last)| *last != expected) {
            history.push((Some(change.at), expected));
            let line = format!(
                "{}: {} asks for {expected} Pods",
                change.version, change.name
            );
            self.recent.push((None, line));
        }
        match owner {
            Some(owner) => drop(self.owners.insert(change.uid.clone(), owner.clone())),
            None => drop(self.owners.remove(&change.uid)),
        }
    }

    fn pod(&mut self, change: &Change, pod: Option<&Pod>) {
        let old = self.pods.remove(&change.uid);
        let (missing, expected) = self.missing_with(old.as_ref(), change.at);
        let live = |uid: &String| self.owners.get(uid).is_some_and(|o| !o.deleting);
        let mut known = pod.map(|pod| {
            let owned = pod.controller.as_ref();
            let counted = owned.is_some_and(|uid| {
                self.owners
                    .get(uid)
                    .is_none_or(|owner| owner.expected.is_some())
            });
            let since = (!change.listed).then_some(change.at);
            let before = old.as_ref().and_then(|o| o.bare);
            Known {
                pod: pod.clone(),
                available: false,
                doomed: false,
                bare: (!counted).then(|| before.unwrap_or(since)),
            }
        });
        let mut cause = None;
        if let (Some(known), Some(old)) = (&mut known, &old) {
            let lowered = match (old.pod.deadline, known.pod.deadline) {
                (None, Some(_)) => true,
                (Some(old), Some(new)) => new < old,
                _ => false,
            };
            let forged = known.pod.controller != old.pod.controller
                && known.pod.controller.as_ref().is_some_and(|uid| !live(uid));
            let settled = known.pod.controller == old.pod.controller;
            known.doomed = lowered || forged || (old.doomed && settled);
            cause = match () {
                () if lowered => Some(Cause::Deadline),
                () if forged => Some(Cause::Controller),
                () => None,
            };
        }
        if let Some(known) = &mut known {
            known.available = self.rule.covers(&known.pod) && known.pod.serves() && !known.doomed;
        }
        let is_available = known.as_ref().is_some_and(|k| k.available);
        match old {
            Some(old) if old.available && !is_available => {
                let cause = self.cause(change, &old, known.as_ref(), cause);
                if cause == Cause::Changed
                    && let Some(known) = &known
                {
                    let (before, after) = (old.pod.wanted.join("; "), known.pod.wanted.join("; "));
                    let line = format!(
                        "{}: {} is to run {after} instead of {before}",
                        change.version, change.name
                    );
                    self.recent.push((Some(change.uid.clone()), line));
                }
                self.lose(change, cause, missing, expected);
            }
            Some(old) if old.available => {
                let resized = known.as_ref().is_some_and(|k| {
                    let both = [&k.pod.pod_resources, &old.pod.pod_resources];
                    both.iter().all(|r| r.is_some()) && both[0] != both[1]
                });
                if resized {
                    self.lose(change, Cause::PodResized, missing, expected);
                }
            }
            _ if is_available => {
                self.flaps.remove(&change.uid);
                self.recent
                    .retain(|(uid, _)| uid.as_ref() != Some(&change.uid));
            }
            _ => {}
        }
        if let Some(known) = known {
            self.pods.insert(change.uid.clone(), known);
        }
    }

    fn cause(
        &self,
        change: &Change,
        old: &Known,
        new: Option<&Known>,
        found: Option<Cause>,
    ) -> Cause {
        let is_owner_gone = old.pod.controller.as_ref().is_some_and(|uid| {
            let owner = self.owners.get(uid);
            owner.is_none_or(|o| o.deleting)
        });
        let deleted = if is_owner_gone {
            Cause::OwnerGone
        } else {
            Cause::Deleted
        };
        let Some(new) = new else { return deleted };
        let flapped = self.flapped.get(&change.uid);
        match &new.pod {
            pod if pod.deleting => deleted,
            pod if !pod.is_managed() => Cause::LeftManagement,
            pod if !self.rule.matches(&pod.labels) => Cause::LeftRule,
            pod if pod.finished => Cause::Finished,
            pod if !pod.is_labelled() => match flapped {
                Some(at) if change.at.duration_since(*at) < self.leniency => Cause::NotReady,
                _ => Cause::LabelRemoved,
            },
            pod if pod.wanted != old.pod.wanted => Cause::Changed,
            _ => found.unwrap_or(Cause::NotReady),
        }
    }

    fn lose(&mut self, change: &Change, cause: Cause, missing: i64, expected: i64) {
        *self.judgement.losses.entry(cause).or_default() += 1;
        let line = format!(
            "{}: {} becomes unavailable ({cause:?}); {missing} of {expected} were missing before",
            change.version, change.name
        );
        self.recent.push((Some(change.uid.clone()), line));
        if cause == Cause::NotReady || cause == Cause::Finished {
            self.flaps.insert(change.uid.clone(), change.at);
            self.flapped.insert(change.uid.clone(), change.at);
        }
        let limit = self.rule.limit.resolve_to_count(expected);
        if !cause.is_voluntary() || missing < limit {
            return;
        }
        let first = self.recent.len().saturating_sub(SHOWN);
        let history: Vec<String> = self.recent[first..]
            .iter()
            .map(|(_, l)| l.clone())
            .collect();
        let pods = history
            .iter()
            .filter_map(|line| line.split("Pod/").nth(1)?.split(' ').next())
            .map(str::to_owned)
            .collect();
        self.judgement.violations.push(Violation {
            rule: self.rule.name.clone(),
            loss: Loss {
                version: change.version,
                at: change.at,
                uid: change.uid.clone(),
                name: change.name.clone(),
                cause,
            },
            missing,
            expected,
            limit,
            history,
            pods,
        });
    }

    /// Records the moment with the most missing Pods.
    fn measure(&mut self, now: Instant) {
        let (missing, expected) = self.missing_with(None, now);
        if missing <= 0 {
            self.full |= expected > 0;
            self.recent.clear();
        }
        if self.full && missing > self.judgement.worst {
            self.judgement.worst = missing;
            self.judgement.limit = self.rule.limit.resolve_to_count(expected);
        } else if self.judgement.worst == 0 && expected > 0 {
            self.judgement.limit = self.rule.limit.resolve_to_count(expected);
        }
    }

    /// Missing and expected Pods, with one more Pod than `self.pods` holds.
    fn missing_with(&self, more: Option<&Known>, now: Instant) -> (i64, i64) {
        let roots: i64 = self.expected.values().map(|h| self.fewest(h, now)).sum();
        let all = || self.pods.values().chain(more);
        let stands = |since: &Option<Instant>| {
            since.is_none_or(|since| now.duration_since(since) >= self.leniency)
        };
        let bare = all().filter(|k| {
            k.bare.is_some_and(|since| stands(&since))
                && self.rule.covers(&k.pod)
                && !k.pod.deleting
                && !k.pod.finished
        });
        let expected = roots + bare.count() as i64;
        let available = all().filter(|k| k.available).count() as i64;
        let flapped = self
            .flaps
            .values()
            .filter(|at| now.duration_since(**at) < self.leniency);
        (expected - available - flapped.count() as i64, expected)
    }

    /// The minimum that an owner has wanted within the leniency.
    fn fewest(&self, history: &[(Option<Instant>, i64)], now: Instant) -> i64 {
        let mut fewest = i64::MAX;
        for (since, expected) in history.iter().rev() {
            fewest = fewest.min(*expected);
            if since.is_none_or(|since| now.duration_since(since) >= self.leniency) {
                break;
            }
        }
        if fewest == i64::MAX { 0 } else { fewest }
    }
}
