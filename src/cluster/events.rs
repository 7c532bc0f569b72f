//! Events (core/v1) about objects, for people. The same reason about the same object is one Event that counts, written
//! at most once a minute. Where each text matters, another text is another Event, up to a number for each object and reason: many
//! texts of one reason, such as Pods that are created, leave room for those of others. Nothing waits for an Event, and nothing depends on one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::params::{Patch, PostParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use super::path::Objects;
use crate::domain::pod::Pod;
use crate::tasks::Supervisor;

/// An Event that was last told of longer ago is not counted on: another is made.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// An Event is written again at most this often.
const PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// Events that are counted on; beyond that the oldest are forgotten.
const MOST: usize = 1_000;
/// Texts of one reason about one object that are Events of their own within a [`PERIOD`]; further ones count by their reason.
const TEXTS: usize = 20;
/// Writes that wait; beyond that they are dropped.
const WAITING: usize = 256;
/// No single write takes longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a message that the API server takes.
const MESSAGE: usize = 1_024;

/// Records Events.
pub struct Recorder {
    seen: Mutex<Aggregator>,
    writes: mpsc::Sender<Write>,
    now: fn() -> Timestamp,
}

impl Recorder {
    /// A recorder with its own task, which ends with it. To be called on a runtime.
    pub fn new(client: Client, now: fn() -> Timestamp) -> Arc<Self> {
        let (recorder, work) = Recorder::with_work(client, now);
        tokio::spawn(work);
        recorder
    }

    /// A recorder whose task is supervised. To be called on a runtime.
    pub fn supervised(
        client: Client,
        now: fn() -> Timestamp,
        supervisor: &Supervisor,
    ) -> Arc<Self> {
        let (recorder, work) = Recorder::with_work(client, now);
        let stop = supervisor.stop().clone();
        supervisor.keep("the writer of Events", async move {
            stop.run_until_cancelled(work).await;
        });
        recorder
    }

    fn with_work(
        client: Client,
        now: fn() -> Timestamp,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let (writes, mut waiting) = mpsc::channel::<Write>(WAITING);
        let work = async move {
            while let Some(write) = waiting.recv().await {
                match tokio::time::timeout(CALL_TIMEOUT, write.send(&client)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => {
                        debug!(event = %write.name, error = super::failure::text(&e), "an Event was not written")
                    }
                    Err(_) => debug!(event = %write.name, "an Event was not written in time"),
                }
            }
        };
        let recorder = Arc::new(Recorder {
            seen: Mutex::default(),
            writes,
            now,
        });
        (recorder, work)
    }

    /// Tells of something about an object.
    pub fn record(&self, about: &ObjectReference, warning: bool, reason: &str, message: &str) {
        let (uid, now) = (about.uid.as_deref().unwrap_or_default(), (self.now)());
        let told = self.seen.lock().tell(uid, reason, now);
        self.write(about, warning, reason, message, told);
    }

    /// Tells of something about an object whose texts each tell of something else, as those about a rollout do.
    pub fn record_text(&self, about: &ObjectReference, warning: bool, reason: &str, message: &str) {
        let (uid, now) = (about.uid.as_deref().unwrap_or_default(), (self.now)());
        let told = self.seen.lock().tell_text(uid, reason, message, now);
        self.write(about, warning, reason, message, told);
    }

    fn write(
        &self,
        about: &ObjectReference,
        warning: bool,
        reason: &str,
        message: &str,
        told: Option<Told>,
    ) {
        let Some(told) = told else {
            return;
        };
        let write = Write {
            namespace: about.namespace.clone().unwrap_or_default(),
            name: name(about, told.number),
            again: told.count > 1,
            body: body(about, warning, reason, message, &told),
        };
        if self.writes.try_send(write).is_err() {
            debug!(reason, message, "too many Events wait; dropped");
        }
    }
}

/// What an Event about a Pod refers to.
pub fn about_pod(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.metadata.namespace.clone()),
        name: Some(pod.metadata.name.clone()),
        uid: Some(pod.metadata.uid.clone()),
        ..ObjectReference::default()
    }
}

/// What to write.
#[derive(Debug, PartialEq)]
struct Told {
    /// Makes the name unique.
    number: u64,
    count: u32,
    first: Timestamp,
    last: Timestamp,
}

#[derive(Debug, Default)]
struct Aggregator {
    seen: HashMap<(String, String), Seen>,
}

#[derive(Debug)]
struct Seen {
    number: u64,
    count: u32,
    first: Timestamp,
    last: Timestamp,
    written: Timestamp,
}

impl Aggregator {
    /// Counts; what to write, if anything.
    fn tell(&mut self, uid: &str, reason: &str, now: Timestamp) -> Option<Told> {
        let key = (uid.to_owned(), reason.to_owned());
        let known = self.seen.get_mut(&key);
        let seen = match known.filter(|seen| now.duration_since(seen.last) < WINDOW) {
            Some(seen) => {
                (seen.count, seen.last) = (seen.count.saturating_add(1), now);
                if now.duration_since(seen.written) < PERIOD {
                    return None;
                }
                seen.written = now;
                seen
            }
            None => {
                self.make_room(now);
                let seen = Seen {
                    number: rand::random(),
                    count: 1,
                    first: now,
                    last: now,
                    written: now,
                };
                self.seen.entry(key).insert_entry(seen).into_mut()
            }
        };
        Some(Told {
            number: seen.number,
            count: seen.count,
            first: seen.first,
            last: now,
        })
    }

    /// As [`Aggregator::tell`], for a text by itself while there are few of its object and reason.
    fn tell_text(&mut self, uid: &str, reason: &str, text: &str, now: Timestamp) -> Option<Told> {
        let prefix = format!("{reason}: ");
        let key = format!("{prefix}{text}");
        let known = self.seen.contains_key(&(uid.to_owned(), key.clone()));
        let is_like = |of: &str, key: &str| of == uid && key.starts_with(&prefix);
        let alike = self.seen.iter().filter(|((of, key), _)| is_like(of, key));
        let lately = alike.filter(|(_, seen)| now.duration_since(seen.first) < PERIOD);
        match known || lately.count() < TEXTS {
            true => self.tell(uid, &key, now),
            false => self.tell(uid, reason, now),
        }
    }

    fn make_room(&mut self, now: Timestamp) {
        if self.seen.len() < MOST {
            return;
        }
        self.seen
            .retain(|_, seen| now.duration_since(seen.last) < WINDOW);
        if self.seen.len() >= MOST
            && let Some(oldest) = self.seen.iter().min_by_key(|(_, s)| s.last)
        {
            let oldest = oldest.0.clone();
            self.seen.remove(&oldest);
        }
    }
}

/// One request.
struct Write {
    namespace: String,
    name: String,
    /// Whether the Event should be there already.
    again: bool,
    body: Value,
}

impl Write {
    async fn send(&self, client: &Client) -> Result<(), Error> {
        let events = Objects::of("/api/v1", &self.namespace, "events")?;
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

fn name(about: &ObjectReference, number: u64) -> String {
    let name = about.name.as_deref().unwrap_or_default();
    let most = 253 - 17; // a name has at most 253 letters
    format!("{}.{number:016x}", name.get(..most).unwrap_or(name))
}

fn body(about: &ObjectReference, warning: bool, reason: &str, message: &str, told: &Told) -> Value {
    let end = message.floor_char_boundary(MESSAGE.min(message.len()));
    let time = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "namespace": about.namespace, "name": name(about, told.number) },
        "involvedObject": about,
        "type": if warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": &message[..end],
        "count": told.count,
        "firstTimestamp": time(told.first),
        "lastTimestamp": time(told.last),
        "source": { "component": "operating" },
        "reportingComponent": "operating",
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_reason_is_counted_and_written_once_a_minute() {
        let mut all = Aggregator::default();
        let first = all.tell("a", "Scaled", at(0)).unwrap();
        assert_eq!(first.count, 1);
        assert!(all.tell("a", "Other", at(1)).is_some());
        assert!(all.tell("b", "Scaled", at(1)).is_some());
        assert_eq!(all.tell("a", "Scaled", at(1)), None);
        assert_eq!(all.tell("a", "Scaled", at(59)), None);
        let again = all.tell("a", "Scaled", at(60)).unwrap();
        assert_eq!(
            (again.number, again.count, again.first),
            (first.number, 4, at(0))
        );
        assert_eq!(all.tell("a", "Scaled", at(61)), None);
        let another = all.tell("a", "Scaled", at(61 + 600)).unwrap();
        assert_ne!(another.number, first.number);
        assert_eq!(another.count, 1);
    }

    #[test]
    fn each_text_is_an_event_while_there_are_few() {
        let mut all = Aggregator::default();
        let mut tell = |text: &str, at| all.tell_text("a", "Promoted", text, at).is_some();
        assert!(tell("step 1", at(0)));
        assert!(tell("step 2", at(1)));
        assert!(!tell("step 1", at(2)), "it counts");
        let told = (0..100).filter(|n| tell(&n.to_string(), at(3))).count();
        assert_eq!(told, TEXTS - 2 + 1, "and one for all others");
        assert!(tell("later", at(3 + 60)));
    }

    #[test]
    fn texts_of_one_reason_leave_room_for_those_of_others() {
        let mut all = Aggregator::default();
        for n in 0..100 {
            all.tell_text("set", "SuccessfulCreate", &format!("created {n}"), at(n));
        }
        let mut tell = |text: &str| {
            let told = all.tell_text("set", "Promoted", text, at(100));
            told.map(|told| told.count)
        };
        assert_eq!(tell("step 1"), Some(1));
        assert_eq!(tell("step 2"), Some(1), "an Event of its own");
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut all = Aggregator::default();
        for n in 0..2 * MOST {
            all.tell(&n.to_string(), "Scaled", at(n as i64 / 100));
        }
        assert_eq!(all.seen.len(), MOST);
        assert_eq!(
            all.tell(&(2 * MOST - 1).to_string(), "Scaled", at(20)),
            None
        );
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let about = ObjectReference {
            name: Some("web".into()),
            ..ObjectReference::default()
        };
        let told = Aggregator::default().tell("a", "Scaled", at(0)).unwrap();
        let event = body(&about, true, "Scaled", &"ü".repeat(2_000), &told);
        assert_eq!(event["message"].as_str().unwrap().len(), MESSAGE);
        let odd = body(
            &about,
            true,
            "Scaled",
            &format!("x{}", "ü".repeat(2_000)),
            &told,
        );
        assert_eq!(odd["message"].as_str().unwrap().len(), MESSAGE - 1);
        assert_eq!(event["type"], "Warning");
    }
}
