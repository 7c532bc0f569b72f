//! Records when each watch last received anything, for metrics and the watchdog, and which position it has reached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::watch::{CatchUpSignal, UnreadableObjects, WatchSink};

/// After this long without reaching a position, a watch is asked to catch up.
const CATCH_UP_AFTER: Duration = Duration::from_millis(400);

/// The health of all watches.
#[derive(Debug, Default)]
pub struct WatchRegistry(Mutex<Vec<Arc<WatchHealth>>>);

#[derive(Debug)]
pub struct WatchHealth {
    path: &'static str,
    resource: &'static str,
    /// The resourceVersion up to which all events have been delivered.
    position: watch::Sender<u64>,
    catch_up: CatchUpSignal,
    times: Mutex<ActivityTimes>,
}

#[derive(Clone, Copy, Debug)]
struct ActivityTimes {
    heard: Instant,
    moved: Instant,
}

/// How long ago one watch was last active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchAge {
    /// The watched resource, by its plural name in API paths, such as `pods`.
    pub resource: &'static str,
    /// How long ago the API server last sent a list, an event or a bookmark. If it never did: the time since the start.
    pub heard: Duration,
    /// How long ago the task of the watch last did anything, including a failed attempt.
    pub moved: Duration,
}

impl WatchRegistry {
    /// Adds a watch of an API path.
    pub(super) fn register_watch(
        &self,
        path: &'static str,
        catch_up: CatchUpSignal,
    ) -> Arc<WatchHealth> {
        let now = Instant::now();
        let health = Arc::new(WatchHealth {
            path,
            position: watch::Sender::default(),
            catch_up,
            resource: path.rsplit('/').next().unwrap_or(path),
            times: Mutex::new(ActivityTimes {
                heard: now,
                moved: now,
            }),
        });
        self.0.lock().push(Arc::clone(&health));
        health
    }

    /// The health of the watch of an API path, if there is such a watch.
    pub(super) fn find_by_path(&self, path: &str) -> Option<Arc<WatchHealth>> {
        let registry = self.0.lock();
        registry.iter().find(|health| health.path == path).cloned()
    }

    /// How long ago each watch was last active, at `now`.
    pub fn watch_ages(&self, now: Instant) -> Vec<WatchAge> {
        let age = |health: &Arc<WatchHealth>| {
            let times = *health.times.lock();
            WatchAge {
                resource: health.resource,
                heard: now.saturating_duration_since(times.heard),
                moved: now.saturating_duration_since(times.moved),
            }
        };
        self.0.lock().iter().map(age).collect()
    }
}

impl WatchHealth {
    /// The watched resource, as in [`WatchAge::resource`].
    pub(super) fn resource(&self) -> &'static str {
        self.resource
    }

    /// Returns when all events up to this version have been delivered.
    pub(super) async fn wait_delivered(&self, version: u64) {
        let mut position = self.position.subscribe();
        loop {
            let reached = position.wait_for(|position| *position >= version);
            if tokio::time::timeout(CATCH_UP_AFTER, reached).await.is_ok() {
                return;
            }
            self.catch_up.request_catch_up(version);
        }
    }

    fn raise_position(&self, version: u64) {
        self.position.send_if_modified(|position| {
            let further = version > *position;
            *position = version.max(*position);
            further
        });
    }

    fn record_heard(&self) {
        let now = Instant::now();
        *self.times.lock() = ActivityTimes {
            heard: now,
            moved: now,
        };
    }

    fn record_activity(&self) {
        self.times.lock().moved = Instant::now();
    }
}

/// A sink that records the health of its watch. It records after the delivery, so that a delivery that never returns is
/// noticed.
pub(super) struct MonitoredSink<S> {
    pub sink: Arc<S>,
    pub health: Arc<WatchHealth>,
}

impl<T, S: WatchSink<T>> WatchSink<T> for MonitoredSink<S> {
    fn parse(&self, raw: &str) -> serde_json::Result<T> {
        self.sink.parse(raw)
    }
    fn replace(&self, objects: Vec<T>, version: u64) {
        self.sink.replace(objects, version);
        self.health.raise_position(version);
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
    fn parse_unreadable(&self, raw: &str) -> Option<T> {
        self.sink.parse_unreadable(raw)
    }
    fn find_fault(&self, object: &T) -> Option<String> {
        self.sink.find_fault(object)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        self.sink.unreadable_objects()
    }
    fn on_kind_absent(&self) -> bool {
        let is_news = self.sink.on_kind_absent();
        if is_news {
            self.health.record_heard();
        }
        is_news
    }
    fn on_heard(&self, version: u64) {
        self.sink.on_heard(version);
        self.health.raise_position(version);
        self.health.record_heard();
    }
    fn on_known_at(&self, at: tokio::time::Instant) {
        self.sink.on_known_at(at);
    }
    fn on_lost(&self) {
        self.sink.on_lost();
    }
    fn on_attempt_ended(&self) {
        self.sink.on_attempt_ended();
        self.health.record_activity();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct NoopSink;

    impl WatchSink<u8> for NoopSink {
        fn parse(&self, raw: &str) -> serde_json::Result<u8> {
            serde_json::from_str(raw)
        }
        fn replace(&self, _objects: Vec<u8>, _version: u64) {}
        fn apply(&self, _object: u8) {}
        fn delete(&self, _object: u8) {}
        fn bookmark(&self, _version: u64) {}
        fn parse_unreadable(&self, _raw: &str) -> Option<u8> {
            None
        }
    }

    /// Whether `act` counts as heard, and whether it counts as activity.
    fn observed_activity(act: impl Fn(&MonitoredSink<NoopSink>)) -> (bool, bool) {
        let registry = WatchRegistry::default();
        let health = registry.register_watch("/api/v1/pods", CatchUpSignal::default());
        let long_ago = Instant::now();
        *health.times.lock() = ActivityTimes {
            heard: long_ago,
            moved: long_ago,
        };
        while Instant::now() == long_ago {}
        act(&MonitoredSink {
            sink: Arc::new(NoopSink),
            health: Arc::clone(&health),
        });
        let times = *health.times.lock();
        (times.heard > long_ago, times.moved > long_ago)
    }

    #[test]
    fn received_delivery_also_counts_as_activity() {
        assert_eq!(observed_activity(|felt| felt.on_heard(1)), (true, true));
    }

    #[test]
    fn failed_attempt_moves_and_is_not_heard() {
        assert_eq!(
            observed_activity(|felt| felt.on_attempt_ended()),
            (false, true)
        );
    }

    #[test]
    fn kind_that_is_not_served_is_not_heard() {
        let absent = |felt: &MonitoredSink<NoopSink>| assert!(!felt.on_kind_absent());
        assert_eq!(observed_activity(absent), (false, false));
    }

    #[tokio::test(start_paused = true)]
    async fn position_is_that_of_lists_and_of_what_is_heard() {
        let registry = WatchRegistry::default();
        let health = registry.register_watch("/api/v1/pods", CatchUpSignal::default());
        let felt = MonitoredSink {
            sink: Arc::new(NoopSink),
            health: Arc::clone(&health),
        };
        felt.replace(Vec::new(), 5);
        assert_eq!(
            registry
                .find_by_path("/api/v1/pods")
                .unwrap()
                .wait_delivered(5)
                .await,
            ()
        );
        assert!(registry.find_by_path("/api/v1/nodes").is_none());
        let waiting = tokio::spawn(async move { health.wait_delivered(7).await });
        tokio::time::sleep(4 * CATCH_UP_AFTER).await;
        assert!(!waiting.is_finished());
        felt.on_heard(6);
        tokio::time::sleep(4 * CATCH_UP_AFTER).await;
        assert!(!waiting.is_finished());
        felt.on_heard(7);
        waiting.await.unwrap();
    }

    #[test]
    fn ages_grow_and_name_the_resource() {
        let registry = WatchRegistry::default();
        registry.register_watch("/apis/apps/v1/replicasets", CatchUpSignal::default());
        let later = Instant::now() + Duration::from_secs(60);
        let ages = registry.watch_ages(later);
        assert_eq!(ages[0].resource, "replicasets");
        assert!(ages[0].heard >= Duration::from_secs(60));
    }
}
