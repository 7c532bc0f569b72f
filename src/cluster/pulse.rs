//! When each watch was last heard of, for metrics and the watchdog, and how far it has come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::watch::{CatchUp, Sink, UnreadableObjects};

/// A watch that trails for this long is asked to catch up.
const PATIENCE: Duration = Duration::from_millis(400);

/// The pulses of all watches.
#[derive(Debug, Default)]
pub struct Pulses(Mutex<Vec<Arc<Pulse>>>);

/// The pulse of one watch.
#[derive(Debug)]
pub struct Pulse {
    path: &'static str,
    resource: &'static str,
    /// The version up to which all has been delivered.
    position: watch::Sender<u64>,
    catch_up: CatchUp,
    times: Mutex<Times>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    heard: Instant,
    moved: Instant,
}

/// How one watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// What is watched, as the API server calls it in paths: `pods`.
    pub resource: &'static str,
    /// How long ago the API server last sent a list, an event or a bookmark; since the start if it never did.
    pub heard: Duration,
    /// How long ago the task of the watch last did anything, a failed attempt included.
    pub moved: Duration,
}

impl Pulses {
    /// Adds a watch of an API path.
    pub(super) fn add(&self, path: &'static str, catch_up: CatchUp) -> Arc<Pulse> {
        let now = Instant::now();
        let pulse = Arc::new(Pulse {
            path,
            position: watch::Sender::default(),
            catch_up,
            resource: path.rsplit('/').next().unwrap_or(path),
            times: Mutex::new(Times {
                heard: now,
                moved: now,
            }),
        });
        self.0.lock().push(Arc::clone(&pulse));
        pulse
    }

    /// The pulse of the watch of an API path, if there is one.
    pub(super) fn of(&self, path: &str) -> Option<Arc<Pulse>> {
        let pulses = self.0.lock();
        pulses.iter().find(|pulse| pulse.path == path).cloned()
    }

    /// How all watches are at `now`.
    pub fn ages(&self, now: Instant) -> Vec<Age> {
        let age = |pulse: &Arc<Pulse>| {
            let times = *pulse.times.lock();
            Age {
                resource: pulse.resource,
                heard: now.saturating_duration_since(times.heard),
                moved: now.saturating_duration_since(times.moved),
            }
        };
        self.0.lock().iter().map(age).collect()
    }
}

impl Pulse {
    /// What is watched, as in [`Age::resource`].
    pub(super) fn resource(&self) -> &'static str {
        self.resource
    }

    /// Returns when all up to this version has been delivered.
    pub(super) async fn reach(&self, version: u64) {
        let mut position = self.position.subscribe();
        loop {
            let reached = position.wait_for(|position| *position >= version);
            if tokio::time::timeout(PATIENCE, reached).await.is_ok() {
                return;
            }
            self.catch_up.to(version);
        }
    }

    fn come_to(&self, version: u64) {
        self.position.send_if_modified(|position| {
            let further = version > *position;
            *position = version.max(*position);
            further
        });
    }

    fn hear(&self) {
        let now = Instant::now();
        *self.times.lock() = Times {
            heard: now,
            moved: now,
        };
    }

    fn move_on(&self) {
        self.times.lock().moved = Instant::now();
    }
}

/// A sink whose pulse is felt. The pulse follows the delivery, so that one that never returns is noticed.
pub(super) struct Felt<S> {
    pub sink: Arc<S>,
    pub pulse: Arc<Pulse>,
}

impl<T, S: Sink<T>> Sink<T> for Felt<S> {
    fn parse(&self, raw: &str) -> serde_json::Result<T> {
        self.sink.parse(raw)
    }
    fn replace(&self, objects: Vec<T>, version: u64) {
        self.sink.replace(objects, version);
        self.pulse.come_to(version);
    }
    fn apply(&self, object: T) {
        self.sink.apply(object);
    }
    fn delete(&self, object: T) {
        self.sink.delete(object);
    }
    fn bookmark(&self, version: u64) {
        self.sink.bookmark(version);
    }
    fn unreadable(&self, raw: &str) -> Option<T> {
        self.sink.unreadable(raw)
    }
    fn fault(&self, object: &T) -> Option<String> {
        self.sink.fault(object)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        self.sink.unreadable_objects()
    }
    fn absent(&self) -> bool {
        let is_news = self.sink.absent();
        if is_news {
            self.pulse.hear();
        }
        is_news
    }
    fn heard(&self, version: u64) {
        self.sink.heard(version);
        self.pulse.come_to(version);
        self.pulse.hear();
    }
    fn known(&self, at: tokio::time::Instant) {
        self.sink.known(at);
    }
    fn lost(&self) {
        self.sink.lost();
    }
    fn ended(&self) {
        self.sink.ended();
        self.pulse.move_on();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Nothing;

    impl Sink<u8> for Nothing {
        fn parse(&self, raw: &str) -> serde_json::Result<u8> {
            serde_json::from_str(raw)
        }
        fn replace(&self, _objects: Vec<u8>, _version: u64) {}
        fn apply(&self, _object: u8) {}
        fn delete(&self, _object: u8) {}
        fn bookmark(&self, _version: u64) {}
        fn unreadable(&self, _raw: &str) -> Option<u8> {
            None
        }
    }

    /// Whether the watch was heard of, and whether it moved, by this.
    fn felt(act: impl Fn(&Felt<Nothing>)) -> (bool, bool) {
        let pulses = Pulses::default();
        let pulse = pulses.add("/api/v1/pods", CatchUp::default());
        let long_ago = Instant::now();
        *pulse.times.lock() = Times {
            heard: long_ago,
            moved: long_ago,
        };
        while Instant::now() == long_ago {}
        act(&Felt {
            sink: Arc::new(Nothing),
            pulse: Arc::clone(&pulse),
        });
        let times = *pulse.times.lock();
        (times.heard > long_ago, times.moved > long_ago)
    }

    #[test]
    fn what_is_heard_has_moved() {
        assert_eq!(felt(|felt| felt.heard(1)), (true, true));
    }

    #[test]
    fn failed_attempt_moves_and_is_not_heard() {
        assert_eq!(felt(|felt| felt.ended()), (false, true));
    }

    #[test]
    fn kind_that_is_not_served_is_not_heard() {
        let absent = |felt: &Felt<Nothing>| assert!(!felt.absent());
        assert_eq!(felt(absent), (false, false));
    }

    #[tokio::test(start_paused = true)]
    async fn position_is_that_of_lists_and_of_what_is_heard() {
        let pulses = Pulses::default();
        let pulse = pulses.add("/api/v1/pods", CatchUp::default());
        let felt = Felt {
            sink: Arc::new(Nothing),
            pulse: Arc::clone(&pulse),
        };
        felt.replace(Vec::new(), 5);
        assert_eq!(pulses.of("/api/v1/pods").unwrap().reach(5).await, ());
        assert!(pulses.of("/api/v1/nodes").is_none());
        let waiting = tokio::spawn(async move { pulse.reach(7).await });
        tokio::time::sleep(4 * PATIENCE).await;
        assert!(!waiting.is_finished());
        felt.heard(6);
        tokio::time::sleep(4 * PATIENCE).await;
        assert!(!waiting.is_finished());
        felt.heard(7);
        waiting.await.unwrap();
    }

    #[test]
    fn ages_grow_and_name_the_resource() {
        let pulses = Pulses::default();
        pulses.add("/apis/apps/v1/replicasets", CatchUp::default());
        let later = Instant::now() + Duration::from_secs(60);
        let ages = pulses.ages(later);
        assert_eq!(ages[0].resource, "replicasets");
        assert!(ages[0].heard >= Duration::from_secs(60));
    }
}
