//! The newest round of each namespace, judged anew when something has changed, and not too often.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::round::{Budget, Round};
use crate::cluster::index::{Entry, Index, State};

/// After a round its namespace rests this long for each step of the round. A step takes about a tenth of this, so that the
/// rounds of a namespace take at most a tenth of one processor, however many rules and Pods a tenant makes.
const REST_PER_STEP: Duration = Duration::from_micros(5);

/// No namespace rests longer.
const MAX_REST: Duration = Duration::from_secs(5);

/// Look again after this time while somebody else judges.
const SOON: Duration = Duration::from_millis(5);

/// A round is judged anew after this time even if nothing changes: claims grow old, and moments end.
const GOOD_FOR: Duration = Duration::from_millis(500);

/// The rounds by namespace.
#[derive(Debug, Default)]
pub struct Rounds(Mutex<HashMap<String, Home>>);

/// One namespace.
#[derive(Debug, Default)]
struct Home {
    round: Arc<Round>,
    /// When the round began; `None` if there was none.
    begun: Option<Instant>,
    /// Until when no other round begins.
    rests: Option<Instant>,
    /// Whether something has changed since the round began.
    is_stale: bool,
    /// Whether a round is under way.
    is_judging: bool,
}

/// The turns as they are known, and if they may have changed since, when to look again.
pub type Known = (Arc<Round>, Option<Duration>);

impl Rounds {
    /// Something has changed in a namespace.
    pub fn changed(&self, namespace: &str) {
        if let Some(home) = self.0.lock().get_mut(namespace) {
            home.is_stale = true;
        }
    }

    /// Anything may have changed.
    pub fn all_changed(&self) {
        for home in self.0.lock().values_mut() {
            home.is_stale = true;
        }
    }

    /// A namespace is gone.
    pub fn forget(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }

    /// The turns in a namespace. Judges them if they have changed, unless somebody does so already or the namespace rests:
    /// nobody waits here, so that a tenant cannot keep the workers from the namespaces of others.
    pub async fn look(
        &self,
        index: &Index,
        namespace: &str,
        measure: impl Fn(&State, &Entry) -> Budget,
    ) -> Known {
        let now = Instant::now();
        {
            let mut homes = self.0.lock();
            let home = homes.entry(namespace.to_owned()).or_default();
            if home.is_good(now) {
                return (Arc::clone(&home.round), None);
            }
            if let Some(pause) = home.pause(now) {
                return (Arc::clone(&home.round), Some(pause));
            }
            (home.is_judging, home.is_stale, home.begun) = (true, false, Some(now));
        }
        let _judging = Judging(self, namespace);
        let round = Arc::new(Round::judge(index, namespace, measure).await);
        let mut homes = self.0.lock();
        let home = homes.entry(namespace.to_owned()).or_default();
        let steps = u32::try_from(round.steps).unwrap_or(u32::MAX);
        let rest = REST_PER_STEP.saturating_mul(steps).min(MAX_REST);
        home.rests = Some(Instant::now() + rest);
        home.round = Arc::clone(&round);
        (round, None)
    }
}

impl Home {
    /// Whether the round tells the present state.
    fn is_good(&self, now: Instant) -> bool {
        let young = self.begun.is_some_and(|begun| now - begun < GOOD_FOR);
        young && !self.is_stale && !self.is_judging
    }

    /// How long no round is to begin; `None` if one may begin now.
    fn pause(&self, now: Instant) -> Option<Duration> {
        if self.is_judging {
            return Some(SOON);
        }
        let left = self.rests?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// A round that is under way. One that panics ends too.
struct Judging<'a>(&'a Rounds, &'a str);

impl Drop for Judging<'_> {
    fn drop(&mut self) {
        if let Some(home) = self.0.0.lock().get_mut(self.1) {
            home.is_judging = false;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::super::round::tests::{PODS, RULES, crowd};
    use super::*;

    /// Looks once, and returns what the look says of when to look again. Counts the budgets that are measured.
    async fn look(rounds: &Rounds, index: &Index, measured: &Cell<usize>) -> Option<Duration> {
        let measure = |_: &State, _: &Entry| {
            measured.set(measured.get() + 1);
            Budget::default()
        };
        rounds.look(index, "n", measure).await.1
    }

    #[tokio::test(start_paused = true)]
    async fn looks_at_all_pods_and_rules_share_a_round() {
        let (index, rounds, measured) = (crowd(), Rounds::default(), Cell::new(0));
        for _ in 0..PODS + RULES {
            assert_eq!(look(&rounds, &index, &measured).await, None);
        }
        assert_eq!(measured.get(), RULES);
        tokio::time::advance(GOOD_FOR).await;
        look(&rounds, &index, &measured).await;
        assert_eq!(measured.get(), 2 * RULES);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_without_end_do_not_bring_rounds_without_end() {
        let (index, rounds, measured) = (crowd(), Rounds::default(), Cell::new(0));
        assert_eq!(look(&rounds, &index, &measured).await, None);
        let mut again = None;
        for _ in 0..1_000 {
            rounds.changed("n");
            again = look(&rounds, &index, &measured).await;
            assert!(again.is_some());
        }
        assert_eq!(measured.get(), RULES);
        tokio::time::advance(again.unwrap()).await;
        assert_eq!(look(&rounds, &index, &measured).await, None);
        assert_eq!(measured.get(), 2 * RULES);
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_round_brings_another_one() {
        let (index, rounds) = (crowd(), Rounds::default());
        let measure = |_: &State, _: &Entry| {
            rounds.changed("n");
            Budget::default()
        };
        rounds.look(&index, "n", measure).await;
        let measured = Cell::new(0);
        let again = look(&rounds, &index, &measured).await.unwrap();
        tokio::time::advance(again).await;
        assert_eq!(look(&rounds, &index, &measured).await, None);
        assert_eq!(measured.get(), RULES);
    }
}
