//! Keeps the latest round of each namespace. A round is judged again when something has changed, but not too often.
//! Requesters in between are parked, and are enqueued once when the next round has ended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::round::Round;
use crate::ledger::store::Uid;

/// After a round, the namespace pauses for this many times as long as the round took. Therefore the rounds of a
/// namespace take less than a tenth of one processor, however many rules and Pods a tenant creates.
const REST_FACTOR: u32 = 10;

/// A round is judged again after this time even if nothing changes, because claims become old and a Pod is no longer
/// down for a moment.
const ROUND_TTL: Duration = Duration::from_millis(500);

/// Pause of a namespace after a round that panicked.
const REST_AFTER_PANIC: Duration = Duration::from_secs(1);

/// Who asks for a round, and is enqueued after the next one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// A Pod, by UID.
    Pod(Uid),
    /// A rule object, by name.
    Rule(String),
}

/// The known round of a namespace.
#[derive(Clone, Debug)]
pub enum RoundLookup {
    /// The round is up to date.
    Fresh(Arc<Round>),
    /// Something may have changed since the round. Unless the round already lets the requester go, the requester is
    /// enqueued after the next round.
    Stale(Arc<Round>),
    /// No usable round exists. The requester is enqueued after the round that begins.
    Pending,
}

/// The rounds by namespace.
#[derive(Debug, Default)]
pub struct Rounds(Mutex<HashMap<String, NamespaceRounds>>);

/// The rounds of one namespace.
#[derive(Debug, Default)]
struct NamespaceRounds {
    round: Arc<Round>,
    /// The time until which the round is up to date if nothing changes; `None` if there was no round.
    good_until: Option<Instant>,
    /// The time before which no other round begins.
    rests_until: Option<Instant>,
    /// Whether something has changed since the round began.
    is_stale: bool,
    /// Whether the next round is running, or waits for the end of the pause.
    is_running: bool,
    /// Whether the last round may be used while the next one is running: it was recent when that one was requested.
    is_usable: bool,
    parked: HashSet<Requester>,
}

impl Rounds {
    /// Records that something has changed in a namespace.
    pub fn mark_changed(&self, namespace: &str) {
        if let Some(home) = self.0.lock().get_mut(namespace) {
            home.is_stale = true;
        }
    }

    /// Records that anything may have changed.
    pub fn mark_all_changed(&self) {
        for home in self.0.lock().values_mut() {
            home.is_stale = true;
        }
    }

    /// Forgets a namespace that is gone.
    pub fn forget_namespace(&self, namespace: &str) {
        self.0.lock().remove(namespace);
    }

    /// Returns the round of a namespace, and whether the caller must [run](Rounds::run_next_round) the next round in a
    /// task of its own. Parks the requester unless there is nothing to wait for. A Pod that was next a moment ago may
    /// go at once.
    pub fn look_up_round(&self, namespace: &str, asker: Requester) -> (RoundLookup, bool) {
        let now = Instant::now();
        let mut homes = self.0.lock();
        let home = homes.entry(namespace.to_owned()).or_default();
        let round = Arc::clone(&home.round);
        if !home.is_stale && home.good_until.is_some_and(|until| now < until) {
            return (RoundLookup::Fresh(round), false);
        }
        if !home.is_running {
            home.is_usable = home.rests_until.is_some_and(|until| now < until);
        }
        if home.is_usable
            && let Requester::Pod(uid) = &asker
            && round.is_next(uid)
        {
            return (RoundLookup::Stale(round), false);
        }
        home.parked.insert(asker);
        let known = match home.is_usable {
            true => RoundLookup::Stale(round),
            false => RoundLookup::Pending,
        };
        (known, !std::mem::replace(&mut home.is_running, true))
    }

    /// Waits for the end of the pause, judges one round, and puts back the requesters that were parked until its end.
    pub async fn run_next_round(
        &self,
        namespace: &str,
        judge: impl Future<Output = Round>,
        hand_back: impl Fn(Requester),
    ) {
        let mut running = RunningRound {
            rounds: self,
            namespace,
            hand_back,
            rest: REST_AFTER_PANIC,
        };
        let rests_until = {
            let homes = self.0.lock();
            homes.get(namespace).and_then(|home| home.rests_until)
        };
        if let Some(until) = rests_until {
            sleep_until(until).await;
        }
        if let Some(home) = self.0.lock().get_mut(namespace) {
            home.is_stale = false;
        }
        let round = judge.await;
        running.rest = round.elapsed.saturating_mul(REST_FACTOR);
        if let Some(home) = self.0.lock().get_mut(namespace) {
            home.good_until = Some(Instant::now() + running.rest.max(ROUND_TTL));
            home.is_usable = true;
            home.round = Arc::new(round);
        }
    }
}

/// A running round. If the round panics or is cancelled, the drop of this value ends it too.
struct RunningRound<'a, H: Fn(Requester)> {
    rounds: &'a Rounds,
    namespace: &'a str,
    hand_back: H,
    /// The pause of the namespace after the round.
    rest: Duration,
}

impl<H: Fn(Requester)> Drop for RunningRound<'_, H> {
    fn drop(&mut self) {
        let mut homes = self.rounds.0.lock();
        let Some(home) = homes.get_mut(self.namespace) else {
            return;
        };
        home.is_running = false;
        home.rests_until = Some(Instant::now() + self.rest);
        let parked = std::mem::take(&mut home.parked);
        drop(homes);
        for asker in parked {
            (self.hand_back)(asker);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PODS: usize = 50;

    /// Pods of one namespace that ask for rounds as the lifecycle controller does.
    #[derive(Default)]
    struct World {
        rounds: Rounds,
        judged: AtomicUsize,
        handed: Mutex<Vec<Requester>>,
    }

    fn pod(number: usize) -> Requester {
        Requester::Pod(Uid::from(number.to_string()))
    }

    impl World {
        /// Requests a round. A round that begins takes the time `takes`; a round of zero length has ended after the
        /// next pause.
        fn look(self: &Arc<Self>, asker: Requester, takes: Duration) -> RoundLookup {
            let (known, starts) = self.rounds.look_up_round("n", asker);
            if starts {
                let world = Arc::clone(self);
                tokio::spawn(async move {
                    let judge = async {
                        world.judged.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(takes).await;
                        Round::with_time_spent(takes)
                    };
                    let hand_back = |asker| world.handed.lock().push(asker);
                    world.rounds.run_next_round("n", judge, hand_back).await;
                });
            }
            known
        }

        fn judged(&self) -> usize {
            self.judged.load(Ordering::Relaxed)
        }
    }

    async fn pause(millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn all_lookups_share_one_round_and_requeue_once() {
        let world = Arc::new(World::default());
        let takes = Duration::from_millis(40);
        for _ in 0..10 {
            for number in 0..PODS {
                assert!(matches!(
                    world.look(pod(number), takes),
                    RoundLookup::Pending
                ));
            }
            pause(3).await; // still within the round
        }
        pause(20).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (1, PODS));
        for number in 0..PODS {
            assert!(matches!(
                world.look(pod(number), takes),
                RoundLookup::Fresh(_)
            ));
        }
        pause(2_000).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (1, PODS));
        assert!(matches!(world.look(pod(0), takes), RoundLookup::Pending)); // the round is too old
        pause(100).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (2, PODS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_use_at_most_tenth_of_time() {
        for seconds in [1, 2, 10] {
            let world = Arc::new(World::default());
            let takes = Duration::from_secs(seconds);
            for _ in 0..1_100 {
                world.rounds.mark_changed("n");
                for number in 0..PODS {
                    world.look(pod(number), takes);
                }
                pause(100 * seconds).await;
            }
            // 110 times the length of a round have passed.
            assert_eq!(world.judged(), 10, "{seconds} s");
            let handed = world.handed.lock().len();
            assert_eq!(handed, 10 * PODS, "each Pod comes back once a round");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_round_brings_another_one() {
        let world = Arc::new(World::default());
        world.look(pod(0), Duration::from_millis(10));
        pause(5).await;
        world.rounds.mark_changed("n");
        pause(10).await;
        assert_eq!(world.handed.lock().len(), 1);
        let known = world.look(pod(0), Duration::ZERO);
        assert!(matches!(known, RoundLookup::Stale(_)));
        pause(1_000).await;
        assert_eq!((world.judged(), world.handed.lock().len()), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn panicked_round_requeues_parked_requesters() {
        let world = Arc::new(World::default());
        let (_, starts) = world.rounds.look_up_round("n", pod(0));
        assert!(starts);
        let failing = Arc::clone(&world);
        let ended = tokio::spawn(async move {
            let judge = async { std::panic::resume_unwind(Box::new("as asked")) };
            let hand_back = |asker| failing.handed.lock().push(asker);
            failing.rounds.run_next_round("n", judge, hand_back).await;
        });
        assert!(ended.await.unwrap_err().is_panic());
        assert_eq!(*world.handed.lock(), [pod(0)]);
        world.look(pod(0), Duration::ZERO);
        pause(10).await;
        assert_eq!(world.judged(), 0, "the namespace rests");
        pause(2_000).await;
        assert_eq!(world.judged(), 1);
    }
}
