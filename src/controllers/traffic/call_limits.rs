//! Bounds the calls of each adapter: at most so many in each second and so many at a time, over all employers. Employers
//! that must wait get their calls in turn, one namespace after the other, so that a namespace with many employers, or a
//! load balancer that does not answer, does not keep the others from theirs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::domain::traffic::names::EmployerName;

/// Calls of one adapter that are under way at a time.
const AT_ONCE: usize = 4;
/// Calls of all adapters that are under way at a time. The controller has 16 workers, and one namespace gets half
/// of them, so that some are always left for employers whose adapters make no calls.
const ALL_AT_ONCE: usize = 6;
/// How long a call is kept for an employer whose turn it is.
const TURN: Duration = Duration::from_secs(2);
/// The pause before an employer asks again that waits for the end of other calls.
const BUSY: Duration = Duration::from_millis(500);

/// The calls that each adapter may make.
#[derive(Clone, Default)]
pub struct CallLimits(Arc<Mutex<AllCalls>>);

#[derive(Default)]
struct AllCalls {
    under_way: usize,
    adapters: HashMap<String, AdapterCalls>,
}

struct AdapterCalls {
    /// Calls that may begin now; those of one second at most.
    free: f64,
    filled: Instant,
    under_way: usize,
    /// Who waits, by namespace, in the order in which they asked.
    waiting: BTreeMap<String, VecDeque<EmployerName>>,
    /// The namespace that had the last turn.
    last: String,
    /// Employers whose turn it is, and until when.
    turns: HashMap<EmployerName, Instant>,
}

/// A call that may be made now. Dropping it ends the call.
pub struct CallPermit {
    limits: CallLimits,
    adapter: String,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut all = self.limits.0.lock();
        all.under_way = all.under_way.saturating_sub(1);
        if let Some(calls) = all.adapters.get_mut(&self.adapter) {
            calls.under_way = calls.under_way.saturating_sub(1);
        }
    }
}

impl CallLimits {
    /// Takes one call of an adapter that may make `per_second`. If it is not the turn of the employer, returns the time
    /// after which it should ask again.
    pub fn take(
        &self,
        adapter: &str,
        employer: &EmployerName,
        per_second: u32,
        now: Instant,
    ) -> Result<CallPermit, Duration> {
        let rate = f64::from(per_second.max(1));
        let mut all = self.0.lock();
        let others = ALL_AT_ONCE.saturating_sub(all.under_way);
        let calls = all
            .adapters
            .entry(adapter.to_owned())
            .or_insert_with(|| AdapterCalls::new(rate, now));
        calls.refill(rate, now);
        calls.give_turns(others, now);
        let has_turn = calls.turns.remove(employer).is_some();
        if !has_turn {
            if !calls.waiting.is_empty() || !calls.has_room(others) {
                return Err(calls.wait_for_turn(employer, rate));
            }
            calls.free -= 1.0;
        }
        calls.under_way += 1;
        all.under_way += 1;
        Ok(CallPermit {
            limits: self.clone(),
            adapter: adapter.to_owned(),
        })
    }
}

impl AdapterCalls {
    fn new(rate: f64, now: Instant) -> AdapterCalls {
        AdapterCalls {
            free: rate,
            filled: now,
            under_way: 0,
            waiting: BTreeMap::new(),
            last: String::new(),
            turns: HashMap::new(),
        }
    }

    fn refill(&mut self, rate: f64, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.free = (self.free + passed * rate).min(rate);
        self.filled = now;
    }

    /// Whether another call may begin, if `all` calls of all adapters may.
    fn has_room(&self, all: usize) -> bool {
        let turns = self.turns.len();
        self.free >= 1.0 && self.under_way + turns < AT_ONCE && turns < all
    }

    /// Gives the free calls to those who wait.
    fn give_turns(&mut self, all: usize, now: Instant) {
        self.turns.retain(|_, until| now < *until);
        while self.has_room(all) {
            let Some(employer) = self.next_waiting() else {
                return;
            };
            self.free -= 1.0;
            self.turns.insert(employer, now + TURN);
        }
    }

    fn next_waiting(&mut self) -> Option<EmployerName> {
        let after_last = (
            std::ops::Bound::Excluded(&self.last),
            std::ops::Bound::Unbounded,
        );
        let mut after = self.waiting.range::<String, _>(after_last);
        let (namespace, _) = after.next().or_else(|| self.waiting.first_key_value())?;
        self.last = namespace.clone();
        let queue = self.waiting.get_mut(&self.last)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&self.last);
        }
        next
    }

    /// Puts an employer in line, unless it is. Returns about how long it will wait.
    fn wait_for_turn(&mut self, employer: &EmployerName, rate: f64) -> Duration {
        let queue = self.waiting.entry(employer.namespace.clone()).or_default();
        let present = queue.iter().position(|waiting| waiting == employer);
        let place = present.unwrap_or_else(|| {
            queue.push_back(employer.clone());
            queue.len() - 1
        });
        let ahead = self
            .waiting
            .values()
            .map(|queue| queue.len().min(place + 1));
        let ahead: usize = ahead.sum();
        let ahead = f64::from(u32::try_from(ahead).unwrap_or(u32::MAX));
        let wait = Duration::from_secs_f64((ahead - self.free).max(0.0) / rate);
        match self.free >= 1.0 {
            true => wait.max(BUSY), // calls are under way
            false => wait,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn employer(namespace: &str, name: &str) -> EmployerName {
        EmployerName::new("Service", namespace, name)
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_adapter_are_bounded() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        let take = |adapter, after| limits.take(adapter, &employer("shop", "web"), 2, now + after);
        assert!(take("a", seconds(0.0)).is_ok());
        assert!(take("a", seconds(0.0)).is_ok());
        assert_eq!(take("a", seconds(0.0)).err(), Some(seconds(0.5)));
        assert!(take("b", seconds(0.0)).is_ok(), "each adapter has its own");
        assert!(take("a", seconds(0.5)).is_ok());
        assert!(take("a", seconds(0.5)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_have_their_calls_in_turn() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        let take = |name: &EmployerName, at| limits.take("a", name, 1, now + seconds(at));
        let many: Vec<_> = (0..50).map(|n| employer("many", &n.to_string())).collect();
        for name in &many {
            drop(take(name, 0.0));
        }
        let one = employer("one", "web");
        let wait = take(&one, 0.0).err();
        assert_eq!(
            wait,
            Some(seconds(2.0)),
            "one of the other namespace is ahead"
        );
        let served = |at: f64| many.iter().filter(|name| take(name, at).is_ok()).count();
        assert_eq!(served(1.0), 1);
        assert!(take(&one, 2.0).is_ok());
        assert_eq!(served(3.0), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_not_answered_leave_room() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        let names: Vec<_> = (0..5).map(|n| employer("shop", &n.to_string())).collect();
        let mut permits: Vec<_> = names[..4]
            .iter()
            .map(|name| limits.take("a", name, 100, now).ok())
            .collect();
        assert!(permits.iter().all(Option::is_some));
        assert_eq!(limits.take("a", &names[4], 100, now).err(), Some(BUSY));
        permits.pop();
        assert!(limits.take("a", &names[4], 100, now).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn adapters_that_do_not_answer_leave_workers() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        let web = employer("shop", "web");
        let mut permits = Vec::new();
        for adapter in ["a", "a", "a", "b", "b", "b"] {
            permits.push(limits.take(adapter, &web, 100, now).ok().unwrap());
        }
        assert_eq!(limits.take("c", &web, 100, now).err(), Some(BUSY));
        permits.pop();
        assert!(limits.take("c", &web, 100, now).is_ok());
    }

    /// Whoever does not come when it is its turn keeps nobody waiting for long.
    #[tokio::test(start_paused = true)]
    async fn turns_end() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        let (gone, web) = (employer("shop", "gone"), employer("shop", "web"));
        let take = |name: &EmployerName, at| limits.take("a", name, 1, now + seconds(at));
        drop(take(&web, 0.0));
        assert!(take(&gone, 0.0).is_err());
        assert!(take(&web, 1.0).is_err(), "it is the turn of the other");
        assert!(take(&web, 3.0).is_ok());
    }
}
