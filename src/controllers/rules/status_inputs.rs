//! Collects the facts for the status of a rule object that are not counts: whether its namespace is enforced, and which
//! Pods it selects.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::ControllerContext;
use super::status::StatusInputs;
use crate::api::keys;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::selection;
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions::{self, LedgerStorage, NamespaceState, SelectorMatches};
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::ledger::store::Uid;

/// A missing namespace enforcement label is reported only after it has been missing for this time. The watch of
/// namespaces may be behind the watch of rules, and the namespace controller restores a lost label at once.
const LABEL_GRACE: Duration = Duration::from_secs(2);

/// Pauses between the live lists that search for Pods which are not managed, while a rule object selects no managed
/// Pod. Such Pods are not watched. After the last pause, a list follows only if something else changes, so that an idle
/// cluster causes no requests.
const LISTING_INTERVALS: [Duration; 3] = [
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

/// The results of earlier runs, by UID of the rule object.
#[derive(Debug, Default)]
pub struct StatusInputCache(Mutex<HashMap<Uid, CachedInputs>>);

#[derive(Debug)]
struct CachedInputs {
    generation: i64,
    /// When the last list was made, and how many lists were made in a row.
    last_listing: Option<(Instant, usize)>,
    /// The result of the last list.
    matches: SelectorMatches,
    /// Since when the namespace has lacked its enforcement label.
    label_missing_since: Option<Instant>,
}

impl StatusInputCache {
    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }

    /// The facts except [`StatusInputs::unreadable`], [`StatusInputs::ledger_repair_message`] and
    /// [`StatusInputs::ledger_storage`], and the time after which to collect them again. `None` if the rule object is
    /// gone.
    pub async fn gather_status_inputs(
        &self,
        context: &ControllerContext,
        rule_name: (&str, &str),
        uid: &Uid,
    ) -> Option<(StatusInputs, Option<Duration>)> {
        let mut selected = CachedSelection::from_index(context, rule_name, uid)?;
        let now = Instant::now();
        let (is_due, grace) = self.update_cached_inputs(&mut selected, uid, now);
        if selected.has_managed_pods || selected.rules.selector.is_err() {
            let matches = match selected.is_all_filtered_out {
                true => SelectorMatches::FilteredOut,
                false => SelectorMatches::Managed,
            };
            return Some((selected.into_inputs(context, matches), grace));
        }
        let listed = match is_due {
            false => None,
            true => Some(
                selection::query_matches(&context.client, &selected.rules, LISTING_TIMEOUT)
                    .await
                    .unwrap_or(SelectorMatches::NotManaged),
            ),
        };
        let (matches, next_listing) = self.record_listing(uid, listed, now)?;
        let pause = grace.into_iter().chain(next_listing).min();
        Some((selected.into_inputs(context, matches), pause))
    }

    /// Compares the cached results with the Pods that the rule object selects now. Returns whether a list is due now,
    /// and the time until the end of [`LABEL_GRACE`]. Until then `selected` does not report a missing label.
    fn update_cached_inputs(
        &self,
        selected: &mut CachedSelection,
        uid: &Uid,
        now: Instant,
    ) -> (bool, Option<Duration>) {
        let generation = selected.rules.generation;
        let mut all = self.0.lock();
        let cached = all.entry(uid.clone()).or_insert_with(|| CachedInputs {
            generation,
            last_listing: None,
            matches: SelectorMatches::NotManaged,
            label_missing_since: None,
        });
        if cached.generation != generation || selected.has_managed_pods {
            (cached.generation, cached.last_listing) = (generation, None);
        }
        let missing = &mut selected.namespace_state.missing_enforcement;
        cached.label_missing_since = missing
            .as_ref()
            .map(|_| cached.label_missing_since.unwrap_or(now));
        let grace = cached
            .label_missing_since
            .map(|since| LABEL_GRACE.saturating_sub(now.duration_since(since)))
            .filter(|grace| !grace.is_zero());
        if grace.is_some() {
            *missing = None;
        }
        let is_due = !selected.has_managed_pods && is_listing_due(cached.last_listing, now);
        (is_due, grace)
    }

    /// Records the result of a list, if there was one. Returns the last result, and the time until the next list.
    /// `None` if the rule object is gone.
    fn record_listing(
        &self,
        uid: &Uid,
        listed: Option<SelectorMatches>,
        now: Instant,
    ) -> Option<(SelectorMatches, Option<Duration>)> {
        let mut all = self.0.lock();
        let cached = all.get_mut(uid)?;
        if let Some(matches) = listed {
            let count = cached.last_listing.map_or(0, |(_, count)| count);
            cached.last_listing = Some((Instant::now(), count.saturating_add(1)));
            cached.matches = matches;
        }
        let next_listing = next_listing_in(cached.last_listing, now);
        Some((cached.matches.clone(), next_listing))
    }
}

/// Which Pods a rule object selects, by the cache.
struct CachedSelection {
    rules: Arc<RuleSet>,
    namespace_state: NamespaceState,
    has_managed_pods: bool,
    is_all_filtered_out: bool,
}

impl CachedSelection {
    /// `None` if the rule object is gone.
    fn from_index(
        context: &ControllerContext,
        (namespace, name): (&str, &str),
        uid: &Uid,
    ) -> Option<CachedSelection> {
        let state = context.index.read_state();
        let entry = state.rule(namespace, name)?;
        let entry = Some(entry).filter(|e| e.snapshot.rules.uid == *uid)?;
        let has_managed_pods = selects_managed(&state, entry);
        let rules = &entry.snapshot.rules;
        Some(CachedSelection {
            rules: Arc::clone(rules),
            is_all_filtered_out: has_managed_pods && selection::is_all_filtered_out(&state, rules),
            namespace_state: namespace_state(context, &state, namespace),
            has_managed_pods,
        })
    }

    fn into_inputs(self, context: &ControllerContext, matches: SelectorMatches) -> StatusInputs {
        StatusInputs {
            namespace_state: self.namespace_state,
            grace_delete: context.grace_delete,
            matches,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        }
    }
}

fn is_listing_due(last: Option<(Instant, usize)>, now: Instant) -> bool {
    let Some((time, count)) = last else {
        return true;
    };
    let gap = LISTING_INTERVALS
        .get(count.saturating_sub(1))
        .or(LISTING_INTERVALS.last());
    gap.is_none_or(|gap| now.duration_since(time) >= *gap)
}

/// How long until the next list that is made even if nothing changes.
fn next_listing_in(last: Option<(Instant, usize)>, now: Instant) -> Option<Duration> {
    let (time, count) = last?;
    let gap = LISTING_INTERVALS.get(count.checked_sub(1)?)?;
    Some(gap.saturating_sub(now.saturating_duration_since(time)))
}

/// Whether the rule object selects managed Pods, or the Pods of a workload that will create managed Pods.
fn selects_managed(state: &IndexState, entry: &RuleEntry) -> bool {
    let rules = &entry.snapshot.rules;
    state.with_view(rules, |view| view.expected() > 0) || selection::has_cached_pods(state, rules)
}

/// Whether the API server sends the requests of a namespace to the webhooks.
fn namespace_state(context: &ControllerContext, state: &IndexState, name: &str) -> NamespaceState {
    let namespace = state.namespace(name);
    let labels = namespace.and_then(|n| n.labels.as_ref());
    let missing_enforcement = namespace
        .filter(|n| n.terminating_since.is_none())
        .zip(labels)
        .and_then(|(n, labels)| {
            let needed =
                NamespaceEnforcement::for_rules(n.rules.values().map(|e| &*e.snapshot.rules));
            (NamespaceEnforcement::from_labels(labels) < needed).then_some(needed)
        });
    let unregistered = namespace.zip(labels).and_then(|(n, labels)| {
        // A missing label is reported separately.
        let needed = NamespaceEnforcement::for_rules(n.rules.values().map(|e| &*e.snapshot.rules));
        let mut labels = labels.clone();
        let value = needed
            .max(NamespaceEnforcement::from_labels(&labels))
            .label_value();
        labels
            .extend(value.map(|value| (keys::NAMESPACE_ENFORCEMENT.to_owned(), value.to_owned())));
        context.registration.describe_gap(&labels)
    });
    NamespaceState {
        excluded: conditions::exclusion_reason(name, labels, Some(&context.namespace)),
        missing_enforcement,
        unregistered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_become_rare_and_then_need_change() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(is_listing_due(None, now));
        for (count, gap) in [(1, 10), (2, 60), (3, 300), (4, 300), (9, 300)] {
            let last = Some((now, count));
            assert!(
                !is_listing_due(last, after(gap - 1)) && is_listing_due(last, after(gap)),
                "{count}"
            );
        }
        assert_eq!(
            next_listing_in(Some((now, 1)), now),
            Some(LISTING_INTERVALS[0])
        );
        assert_eq!(
            next_listing_in(Some((now, 3)), now),
            Some(LISTING_INTERVALS[2])
        );
        assert_eq!(next_listing_in(Some((now, 4)), now), None);
    }
}
