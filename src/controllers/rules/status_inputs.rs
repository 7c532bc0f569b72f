//! Collects the facts for the status of a rule object that are not counts: whether its namespace is enforced, and which
//! Pods it selects.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::ControllerContext;
use super::status::StatusInputs;
use crate::api::keys;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::selection;
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

/// Timeout of one list.
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

/// The results of earlier runs, by UID of the rule object.
#[derive(Debug, Default)]
pub struct StatusInputCache(Mutex<HashMap<Uid, CachedInputs>>);

#[derive(Debug)]
struct CachedInputs {
    generation: i64,
    /// When the last list was made, and how many were made in a row.
    last: Option<(Instant, usize)>,
    found: SelectorMatches,
    /// Since when the namespace has lacked its enforcement label.
    lacking: Option<Instant>,
}

impl StatusInputCache {
    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }

    /// The facts except [`StatusInputs::unreadable`], [`StatusInputs::mended`] and [`StatusInputs::storing`], and the
    /// time after which to collect them again. `None` if the rule object is gone.
    pub async fn gather_status_inputs(
        &self,
        context: &ControllerContext,
        (namespace, name): (&str, &str),
        uid: &Uid,
    ) -> Option<(StatusInputs, Option<Duration>)> {
        let (mut place, managed, filtered_out, rules) = {
            let state = context.index.read_state();
            let entry = state.rule(namespace, name)?;
            let entry = Some(entry).filter(|e| e.snapshot.rules.uid == *uid)?;
            let managed = selects_managed(&state, entry);
            let rules = entry.snapshot.rules.clone();
            let filtered_out = managed && selection::is_all_filtered_out(&state, &rules);
            (
                namespace_place(context, &state, namespace),
                managed,
                filtered_out,
                rules,
            )
        };
        let now = Instant::now();
        let (due, mut again) = {
            let mut all = self.0.lock();
            let looked = all.entry(uid.clone()).or_insert_with(|| CachedInputs {
                generation: rules.generation,
                last: None,
                found: SelectorMatches::NotManaged,
                lacking: None,
            });
            if looked.generation != rules.generation || managed {
                (looked.generation, looked.last) = (rules.generation, None);
            }
            let mut again = None;
            looked.lacking = place
                .missing_enforcement
                .map(|_| looked.lacking.unwrap_or(now));
            if let Some(since) = looked.lacking {
                let left = LABEL_GRACE.saturating_sub(now.duration_since(since));
                if !left.is_zero() {
                    (place.missing_enforcement, again) = (None, Some(left));
                }
            }
            (!managed && is_listing_due(looked.last, now), again)
        };
        if managed || rules.selector.is_err() {
            let matches = match filtered_out {
                true => SelectorMatches::FilteredOut,
                false => SelectorMatches::Managed,
            };
            let facts = StatusInputs {
                namespace_state: place,
                grace_delete: context.grace_delete,
                matches,
                unreadable: Vec::new(),
                ledger_repair_message: None,
                ledger_storage: LedgerStorage::default(),
            };
            return Some((facts, again));
        }
        let found = match due {
            false => None,
            true => Some(
                selection::query_matches(&context.client, &rules, LISTING_TIMEOUT)
                    .await
                    .unwrap_or(SelectorMatches::NotManaged),
            ),
        };
        let mut all = self.0.lock();
        let looked = all.get_mut(uid)?;
        if let Some(found) = found {
            let times = looked.last.map_or(0, |(_, times)| times);
            looked.last = Some((Instant::now(), times.saturating_add(1)));
            looked.found = found;
        }
        again = again
            .into_iter()
            .chain(next_listing_in(looked.last, now))
            .min();
        let matches = looked.found.clone();
        let facts = StatusInputs {
            namespace_state: place,
            grace_delete: context.grace_delete,
            matches,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        Some((facts, again))
    }
}

/// Whether a list is due now.
fn is_listing_due(last: Option<(Instant, usize)>, now: Instant) -> bool {
    let Some((at, times)) = last else {
        return true;
    };
    let gap = LISTING_INTERVALS
        .get(times.saturating_sub(1))
        .or(LISTING_INTERVALS.last());
    gap.is_none_or(|gap| now.duration_since(at) >= *gap)
}

/// How long until the next list that is made even if nothing changes.
fn next_listing_in(last: Option<(Instant, usize)>, now: Instant) -> Option<Duration> {
    let (at, times) = last?;
    let gap = LISTING_INTERVALS.get(times.checked_sub(1)?)?;
    Some(gap.saturating_sub(now.saturating_duration_since(at)))
}

/// Whether the rule object selects managed Pods, or the Pods of a workload that will create managed Pods.
fn selects_managed(state: &IndexState, entry: &RuleEntry) -> bool {
    let rules = &entry.snapshot.rules;
    state.with_view(rules, |view| view.expected() > 0) || selection::has_cached_pods(state, rules)
}

/// Whether the API server sends the requests of a namespace to the webhooks.
fn namespace_place(context: &ControllerContext, state: &IndexState, name: &str) -> NamespaceState {
    let namespace = state.namespace(name);
    let labels = namespace.and_then(|n| n.labels.as_ref());
    let lacks = namespace
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
        let mark = needed
            .max(NamespaceEnforcement::from_labels(&labels))
            .label_value();
        labels.extend(mark.map(|mark| (keys::NAMESPACE_ENFORCEMENT.to_owned(), mark.to_owned())));
        context.registration.describe_gap(&labels)
    });
    NamespaceState {
        excluded: conditions::exclusion_reason(name, labels, Some(&context.namespace)),
        missing_enforcement: lacks,
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
        for (times, gap) in [(1, 10), (2, 60), (3, 300), (4, 300), (9, 300)] {
            let last = Some((now, times));
            assert!(
                !is_listing_due(last, after(gap - 1)) && is_listing_due(last, after(gap)),
                "{times}"
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
