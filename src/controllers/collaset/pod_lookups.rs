//! The answers of the API server about Pods that no cache contains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::collaset::observed::UNMANAGED_NANOS;
use crate::domain::pod::Pod;

/// How long the answer that a Pod exists and is not managed is valid, unless the spec changes. It is short because the
/// status shows the command that adds the missing label.
const UNMANAGED_TTL: Duration = Duration::from_nanos(UNMANAGED_NANOS);
/// How long the answer that a Pod does not exist is valid. It is long because the status does not mention such a Pod.
const ABSENT_TTL: Duration = Duration::from_secs(30);
/// Maximum number of names that one run looks up. The following runs look up the others.
const MAX_LOOKUPS: usize = 10;

/// Answers about Pods, by name.
#[derive(Debug, Default)]
pub struct PodLookups {
    generation: i64,
    by_name: BTreeMap<String, Lookup>,
    /// Whether more names were due than one run may look up.
    has_more: bool,
}

#[derive(Debug)]
struct Lookup {
    asked_at: Instant,
    /// The Pod, if it exists and is not managed.
    unmanaged: Option<Arc<Pod>>,
}

impl PodLookups {
    /// Which of the names that no cache contains are due for a lookup, at most [`MAX_LOOKUPS`]. Names that were never
    /// looked up come first. Forgets all other names, and all answers if the generation is a new one.
    pub fn names_to_look_up(
        &mut self,
        unknown: &BTreeSet<String>,
        now: Instant,
        generation: i64,
    ) -> Vec<String> {
        let is_new = std::mem::replace(&mut self.generation, generation) != generation;
        self.by_name
            .retain(|name, _| !is_new && unknown.contains(name));
        let asked_at = |name: &String| self.by_name.get(name).map(|lookup| lookup.asked_at);
        let is_due = |name: &&String| {
            self.by_name.get(*name).is_none_or(|lookup| {
                let ttl = match lookup.unmanaged {
                    Some(_) => UNMANAGED_TTL,
                    None => ABSENT_TTL,
                };
                lookup.asked_at + ttl <= now
            })
        };
        let mut due: Vec<String> = unknown.iter().filter(is_due).cloned().collect();
        due.sort_by_key(asked_at);
        self.has_more = due.len() > MAX_LOOKUPS;
        due.truncate(MAX_LOOKUPS);
        due
    }

    /// Whether the last run left names to the next run. The caller must requeue the set, because no event does.
    pub fn has_more_names(&self) -> bool {
        self.has_more
    }

    /// Records an answer: the Pod, if it exists and is not managed.
    pub fn record_lookup(&mut self, name: String, unmanaged: Option<Arc<Pod>>, now: Instant) {
        let lookup = Lookup {
            asked_at: now,
            unmanaged,
        };
        self.by_name.insert(name, lookup);
    }

    /// The Pods that exist and are not managed, in the order of their names.
    pub fn unmanaged_pods(&self) -> Vec<Arc<Pod>> {
        let lookups = self.by_name.values();
        lookups
            .filter_map(|lookup| lookup.unmanaged.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
        names.into_iter().map(|n| format!("p{n:02}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn name_is_looked_up_again_after_ttl_or_spec_change() {
        let (mut lookups, start) = (PodLookups::default(), Instant::now());
        let unknown = names(0..1);
        let pod = Arc::new(Pod::default());
        let unmanaged = |lookups: &PodLookups| lookups.unmanaged_pods().len();
        assert_eq!(lookups.names_to_look_up(&unknown, start, 1), ["p00"]);
        lookups.record_lookup("p00".into(), Some(Arc::clone(&pod)), start);
        assert_eq!(lookups.names_to_look_up(&unknown, start, 1), [""; 0]);
        assert_eq!(unmanaged(&lookups), 1);
        assert_eq!(lookups.names_to_look_up(&unknown, start, 2), ["p00"]);
        assert_eq!(unmanaged(&lookups), 0);
        lookups.record_lookup("p00".into(), Some(pod), start);
        assert_eq!(
            lookups.names_to_look_up(&unknown, start + UNMANAGED_TTL, 2),
            ["p00"]
        );
        assert_eq!(
            unmanaged(&lookups),
            1,
            "the answer stays after its TTL until the next answer"
        );
        assert_eq!(
            lookups.names_to_look_up(&names([]), start, 2),
            [""; 0],
            "the Pod has the label"
        );
        assert_eq!(unmanaged(&lookups), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn existing_pod_has_shorter_lookup_ttl_than_absent_pod() {
        let (mut lookups, start) = (PodLookups::default(), Instant::now());
        let unknown = names(0..2);
        lookups.names_to_look_up(&unknown, start, 1);
        lookups.record_lookup("p00".into(), Some(Arc::new(Pod::default())), start);
        lookups.record_lookup("p01".into(), None, start);
        let later = start + Duration::from_secs(5);
        assert_eq!(lookups.names_to_look_up(&unknown, later, 1), ["p00"]);
        let later = start + Duration::from_secs(30);
        assert_eq!(lookups.names_to_look_up(&unknown, later, 1), ["p00", "p01"]);
    }

    #[tokio::test(start_paused = true)]
    async fn next_run_looks_up_names_beyond_limit_first() {
        let (mut lookups, start) = (PodLookups::default(), Instant::now());
        assert!(!lookups.has_more_names());
        let unknown = names(0..15);
        let first = lookups.names_to_look_up(&unknown, start, 1);
        assert_eq!(first.len(), MAX_LOOKUPS);
        for name in first {
            lookups.record_lookup(name, None, start);
        }
        let later = start + ABSENT_TTL;
        let second = lookups.names_to_look_up(&unknown, later, 1);
        assert_eq!(second[..5], ["p10", "p11", "p12", "p13", "p14"]);
        assert!(
            lookups.has_more_names(),
            "after ABSENT_TTL, the names of the first run are due again"
        );
        let limit = names(0..MAX_LOOKUPS);
        assert_eq!(
            lookups.names_to_look_up(&limit, later, 2).len(),
            MAX_LOOKUPS
        );
        assert!(!lookups.has_more_names());
    }
}
