//! Lists and watches one kind, and fills an index.
//!
//! This is own code instead of a reflector, because the ledger needs the position, which reflectors hide: the largest
//! resourceVersion that was delivered, including deletions and bookmarks. Lists are paged. A malformed object is logged
//! and counted, and its sink decides how to treat it. It never ends the watch.

mod list;
mod source;
mod unreadable_set;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt};
use kube::Client;
use kube::core::Request;
use kube::core::params::WatchParams;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::etcd_history::EtcdHistory;
use super::list_position;
use super::request_path::ResourcePath;
use crate::api_request;
use list::list_pages;
pub use source::{LONG_WATCH_SECONDS, Source};
pub use unreadable_set::UnreadableObjects;

/// A watch that delivers nothing for this long is dead, because bookmarks arrive each minute. A watch with a shorter
/// life is dead if it delivers nothing in its whole life. A list follows. The list does not count as a sign of life:
/// the next watch must deliver something.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// How long the start of the next watch may take after a watch has ended in time. Until then its sink does not count as
/// lost.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The life, in seconds, of a watch that should bring a bookmark soon, see [`BOOKMARK_INTERVAL`].
const SHORT_WATCH_SECONDS: u32 = 3;
/// The bookmark before the end of a watch is sent at most this long before the end. The API server sends it two seconds
/// before the end, but counts in steps of one second (`watcherBookmarkTimeBuckets`), so it may be one second earlier.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(3);
/// How long after the start of a watch that lives for a few seconds the position is read. The API server must have
/// answered this read before it sends the bookmark.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(1);
/// A watch ends in time if it ends at most this long before its planned end.
const EARLY_END_MARGIN: Duration = Duration::from_secs(1);
/// The longest pause between attempts to list.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// One of this many failures in a row is logged as a warning: about one every ten minutes.
const LOG_EVERY: u32 = 80;

/// Receives the objects of a watch. All calls come from one task, in the order of the resourceVersions.
pub trait WatchSink<T>: Send + Sync + 'static {
    /// Parses an object and keeps only the fields that are needed later, because a list holds the parsed form of all
    /// its objects.
    ///
    /// # Errors
    /// If the object does not have the expected form. Then [`WatchSink::parse_unreadable`] is called.
    fn parse(&self, raw: &str) -> serde_json::Result<T>;
    /// Replaces the whole state by a list at `version`. Objects that are not in the list are gone.
    fn replace(&self, objects: Vec<T>, version: u64);
    /// An object was added or changed.
    fn apply(&self, object: T);
    /// An object was deleted, or no longer matches the selector of the watch.
    fn delete(&self, object: T);
    /// Every event up to `version` has been delivered.
    fn bookmark(&self, version: u64);
    /// Returns a replacement for an object that cannot be read, from its raw JSON. `None` keeps the known state of the
    /// object until the next list, which does not contain the object then.
    fn parse_unreadable(&self, raw: &str) -> Option<T>;
    /// Why a part of an object that was read is not understood, as a clause.
    fn find_fault(&self, _object: &T) -> Option<String> {
        None
    }
    /// Where objects that cannot be read are recorded, if anywhere.
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        None
    }
    /// The API server does not serve the kind (404). The watch asks again later. Returns whether the sink counts this
    /// answer as news. By default it proves nothing: the known state stays, and the watch counts as hearing nothing.
    fn on_kind_absent(&self) -> bool {
        false
    }
    /// A list or a watch has ended, with or without an error. Another one follows.
    fn on_attempt_ended(&self) {}
    /// The API server has sent something, and every event up to `version` has been delivered. The start of a watch does
    /// not count: a proxy may answer for an API server that it has lost.
    fn on_heard(&self, _version: u64) {}
    /// Every event that had happened by `at` has been delivered.
    fn on_known_at(&self, _at: Instant) {}
    /// The watch has broken off, or the next watch is late.
    fn on_lost(&self) {}
}

/// Asks a running watch to catch up, because it seems to be behind.
#[derive(Clone, Debug, Default)]
pub struct CatchUpSignal(Arc<CatchUpRequest>);

#[derive(Debug, Default)]
struct CatchUpRequest {
    position: AtomicU64,
    asked: Notify,
}

impl CatchUpSignal {
    /// Asks the watch to reach this position as soon as possible.
    pub fn request_catch_up(&self, position: u64) {
        self.0.position.fetch_max(position, Ordering::Relaxed);
        self.0.asked.notify_one();
    }

    /// Waits for a request and returns its position.
    async fn wait_requested(&self) -> u64 {
        self.0.asked.notified().await;
        self.0.position.swap(0, Ordering::Relaxed)
    }
}

/// Runs until cancelled. Every failure is retried with a growing, jittered pause. If etcd was restored to an earlier
/// state, this function does nothing more, because the state in the sink is no longer valid.
pub async fn run_watch<T, S>(
    client: Client,
    source: Source,
    sink: Arc<S>,
    catch_up: CatchUpSignal,
    timeline: EtcdHistory,
    stop: CancellationToken,
) where
    T: Send + 'static,
    S: WatchSink<T>,
{
    let (mut failures, mut failing) = (0u32, 0u32);
    let (mut known, mut silent) = (0u64, false);
    let work = async {
        loop {
            let asked = Instant::now();
            match list_pages::<T, S>(&client, &source, &sink).await {
                Ok((_, version)) if version < known => {
                    timeline.mark_lost(source.path, known, version);
                    return std::future::pending().await; // the process ends
                }
                Ok((objects, version)) => {
                    if failing > 0 {
                        info!(path = source.path, failing, "list succeeds again");
                    }
                    failing = 0;
                    sink.replace(objects, version);
                    if !silent {
                        sink.on_heard(version);
                        sink.on_known_at(asked); // however long the response took
                    }
                    let end =
                        follow_watch::<T, S>(&client, &source, &*sink, &catch_up, version).await;
                    (known, silent) = (end.version, end.silent);
                    if end.fruitful {
                        failures = 0; // otherwise lists would follow each other without a pause
                    }
                    sink.on_lost();
                }
                Err(e) => {
                    // All watches fail at the same time, so the first failure and a few later ones are enough.
                    match failing % LOG_EVERY {
                        0 => warn!(path = source.path, error = error_text(&e), "list failed"),
                        _ => debug!(path = source.path, error = error_text(&e), "list failed"),
                    }
                    failing += 1;
                    if is_not_served(&e) {
                        sink.on_kind_absent();
                    }
                }
            }
            sink.on_attempt_ended();
            failures = (failures + 1).min(8);
            let most = MAX_BACKOFF.min(Duration::from_millis(50 << failures));
            tokio::time::sleep(most.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    };
    tokio::select! { () = stop.cancelled() => {}, () = work => {} }
}

fn error_text(error: &anyhow::Error) -> String {
    let answer = error.downcast_ref::<kube::Error>();
    answer.map_or_else(|| error.to_string(), api_request::text)
}

fn is_not_served(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<kube::Error>();
    matches!(error, Some(kube::Error::Api(status)) if status.code == 404)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: Option<String>,
}

/// Parses an object and records whether it can be read. If it cannot, the ID of the object is returned, too.
fn parse<T, S: WatchSink<T>>(
    source: &Source,
    sink: &S,
    raw: &RawValue,
) -> (Option<T>, Option<String>) {
    let (object, fault) = match sink.parse(raw.get()) {
        Ok(object) => {
            let fault = sink.find_fault(&object);
            (Some(object), fault)
        }
        Err(e) => (sink.parse_unreadable(raw.get()), Some(e.to_string())),
    };
    let Some(fault) = fault else {
        if let Some(unread) = sink.unreadable_objects() {
            unread.remove(source, raw.get());
        }
        return (object, None);
    };
    let id = unreadable_set::object_id(raw.get());
    // Logged only once for each object.
    if sink
        .unreadable_objects()
        .is_none_or(|unread| unread.add(source, &id))
    {
        warn!(
            path = source.path,
            uid = id,
            error = fault,
            "an object can't be read"
        );
    }
    (object, Some(id))
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Box<RawValue>,
}

#[derive(Deserialize)]
struct Versioned {
    metadata: PageMeta,
}

/// The present position of the kind in etcd. `None` if it cannot be read.
async fn read_list_version(client: &Client, source: &Source) -> Option<u64> {
    let at = ResourcePath::from_watch_path(source.path);
    let read = list_position::read_list_position(client, &at, source.fields.as_deref());
    timeout(Duration::from_secs(30), read).await.ok()?.ok()
}

/// Waits for a step between two watches, for as long as it takes. After [`HANDOVER_TIMEOUT`], the sink counts as lost.
async fn run_until_lost<T, R>(sink: &impl WatchSink<T>, work: impl Future<Output = R>) -> R {
    tokio::pin!(work);
    match timeout(HANDOVER_TIMEOUT, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            sink.on_lost();
            work.await
        }
    }
}

/// How following the watch has ended.
struct WatchEnd {
    /// The version up to which events were delivered.
    version: u64,
    /// Whether the last watch did not start, or delivered nothing although it should have.
    silent: bool,
    /// Whether anything was delivered, or the list was requested.
    fruitful: bool,
}

/// Follows the watch from `version` until a new list is necessary.
async fn follow_watch<T, S>(
    client: &Client,
    source: &Source,
    sink: &S,
    catch_up: &CatchUpSignal,
    mut version: u64,
) -> WatchEnd
where
    T: Send + 'static,
    S: WatchSink<T>,
{
    let mut seconds = source.seconds;
    let mut tried = 0; // the position that a short watch should reach
    let mut fruitful = false;
    let end = |version, silent, fruitful| WatchEnd {
        version,
        silent,
        fruitful,
    };
    loop {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..50))).await; // the server may close at once
        let params = WatchParams {
            bookmarks: true,
            timeout: Some(seconds),
            label_selector: source.labels.map(Into::into),
            field_selector: source.fields.clone(),
            ..WatchParams::default()
        };
        let Ok(request) = Request::new(source.path).watch(&params, &version.to_string()) else {
            return end(version, false, fruitful);
        };
        let patience = if seconds == SHORT_WATCH_SECONDS {
            3
        } else {
            30
        };
        let requested = Instant::now();
        let begun = timeout(
            Duration::from_secs(patience),
            client.request_stream(request),
        );
        let stream = match run_until_lost(sink, begun).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => {
                warn!(
                    path = source.path,
                    error = api_request::text(&e),
                    "watch failed"
                );
                return end(version, false, fruitful);
            }
            Err(_) => {
                warn!(path = source.path, "watch timed out");
                return end(version, true, fruitful);
            }
        };
        let is_short = seconds == SHORT_WATCH_SECONDS;
        let life = Duration::from_secs(seconds.into());
        let begin = Instant::now();
        let silence = MAX_SILENCE.min(life);
        let pause = match source.seconds {
            _ if is_short => Duration::ZERO,
            LONG_WATCH_SECONDS => silence / 3,
            _ => CATCH_UP_INTERVAL,
        };
        let ask = |at, known| async move {
            tokio::time::sleep_until(at).await;
            let asked = Instant::now();
            (known, asked, read_list_version(client, source).await)
        };
        let mut asking = Box::pin(ask(requested + pause, version));
        let (mut has_asked, mut is_told) = (false, false);
        let mut due = begin + silence;
        seconds = source.seconds;
        let mut lines = Box::pin(stream).lines();
        let mut is_mute = true;
        let is_in_time = loop {
            let line = tokio::select! {
                position = catch_up.wait_requested(), if !is_short => {
                    if position <= version {
                        continue;
                    }
                    if position <= tried {
                        debug!(path = source.path, "listing again as asked");
                        return end(version, false, true);
                    }
                    (tried, seconds) = (position, SHORT_WATCH_SECONDS);
                    break true;
                }
                // The API server sends a bookmark only if it has learnt a newer position of etcd since the last one.
                // Without this read, it would learn none for a kind that nobody changes or reads.
                (known, asked, present) = &mut asking, if !has_asked => {
                    match present {
                        Some(present) if present < known => return end(version, false, fruitful),
                        // Nothing was written anywhere since then, so the API server has nothing to send. It will have
                        // soon.
                        Some(present) if present <= version => {
                            sink.on_heard(version);
                            sink.on_known_at(asked); // every existing event has been delivered
                            asking = Box::pin(ask(Instant::now() + silence / 12, version));
                        }
                        answer => (has_asked, is_told) = (true, answer.is_some()),
                    }
                    continue;
                }
                line = timeout_at(due, lines.next()) => line,
            };
            let line = match line {
                Ok(Some(Ok(line))) => line,
                // The API server ended this watch. The next one continues from `version`. If a watch ends early, the
                // API server itself may have ended.
                Ok(None) => break requested.elapsed() + EARLY_END_MARGIN >= life,
                Ok(Some(Err(e))) => {
                    debug!(path = source.path, error = %e, "watch broke off");
                    return end(version, is_mute, fruitful);
                }
                Err(_) => {
                    warn!(path = source.path, "watch fell silent");
                    return end(version, true, fruitful);
                }
            };
            let Some(delivered) = deliver_event::<T, S>(source, sink, &line, version) else {
                return end(version, false, fruitful); // usually an error event, 410 Gone
            };
            version = delivered.version;
            (is_mute, fruitful) = (false, true);
            sink.on_heard(version);
            // A line may be old, and the next lines may be late, too. Only a bookmark proves that there were no other
            // events.
            if delivered.is_bookmark {
                let (now, earliest) = (
                    Instant::now(),
                    requested + life.saturating_sub(BOOKMARK_INTERVAL),
                );
                // An earlier bookmark is not the one before the end of the watch.
                sink.on_known_at(if now < earliest { requested } else { earliest });
            }
            due = Instant::now() + silence;
            if has_asked && source.seconds == LONG_WATCH_SECONDS {
                (asking, has_asked) = (Box::pin(ask(Instant::now() + pause, version)), false);
            }
        };
        if !is_in_time {
            sink.on_lost();
            if source.seconds < LONG_WATCH_SECONDS {
                seconds = SHORT_WATCH_SECONDS; // to receive a bookmark soon
            }
        }
        if is_in_time && is_told && source.seconds < LONG_WATCH_SECONDS {
            continue; // the position was read a moment ago
        }
        // A watch that starts at a version in the future is silent until that version is reached. If etcd was restored
        // to an earlier state, the list detects it.
        let present = run_until_lost(sink, read_list_version(client, source)).await;
        if present.is_none_or(|v| v < version) {
            return end(version, false, fruitful);
        }
    }
}

/// A line of a watch that was passed to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredEvent {
    /// The resourceVersion in the line.
    pub version: u64,
    /// Whether the line is a bookmark: everything up to this version has been sent.
    pub is_bookmark: bool,
}

/// Passes one line of a watch to the sink. `None` if a new list is necessary: for an error event, for a deletion that
/// cannot be read, and for a version before `known`, up to which everything has been delivered.
pub(crate) fn deliver_event<T, S: WatchSink<T>>(
    source: &Source,
    sink: &S,
    line: &str,
    known: u64,
) -> Option<DeliveredEvent> {
    let event: Event = serde_json::from_str(line).ok()?;
    if event.kind == "ERROR" {
        debug!(
            path = source.path,
            event = event.object.get(),
            "watch error"
        );
        return None;
    }
    let version: u64 = serde_json::from_str::<Versioned>(event.object.get())
        .ok()?
        .metadata
        .resource_version
        .parse()
        .ok()?;
    if version < known {
        warn!(path = source.path, version, known, "a watch went back");
        return None;
    }
    match event.kind.as_str() {
        "BOOKMARK" => sink.bookmark(version),
        "DELETED" => {
            let (object, _) = parse(source, sink, &event.object);
            if let Some(unread) = sink.unreadable_objects() {
                unread.remove(source, event.object.get());
            }
            match object {
                Some(object) => sink.delete(object),
                None => return None, // the list will show which object is gone
            }
        }
        _ => match parse(source, sink, &event.object).0 {
            Some(object) => sink.apply(object),
            None => sink.bookmark(version),
        },
    }
    Some(DeliveredEvent {
        version,
        is_bookmark: event.kind == "BOOKMARK",
    })
}

#[cfg(test)]
mod tests;
