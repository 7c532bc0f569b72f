//! Records Events (core/v1) about objects, for people.
//!
//! One reason about one object is one Event with a count. The Event is written at most once a minute; occurrences
//! in between are written when the minute is over. For reasons whose texts differ in meaning, each text is an Event of
//! its own, up to a number for each object and reason. So a reason with many texts, such as the creation of Pods,
//! leaves room for the texts of other reasons. No code waits for an Event or depends on one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::params::{Patch, PostParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tracing::debug;

use super::request_path::ResourcePath;
use crate::api_request::{self, ApiFailure};
use crate::domain::pod::Pod;
use crate::tasks::Supervisor;

/// After this long without a new occurrence, an Event is not counted further. The next occurrence creates a new Event.
const AGGREGATION_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// The least time between two writes of the same Event.
const MIN_WRITE_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// How many Events are counted. If there are more, the oldest ones are forgotten.
const MAX_TRACKED_EVENTS: usize = 1_000;
/// How many texts of one reason about one object become Events of their own within [`MIN_WRITE_INTERVAL`]. Further
/// texts are counted by their reason.
const MAX_TEXTS_PER_REASON: usize = 20;
/// How many writes may wait. Further writes are dropped.
const WRITE_QUEUE_CAPACITY: usize = 1_000;
/// The time limit of each write.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a failed write is tried again, and the number of tries before it is dropped.
const RETRY_POLICY: (Duration, usize) = (Duration::from_secs(2), 4);
/// The most bytes of a message that the API server accepts.
const MAX_MESSAGE_BYTES: usize = 1_024;

/// How many delayed Events are written in one turn, so that other writes do not wait long.
const MAX_LATE_WRITES: usize = 20;

/// Records Events.
pub struct EventRecorder {
    state: Arc<AggregatorState>,
    writes: mpsc::Sender<EventRequest>,
    now: fn() -> Timestamp,
}

/// The recorded Events, and a notification for Events that are written later.
#[derive(Default)]
struct AggregatorState {
    all: Mutex<Aggregator>,
    late: Notify,
}

impl EventRecorder {
    /// Creates a recorder whose task ends with the recorder. Call it on a Tokio runtime.
    pub fn new(client: Client, now: fn() -> Timestamp) -> Arc<Self> {
        let (recorder, work) = EventRecorder::new_with_worker(client, now);
        tokio::spawn(work);
        recorder
    }

    /// Creates a recorder whose task is supervised. Call it on a Tokio runtime.
    pub fn new_supervised(
        client: Client,
        now: fn() -> Timestamp,
        supervisor: &Supervisor,
    ) -> Arc<Self> {
        let (recorder, work) = EventRecorder::new_with_worker(client, now);
        let stop = supervisor.stop().clone();
        supervisor.spawn_supervised("the writer of Events", async move {
            let work = async {
                work.await;
                // All recorders were dropped. Their tasks have ended for another reason, so this task must not be
                // reported as the fault.
                std::future::pending::<()>().await;
            };
            stop.run_until_cancelled(work).await;
        });
        recorder
    }

    fn new_with_worker(
        client: Client,
        now: fn() -> Timestamp,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let (writes, mut waiting) = mpsc::channel::<EventRequest>(WRITE_QUEUE_CAPACITY);
        let state = Arc::<AggregatorState>::default();
        let worker_state = Arc::clone(&state);
        let work = async move {
            // Writes that failed and are tried again. Other writes do not wait for them.
            let mut failed = VecDeque::<(Instant, EventRequest)>::new();
            loop {
                let due = worker_state.all.lock().next_due();
                let pause = due.map(|due| delay_until(due, now()));
                let again = failed.front().map(|(at, _)| *at);
                let writes = tokio::select! {
                    write = waiting.recv() => match write {
                        Some(write) => vec![write],
                        None => return,
                    },
                    () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {
                        let late = worker_state.all.lock().take_overdue(now());
                        late.iter().map(|(content, series)| content.to_request(series)).collect()
                    }
                    () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                        failed.pop_front().map(|(_, write)| write).into_iter().collect()
                    }
                    () = worker_state.late.notified() => Vec::new(),
                };
                for mut write in writes {
                    let is_sent = write.try_send_event(&client).await;
                    if !is_sent
                        && write.tries < RETRY_POLICY.1
                        && failed.len() < WRITE_QUEUE_CAPACITY
                    {
                        failed.push_back((Instant::now() + RETRY_POLICY.0, write));
                    }
                }
            }
        };
        let recorder = Arc::new(EventRecorder { state, writes, now });
        (recorder, work)
    }

    /// Records an Event about an object.
    pub fn record_event(
        &self,
        about: &ObjectReference,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        let content = EventContent::from_parts(about, warning, reason, message);
        self.enqueue_event(content, |all, uid, now| all.count_event(uid, reason, now));
    }

    /// Records an Event about an object for a reason whose texts differ in meaning, as those about a rollout do.
    pub fn record_distinct_event(
        &self,
        about: &ObjectReference,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        let content = EventContent::from_parts(about, warning, reason, message);
        self.enqueue_event(content, |all, uid, now| {
            all.count_distinct_event(uid, reason, message, now)
        });
    }

    fn enqueue_event(
        &self,
        content: EventContent,
        tell: impl FnOnce(&mut Aggregator, &str, Timestamp) -> Result<EventSeries, EventKey>,
    ) {
        let uid = content.about.uid.as_deref().unwrap_or_default();
        let mut all = self.state.all.lock();
        let series = match tell(&mut all, uid, (self.now)()) {
            Ok(series) => series,
            Err(key) => {
                all.store_late_event(&key, content);
                self.state.late.notify_one();
                return;
            }
        };
        drop(all);
        if self.writes.try_send(content.to_request(&series)).is_err() {
            let EventContent {
                reason, message, ..
            } = content;
            debug!(reason, message, "too many Events wait; dropped");
        }
    }
}

/// How long it is until `due`, at least one second.
fn delay_until(due: Timestamp, now: Timestamp) -> Duration {
    let remaining = Duration::try_from(due.duration_since(now)).unwrap_or_default();
    remaining.max(Duration::from_secs(1))
}

/// The content of an Event about an object.
#[derive(Debug)]
struct EventContent {
    about: ObjectReference,
    warning: bool,
    reason: String,
    message: String,
}

impl EventContent {
    fn from_parts(
        about: &ObjectReference,
        warning: bool,
        reason: &str,
        message: &str,
    ) -> EventContent {
        // A part of it may come from a tenant, such as the key of an annotation.
        let message = traffic::one_line(message);
        let end = message.floor_char_boundary(MAX_MESSAGE_BYTES.min(message.len()));
        EventContent {
            about: about.clone(),
            warning,
            reason: reason.to_owned(),
            message: message[..end].to_owned(),
        }
    }

    fn to_request(&self, series: &EventSeries) -> EventRequest {
        let about = &self.about;
        EventRequest {
            namespace: about.namespace.clone().unwrap_or_default(),
            name: event_name(about, series.number),
            again: series.count > 1,
            tries: 0,
            body: self.to_json(series),
        }
    }

    fn to_json(&self, series: &EventSeries) -> Value {
        let time = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let about = &self.about;
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "namespace": about.namespace, "name": event_name(about, series.number) },
            "involvedObject": about,
            "type": if self.warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "message": self.message,
            "count": series.count,
            "firstTimestamp": time(series.first),
            "lastTimestamp": time(series.last),
            "source": { "component": "operating" },
            "reportingComponent": "operating",
        })
    }
}

/// The object reference of an Event about a Pod.
pub fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.metadata.namespace.clone()),
        name: Some(pod.metadata.name.clone()),
        uid: Some(pod.metadata.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The count and the times of an Event to write.
#[derive(Debug, PartialEq)]
struct EventSeries {
    /// A random number that makes the name unique.
    number: u64,
    count: u32,
    first: Timestamp,
    last: Timestamp,
}

/// The UID of the object, and the text that identifies the Event: the reason, or the reason and the message.
type EventKey = (String, String);

#[derive(Debug, Default)]
struct Aggregator {
    tracked: HashMap<EventKey, TrackedEvent>,
}

#[derive(Debug)]
struct TrackedEvent {
    number: u64,
    count: u32,
    first: Timestamp,
    last: Timestamp,
    written: Timestamp,
    /// The last content that was recorded since the last write and is not written yet.
    late: Option<EventContent>,
}

impl Aggregator {
    /// Counts an occurrence. Returns the series to write, or the key under which the content is kept for a later write.
    fn count_event(
        &mut self,
        uid: &str,
        reason: &str,
        now: Timestamp,
    ) -> Result<EventSeries, EventKey> {
        let key = (uid.to_owned(), reason.to_owned());
        let known = self.tracked.get_mut(&key);
        let event = match known.filter(|event| now.duration_since(event.last) < AGGREGATION_WINDOW)
        {
            Some(event) => {
                (event.count, event.last) = (event.count.saturating_add(1), now);
                if now.duration_since(event.written) < MIN_WRITE_INTERVAL {
                    return Err(key);
                }
                (event.written, event.late) = (now, None);
                event
            }
            None => {
                self.evict_oldest(now);
                let event = TrackedEvent {
                    number: rand::random(),
                    count: 1,
                    first: now,
                    last: now,
                    written: now,
                    late: None,
                };
                self.tracked.entry(key).insert_entry(event).into_mut()
            }
        };
        Ok(event.to_series())
    }

    /// Keeps the content of an Event that may not be written yet.
    fn store_late_event(&mut self, key: &EventKey, content: EventContent) {
        if let Some(event) = self.tracked.get_mut(key) {
            event.late = Some(content);
        }
    }

    /// When the next delayed Event can be written. `None` if there is none.
    fn next_due(&self) -> Option<Timestamp> {
        let late = self.tracked.values().filter(|event| event.late.is_some());
        late.map(|event| {
            event
                .written
                .saturating_add(MIN_WRITE_INTERVAL)
                .unwrap_or(event.written)
        })
        .min()
    }

    /// Takes delayed Events that can be written now, up to [`MAX_LATE_WRITES`], and counts them as written.
    fn take_overdue(&mut self, now: Timestamp) -> Vec<(EventContent, EventSeries)> {
        let event = self.tracked.values_mut();
        let due = event.filter(|event| now.duration_since(event.written) >= MIN_WRITE_INTERVAL);
        let late = due.filter_map(|event| {
            let content = event.late.take()?;
            event.written = now;
            Some((content, event.to_series()))
        });
        late.take(MAX_LATE_WRITES).collect()
    }

    /// As [`Aggregator::count_event`], but the text counts as an Event of its own while the object has few texts of
    /// this reason.
    fn count_distinct_event(
        &mut self,
        uid: &str,
        reason: &str,
        text: &str,
        now: Timestamp,
    ) -> Result<EventSeries, EventKey> {
        let prefix = format!("{reason}: ");
        let key = format!("{prefix}{text}");
        let known = self.tracked.contains_key(&(uid.to_owned(), key.clone()));
        let is_like = |of: &str, key: &str| of == uid && key.starts_with(&prefix);
        let alike = self
            .tracked
            .iter()
            .filter(|((of, key), _)| is_like(of, key));
        let lately =
            alike.filter(|(_, event)| now.duration_since(event.first) < MIN_WRITE_INTERVAL);
        match known || lately.count() < MAX_TEXTS_PER_REASON {
            true => self.count_event(uid, &key, now),
            false => self.count_event(uid, reason, now),
        }
    }

    fn evict_oldest(&mut self, now: Timestamp) {
        if self.tracked.len() < MAX_TRACKED_EVENTS {
            return;
        }
        self.tracked
            .retain(|_, event| now.duration_since(event.last) < AGGREGATION_WINDOW);
        if self.tracked.len() >= MAX_TRACKED_EVENTS
            && let Some(oldest) = self.tracked.iter().min_by_key(|(_, s)| s.last)
        {
            let oldest = oldest.0.clone();
            self.tracked.remove(&oldest);
        }
    }
}

impl TrackedEvent {
    fn to_series(&self) -> EventSeries {
        EventSeries {
            number: self.number,
            count: self.count,
            first: self.first,
            last: self.last,
        }
    }
}

/// A request to write one Event.
struct EventRequest {
    namespace: String,
    name: String,
    /// Whether the Event should exist already.
    again: bool,
    /// How often the request was tried.
    tries: usize,
    body: Value,
}

impl EventRequest {
    /// Sends the request. Returns false if it should be tried again later.
    async fn try_send_event(&mut self, client: &Client) -> bool {
        self.tries += 1;
        let Err(failure) = api_request::within(CALL_TIMEOUT, self.send_event(client)).await else {
            return true;
        };
        debug!(event = %self.name, error = failure.text(), "an Event was not written");
        is_permanent_failure(&failure)
    }

    async fn send_event(&self, client: &Client) -> Result<(), Error> {
        let events = ResourcePath::from_parts("/api/v1", &self.namespace, "events")?;
        if self.again {
            let patch = json!({
                "count": self.body["count"],
                "lastTimestamp": self.body["lastTimestamp"],
                "message": self.body["message"],
            });
            let patch = events.patch(&self.name, None, &Patch::Merge(patch))?;
            match client.request::<Value>(patch).await {
                Err(Error::Api(status)) if status.code == 404 => {} // expired, or never written
                other => return other.map(|_| ()),
            }
        }
        let body = serde_json::to_vec(&self.body).map_err(Error::SerdeError)?;
        let create = events.create(&PostParams::default(), body)?;
        client.request::<Value>(create).await.map(|_| ())
    }
}

/// Whether the API server would give the same answer again. Errors by overload, failures of the API server and lost
/// connections are temporary.
fn is_permanent_failure(failure: &ApiFailure) -> bool {
    match failure {
        ApiFailure::Answered(status) => status.code != 429 && status.code < 500,
        ApiFailure::NoAnswer(_) => false,
        ApiFailure::Broken(error) => {
            matches!(error, Error::SerdeError(_) | Error::BuildRequest(_))
        }
    }
}

fn event_name(about: &ObjectReference, number: u64) -> String {
    let name = about.name.as_deref().unwrap_or_default();
    let most = 253 - 17; // a name has at most 253 letters
    format!("{}.{number:016x}", name.get(..most).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn reason_is_counted_and_written_once_per_minute() {
        let mut all = Aggregator::default();
        let first = all.count_event("a", "Scaled", at(0)).unwrap();
        assert_eq!(first.count, 1);
        assert!(all.count_event("a", "Other", at(1)).is_ok());
        assert!(all.count_event("b", "Scaled", at(1)).is_ok());
        assert!(all.count_event("a", "Scaled", at(1)).is_err());
        assert!(all.count_event("a", "Scaled", at(59)).is_err());
        let again = all.count_event("a", "Scaled", at(60)).unwrap();
        assert_eq!(
            (again.number, again.count, again.first),
            (first.number, 4, at(0))
        );
        assert!(all.count_event("a", "Scaled", at(61)).is_err());
        let another = all.count_event("a", "Scaled", at(61 + 600)).unwrap();
        assert_ne!(another.number, first.number);
        assert_eq!(another.count, 1);
    }

    #[test]
    fn each_text_is_an_event_while_there_are_few() {
        let mut all = Aggregator::default();
        let mut tell = |text: &str, at| all.count_distinct_event("a", "Promoted", text, at).is_ok();
        assert!(tell("step 1", at(0)));
        assert!(tell("step 2", at(1)));
        assert!(!tell("step 1", at(2)), "it counts");
        let series = (0..100).filter(|n| tell(&n.to_string(), at(3))).count();
        assert_eq!(
            series,
            MAX_TEXTS_PER_REASON - 2 + 1,
            "and one for all others"
        );
        assert!(tell("later", at(3 + 60)));
    }

    #[test]
    fn texts_of_one_reason_leave_room_for_those_of_others() {
        let mut all = Aggregator::default();
        for n in 0..100 {
            let created = format!("created {n}");
            let _ = all.count_distinct_event("set", "SuccessfulCreate", &created, at(n));
        }
        let mut tell = |text: &str| {
            let series = all.count_distinct_event("set", "Promoted", text, at(100));
            series.ok().map(|series| series.count)
        };
        assert_eq!(tell("step 1"), Some(1));
        assert_eq!(tell("step 2"), Some(1), "an Event of its own");
    }

    #[test]
    fn number_of_tracked_events_is_limited() {
        let mut all = Aggregator::default();
        for n in 0..2 * MAX_TRACKED_EVENTS {
            let _ = all.count_event(&n.to_string(), "Scaled", at(n as i64 / 100));
        }
        assert_eq!(all.tracked.len(), MAX_TRACKED_EVENTS);
        let last = (2 * MAX_TRACKED_EVENTS - 1).to_string();
        assert!(all.count_event(&last, "Scaled", at(20)).is_err());
    }

    #[test]
    fn long_message_is_cut_between_letters() {
        let about = ObjectReference {
            name: Some("web".into()),
            ..ObjectReference::default()
        };
        let series = Aggregator::default()
            .count_event("a", "Scaled", at(0))
            .unwrap();
        let event =
            EventContent::from_parts(&about, true, "Scaled", &"ü".repeat(2_000)).to_json(&series);
        assert_eq!(event["message"].as_str().unwrap().len(), MAX_MESSAGE_BYTES);
        let odd = format!("x{}", "ü".repeat(2_000));
        let odd = EventContent::from_parts(&about, true, "Scaled", &odd).to_json(&series);
        assert_eq!(
            odd["message"].as_str().unwrap().len(),
            MAX_MESSAGE_BYTES - 1
        );
        assert_eq!(event["type"], "Warning");
    }

    /// Tenants choose parts of messages, such as the keys of annotations.
    #[test]
    fn message_has_no_characters_that_control_the_reader() {
        let about = ObjectReference::default();
        let message = "kind Evil\u{1b}[31mred\nroot: \u{202e}txt is not served";
        let content = EventContent::from_parts(&about, true, "Waits", message);
        assert_eq!(content.message, "kind Evil [31mred root: txt is not served");
    }

    #[test]
    fn repeated_text_is_written_after_the_interval() {
        let content = |text: &str| EventContent {
            about: ObjectReference::default(),
            warning: false,
            reason: "RolloutStarted".into(),
            message: text.into(),
        };
        let mut all = Aggregator::default();
        let tell = |all: &mut Aggregator, text: &str, at| match all.count_distinct_event(
            "a",
            "RolloutStarted",
            text,
            at,
        ) {
            Ok(_) => true,
            Err(key) => {
                all.store_late_event(&key, content(text));
                false
            }
        };
        assert!(tell(&mut all, "one", at(0)) && tell(&mut all, "two", at(10)));
        assert_eq!(all.next_due(), None, "nothing is left to write");
        assert!(!tell(&mut all, "one", at(20)) && !tell(&mut all, "two", at(30)));
        assert!(!tell(&mut all, "one", at(40)));
        assert_eq!(all.next_due(), Some(at(60)));
        assert!(all.take_overdue(at(59)).is_empty());
        let late = all.take_overdue(at(60));
        assert_eq!(late.len(), 1);
        let (series, said) = (&late[0].1, &late[0].0.message);
        assert_eq!((&**said, series.count, series.last), ("one", 3, at(40)));
        assert!(all.take_overdue(at(61)).is_empty(), "each once");
        let late = all.take_overdue(at(70));
        assert_eq!((late.len(), late[0].1.last), (1, at(30)));
        assert_eq!(all.next_due(), None);
        assert!(!tell(&mut all, "one", at(80)), "once a period");
        assert!(tell(&mut all, "one", at(120)));
        assert_eq!(all.next_due(), None, "it has been written");
    }
}
