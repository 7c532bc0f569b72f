//! What an adapter is to an employer at a look, and what the look came to.

use std::collections::BTreeMap;
use std::time::Duration;

use traffic::plan::{LISTED, Memory, Place, PodPlace, Summary, View};

use super::super::cache_waits::UNSYNCED_RETRY;

/// The shortest pause between two looks.
pub const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause before a Pod that can't be read is read again.
const UNREADABLE_RETRY: Duration = Duration::from_secs(30);
/// What a former adapter did with each Pod at its last look, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerPlaces(pub BTreeMap<String, PodPlace>);

impl FormerPlaces {
    /// Whether the former adapter must be asked again, because a Pod has turned.
    pub fn is_outdated(&self, memory: &Memory) -> bool {
        let mut places = self.0.iter();
        places.any(|(uid, place)| place.is_outdated(memory, uid))
    }

    /// What it did with one Pod.
    pub fn place(&self, view: &View, memory: &Memory, uid: &str) -> Place {
        let place = self.0.get(uid);
        place.map_or(Place::Unclear, |place| place.as_of(view, memory, uid))
    }
}

/// What an adapter is to an employer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It manages the employer, and the marks of Pods follow it.
    Present {
        /// Whether other adapters may still send requests to Pods.
        moves: bool,
        /// Whether it has never registered a member: the record does not name it yet.
        is_new: bool,
    },
    /// It managed the employer before. Perhaps the present one does not serve in its place yet.
    Former {
        /// Whether all its members go. Otherwise those stay that should serve.
        retires: bool,
        /// Whether Pods that should serve and do not are still registered: the present adapter has not served yet.
        registers: bool,
    },
}

/// What a look came to.
pub struct LookResult {
    /// The time until the next look, if nothing changes before.
    pub wake: Option<Duration>,
    /// The state of the members.
    pub summary: Summary,
    /// Whether no member is registered, and no Pod is marked.
    pub is_clean: bool,
    /// Whether every Pod that should serve does, as a read has told.
    pub is_settled: bool,
    /// A Pod without which a move does not end although nothing else is open, and the reason.
    pub unproven: Option<(String, String)>,
    /// Whether the first change at a new adapter is due, which its record comes before.
    pub begins: bool,
    /// What a former adapter does with each Pod.
    pub places: FormerPlaces,
}

impl LookResult {
    /// The result of a look that found nothing to do.
    pub fn with_clean(is_clean: bool) -> LookResult {
        LookResult {
            wake: None,
            summary: Summary::default(),
            is_clean,
            is_settled: false,
            unproven: None,
            begins: false,
            places: FormerPlaces::default(),
        }
    }

    /// Adds what the former adapter with this name came to.
    pub fn add_former(&mut self, name: &str, former: LookResult) {
        // When its members have gone, Pods that waited for this may be released.
        let again = former.is_clean.then_some(UNSYNCED_RETRY);
        self.wake = self.wake.into_iter().chain(former.wake).chain(again).min();
        let (all, its) = (&mut self.summary, former.summary);
        all.draining += its.draining;
        all.failed += its.failed;
        all.waiting.extend(its.waiting);
        all.waiting.truncate(LISTED);
        all.next_try = all.next_try.into_iter().chain(its.next_try).min();
        let error = its.last_error;
        let error = error.map(|error| format!("adapter {name}, which managed it before: {error}"));
        all.last_error = all.last_error.take().or(error);
    }

    /// The result of a look that did nothing, because a Pod can't be read, so that nothing is known of its addresses.
    pub fn of_unreadable_pod(name: &str) -> LookResult {
        let error = format!(
            "Pod {name} can't be read, so nothing changes until it is gone or can be read; the log of the server says \
             what is wrong with it"
        );
        let mut result = LookResult::with_clean(false);
        result.wake = Some(UNREADABLE_RETRY);
        result.summary.pending = 1;
        result.summary.last_error = Some(error);
        result
    }
}
