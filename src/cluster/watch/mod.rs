//! One list-and-watch per kind, feeding an index.
//!
//! Own code instead of a reflector because the ledger needs what those hide: the position, i.e. the largest
//! resourceVersion delivered, deletions and bookmarks included. Lists are paged; a malformed object is logged and counted,
//! its sink says what to take it for, and it never ends the watch.

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
use crate::apirequest;
use list::list_pages;
pub use source::{LONG_WATCH_SECONDS, Source};
pub use unreadable_set::UnreadableObjects;

/// A watch that delivers nothing for this long (bookmarks come each minute) is dead. Of one that lives less long, one that delivers
/// nothing in all its life. A list follows, which is not taken for a sign of life: the next watch has to deliver something.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// How long the next watch may take to begin where one has ended in time. Its sink does not count as lost meanwhile.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// A watch of so many seconds brings a bookmark soon: see [`BOOKMARK`].
const SHORT_WATCH_SECONDS: u32 = 3;
/// The bookmark before the end of a watch is not sent earlier than this before it: the API server counts the two seconds in steps
/// of one (`watcherBookmarkTimeBuckets`), so that it may come one before.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(3);
/// How long after its begin a watch that lives a few seconds is accompanied by a read of the position. The API server has to have
/// answered before it sends the bookmark.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(1);
/// A watch ends in time if it ends at most so much before it should.
const EARLY_END_MARGIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts to list.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Of so many failures in a row one is said: about each ten minutes.
const LOG_EVERY: u32 = 80;

/// What receives the objects of a watch. Calls come from one task, in the order of resourceVersions.
pub trait WatchSink<T>: Send + Sync + 'static {
    /// Reads an object, and keeps of it only what is needed later: a list holds what was read of all its objects.
    ///
    /// # Errors
    /// When the object is not as expected; [`Sink::unreadable`] is asked then.
    fn parse(&self, raw: &str) -> serde_json::Result<T>;
    /// The whole state at `version`; whatever is not in it is gone.
    fn replace(&self, objects: Vec<T>, version: u64);
    /// An object was added or changed.
    fn apply(&self, object: T);
    /// An object was deleted, or left the watch's selector.
    fn delete(&self, object: T);
    /// Every event up to `version` has been delivered.
    fn bookmark(&self, version: u64);
    /// An object can't be read. What to take it for instead, from the JSON as it is. `None` leaves what was known of it; the
    /// next list is then one without it.
    fn parse_unreadable(&self, raw: &str) -> Option<T>;
    /// Why an object that was read is not understood in a part; a clause.
    fn find_fault(&self, _object: &T) -> Option<String> {
        None
    }
    /// Where the objects are noted that cannot be read, if anywhere.
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        None
    }
    /// The API server does not serve the kind (404). It is asked again later. Returns whether the sink takes that for news:
    /// by default it proves nothing, what is known stays, and the watch counts as one that hears nothing.
    fn on_kind_absent(&self) -> bool {
        false
    }
    /// A list or a watch has ended, well or badly; another one follows.
    fn on_attempt_ended(&self) {}
    /// The API server has sent something; all up to `version` has been delivered. That a watch has begun is nothing yet: something
    /// between may answer for a server that it has lost.
    fn on_heard(&self, _version: u64) {}
    /// All has been delivered that had happened `at` this moment.
    fn on_known_at(&self, _at: Instant) {}
    /// The watch has broken off, or the next one is late.
    fn on_lost(&self) {}
}

/// Asks a running watch to catch up, because it seems to trail.
#[derive(Clone, Debug, Default)]
pub struct CatchUpSignal(Arc<CatchUpRequest>);

#[derive(Debug, Default)]
struct CatchUpRequest {
    position: AtomicU64,
    asked: Notify,
}

impl CatchUpSignal {
    /// Has the watch come to this position as soon as possible.
    pub fn request_catch_up(&self, position: u64) {
        self.0.position.fetch_max(position, Ordering::Relaxed);
        self.0.asked.notify_one();
    }

    /// Returns the position that somebody asks for.
    async fn wait_requested(&self) -> u64 {
        self.0.asked.notified().await;
        self.0.position.swap(0, Ordering::Relaxed)
    }
}

/// Runs until cancelled; every failure is retried with a growing, jittered pause. Does nothing more when the history was
/// set back: what the sink holds is then of no use.
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
                        sink.on_known_at(asked); // however long the answer took
                    }
                    let end =
                        follow_watch::<T, S>(&client, &source, &*sink, &catch_up, version).await;
                    (known, silent) = (end.version, end.silent);
                    if end.fruitful {
                        failures = 0; // or each list would follow upon the other
                    }
                    sink.on_lost();
                }
                Err(e) => {
                    // Each watch says it, so the first failure and a few of the others are enough.
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
    answer.map_or_else(|| error.to_string(), apirequest::text)
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

/// Reads an object, and notes whether it can be read; its ID if it cannot.
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
    // Said once for each object.
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

/// The position of the kind in etcd at this moment; `None` if it can't be read.
async fn read_list_version(client: &Client, source: &Source) -> Option<u64> {
    let at = ResourcePath::from_watch_path(source.path);
    let read = list_position::read_list_position(client, &at, source.fields.as_deref());
    timeout(Duration::from_secs(30), read).await.ok()?.ok()
}

/// Waits for what comes before the next watch, for as long as it takes. The sink counts as lost after a moment.
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

/// How it ended that a watch was followed.
struct WatchEnd {
    /// The version up to which it was followed.
    version: u64,
    /// Whether the last watch delivered nothing when it should have, or did not begin.
    silent: bool,
    /// Whether anything was delivered, or the list was asked for.
    fruitful: bool,
}

/// Follows the watch from `version` until it has to be listed again.
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
    let mut tried = 0; // the position that a short watch was to reach
    let mut fruitful = false;
    let end = |version, silent, fruitful| WatchEnd {
        version,
        silent,
        fruitful,
    };
    loop {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..50))).await; // a server that hangs up at once
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
                    error = apirequest::text(&e),
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
                // The API server sends a bookmark only if it has learnt since the last how far etcd is: of a kind that nobody
                // changes or reads, it would not.
                (known, asked, present) = &mut asking, if !has_asked => {
                    match present {
                        Some(present) if present < known => return end(version, false, fruitful),
                        // Nothing was written anywhere since, so there is nothing to send: soon there is.
                        Some(present) if present <= version => {
                            sink.on_heard(version);
                            sink.on_known_at(asked); // all that there is has been delivered
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
                // The server ended this watch; continue from `version`. One that ends early may have ended with its server.
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
            // A line may have been on its way for long, and the next one with it: only a bookmark says that there was none.
            if delivered.is_bookmark {
                let (now, earliest) = (
                    Instant::now(),
                    requested + life.saturating_sub(BOOKMARK_INTERVAL),
                );
                // One that comes before is not the one before the end.
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
                seconds = SHORT_WATCH_SECONDS; // to hear of it soon
            }
        }
        if is_in_time && is_told && source.seconds < LONG_WATCH_SECONDS {
            continue; // it was asked a moment ago
        }
        // A watch from a version that is yet to come is silent until it has come. If the history was set back, the list says
        // so.
        let present = run_until_lost(sink, read_list_version(client, source)).await;
        if present.is_none_or(|v| v < version) {
            return end(version, false, fruitful);
        }
    }
}

/// A line of a watch that was handed to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredEvent {
    /// The version that it carries.
    pub version: u64,
    /// Whether it says that everything up to this version has been sent.
    pub is_bookmark: bool,
}

/// Hands one line of a watch to the sink. `None` if all must be listed again: for an error
/// event, for a deletion that can't be read, and for a version before `known`, up to which all has been delivered.
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
                None => return None, // which one is gone, the list will say
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
