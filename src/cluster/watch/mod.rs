//! Lists and watches one kind, and fills an index.
//!
//! This is own code instead of a reflector, because the ledger needs the position, which reflectors hide: the largest
//! resourceVersion that was delivered, including deletions and bookmarks. Lists are paged. A malformed object is logged
//! and counted, and its sink decides how to treat it. It never ends the watch.

mod list;
mod source;
mod unreadable_set;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt};
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
    requested: Notify,
}

impl CatchUpSignal {
    /// Asks the watch to reach this position as soon as possible.
    pub fn request_catch_up(&self, position: u64) {
        self.0.position.fetch_max(position, Ordering::Relaxed);
        self.0.requested.notify_one();
    }

    /// Waits for a request and returns its position.
    async fn wait_requested(&self) -> u64 {
        self.0.requested.notified().await;
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
    etcd_history: EtcdHistory,
    stop: CancellationToken,
) where
    T: Send + 'static,
    S: WatchSink<T>,
{
    let (mut failures, mut failing) = (0u32, 0u32);
    let (mut known, mut silent) = (0u64, false);
    let work = async {
        loop {
            let requested = Instant::now();
            match list_pages::<T, S>(&client, &source, &sink).await {
                Ok((_, version)) if version < known => {
                    etcd_history.mark_lost(source.path, known, version);
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
                        sink.on_known_at(requested); // however long the response took
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
                        0 => warn!(
                            path = source.path,
                            error = error_text(&e),
                            "list failed; trying again"
                        ),
                        _ => debug!(
                            path = source.path,
                            error = error_text(&e),
                            "list failed; trying again"
                        ),
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
            "an object can't be read; such a Pod counts as not available, and such a rule holds its Pods"
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

/// A position of the kind that was read while a watch ran.
struct PositionRead {
    /// The version up to which events had been delivered when the read was planned.
    known: u64,
    began: Instant,
    /// `None` if the position cannot be read.
    present: Option<u64>,
}

async fn read_list_version_at(
    client: &Client,
    source: &Source,
    at: Instant,
    known: u64,
) -> PositionRead {
    tokio::time::sleep_until(at).await;
    PositionRead {
        known,
        began: Instant::now(),
        present: read_list_version(client, source).await,
    }
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
    version: u64,
) -> WatchEnd
where
    T: Send + 'static,
    S: WatchSink<T>,
{
    let mut follower = Follower {
        client,
        source,
        sink,
        catch_up,
        version,
        tried_position: 0,
        fruitful: false,
    };
    let mut seconds = source.seconds;
    loop {
        match follower.follow_once::<T>(seconds).await {
            Ok(next_seconds) => seconds = next_seconds,
            Err(ListNeeded { silent }) => {
                return WatchEnd {
                    version: follower.version,
                    silent,
                    fruitful: follower.fruitful,
                };
            }
        }
    }
}

/// Follows watches of one source. Each watch continues where the former watch has ended.
struct Follower<'a, S> {
    client: &'a Client,
    source: &'a Source,
    sink: &'a S,
    catch_up: &'a CatchUpSignal,
    /// The version up to which events were delivered.
    version: u64,
    /// The position that a short watch should reach.
    tried_position: u64,
    /// See [`WatchEnd::fruitful`].
    fruitful: bool,
}

/// No further watch can continue from the delivered version.
struct ListNeeded {
    /// See [`WatchEnd::silent`].
    silent: bool,
}

/// How a watch has ended that the next watch continues.
struct EndedWatch {
    /// Whether the watch ended when its life was over, or for a request to catch up.
    is_in_time: bool,
    /// Whether the position was read while the watch ran.
    is_position_read: bool,
    /// Whether a request to catch up has ended the watch.
    is_catching_up: bool,
}

/// The times of one watch.
struct WatchTimes {
    requested: Instant,
    /// The API server ends the watch this long after the request.
    life: Duration,
    /// Whether the watch should bring a bookmark soon, see [`SHORT_WATCH_SECONDS`].
    is_short: bool,
    /// If the watch delivers nothing for this long, it is dead.
    max_silence: Duration,
    /// How long after the request the position is read.
    position_delay: Duration,
}

impl WatchTimes {
    /// The times of a watch of `source` that is requested now and lives for `seconds`.
    fn requested_now(source: &Source, seconds: u32) -> WatchTimes {
        let is_short = seconds == SHORT_WATCH_SECONDS;
        let life = Duration::from_secs(seconds.into());
        let max_silence = MAX_SILENCE.min(life);
        WatchTimes {
            requested: Instant::now(),
            life,
            is_short,
            max_silence,
            position_delay: match source.seconds {
                _ if is_short => Duration::ZERO,
                LONG_WATCH_SECONDS => max_silence / 3,
                _ => CATCH_UP_INTERVAL,
            },
        }
    }

    /// The moment up to which a bookmark that has arrived now proves that all events are known.
    fn known_by_bookmark(&self) -> Instant {
        let earliest_last = self.requested + self.life.saturating_sub(BOOKMARK_INTERVAL);
        // An earlier bookmark is not the one before the end of the watch.
        match Instant::now() < earliest_last {
            true => self.requested,
            false => earliest_last,
        }
    }
}

impl<'a, S> Follower<'a, S> {
    /// Follows one watch that lives for `seconds`. Returns the life of the next watch, in seconds.
    async fn follow_once<T>(&mut self, seconds: u32) -> Result<u32, ListNeeded>
    where
        T: Send + 'static,
        S: WatchSink<T>,
    {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..50))).await; // the server may close at once
        let times = WatchTimes::requested_now(self.source, seconds);
        let stream = self.open_watch::<T>(seconds).await?;
        let end = self.deliver_stream::<T>(stream, &times).await?;
        let is_long_lived = self.source.seconds >= LONG_WATCH_SECONDS;
        if !end.is_in_time {
            self.sink.on_lost();
        }
        let was_read_just_now = end.is_in_time && end.is_position_read && !is_long_lived;
        if !was_read_just_now {
            self.check_position::<T>().await?;
        }
        Ok(match end {
            _ if end.is_catching_up => SHORT_WATCH_SECONDS,
            _ if !end.is_in_time && !is_long_lived => SHORT_WATCH_SECONDS, // to receive a bookmark soon
            _ => self.source.seconds,
        })
    }

    /// Requests a watch from the delivered version.
    async fn open_watch<T>(
        &self,
        seconds: u32,
    ) -> Result<Pin<Box<dyn AsyncBufRead + Send + 'a>>, ListNeeded>
    where
        S: WatchSink<T>,
    {
        let (client, path) = (self.client, self.source.path);
        let params = WatchParams {
            bookmarks: true,
            timeout: Some(seconds),
            label_selector: self.source.labels.map(Into::into),
            field_selector: self.source.fields.clone(),
            ..WatchParams::default()
        };
        let Ok(request) = Request::new(path).watch(&params, &self.version.to_string()) else {
            return Err(ListNeeded { silent: false });
        };
        let patience = match seconds {
            SHORT_WATCH_SECONDS => Duration::from_secs(3),
            _ => Duration::from_secs(30),
        };
        let start = timeout(patience, client.request_stream(request));
        match run_until_lost(self.sink, start).await {
            Ok(Ok(stream)) => Ok(Box::pin(stream)),
            Ok(Err(error)) => {
                warn!(
                    path,
                    error = api_request::text(&error),
                    "watch failed; listing again"
                );
                Err(ListNeeded { silent: false })
            }
            Err(_) => {
                warn!(path, "watch timed out; listing again");
                Err(ListNeeded { silent: true })
            }
        }
    }

    /// Passes the lines of a watch to the sink until the watch ends, or until it should catch up. Meanwhile reads the
    /// position of the kind: the API server sends a bookmark only if it has learnt a newer position of etcd since the
    /// last one. Without this read, it would learn none for a kind that nobody changes or reads.
    async fn deliver_stream<T>(
        &mut self,
        stream: impl AsyncBufRead + Unpin,
        times: &WatchTimes,
    ) -> Result<EndedWatch, ListNeeded>
    where
        S: WatchSink<T>,
    {
        let (client, source, max_silence) = (self.client, self.source, times.max_silence);
        let read_at = |at, known| Box::pin(read_list_version_at(client, source, at, known));
        let mut reading = read_at(times.requested + times.position_delay, self.version);
        let (mut is_read_done, mut is_position_read) = (false, false);
        let mut due = Instant::now() + max_silence;
        let mut lines = stream.lines();
        let mut is_mute = true;
        loop {
            let line = tokio::select! {
                position = self.catch_up.wait_requested(), if !times.is_short => {
                    if position <= self.version {
                        continue;
                    }
                    self.start_catch_up(position)?;
                    return Ok(EndedWatch { is_in_time: true, is_position_read, is_catching_up: true });
                }
                read = &mut reading, if !is_read_done => {
                    match read.present {
                        Some(present) if present < read.known => return Err(ListNeeded { silent: false }),
                        // Nothing was written anywhere since then, so the API server has nothing to send. It will have
                        // soon.
                        Some(present) if present <= self.version => {
                            self.sink.on_heard(self.version);
                            self.sink.on_known_at(read.began); // every existing event has been delivered
                            reading = read_at(Instant::now() + max_silence / 12, self.version);
                        }
                        present => (is_read_done, is_position_read) = (true, present.is_some()),
                    }
                    continue;
                }
                line = timeout_at(due, lines.next()) => line,
            };
            let line = match line {
                Ok(Some(Ok(line))) => line,
                // The API server ended this watch. The next one continues from the delivered version. If a watch ends
                // early, the API server itself may have ended.
                Ok(None) => {
                    return Ok(EndedWatch {
                        is_in_time: times.requested.elapsed() + EARLY_END_MARGIN >= times.life,
                        is_position_read,
                        is_catching_up: false,
                    });
                }
                Ok(Some(Err(error))) => {
                    debug!(path = source.path, %error, "watch broke off");
                    return Err(ListNeeded { silent: is_mute });
                }
                Err(_) => {
                    warn!(path = source.path, "watch fell silent; listing again");
                    return Err(ListNeeded { silent: true });
                }
            };
            self.deliver_line::<T>(&line, times)?;
            is_mute = false;
            due = Instant::now() + max_silence;
            if is_read_done && source.seconds == LONG_WATCH_SECONDS {
                is_read_done = false;
                reading = read_at(Instant::now() + times.position_delay, self.version);
            }
        }
    }

    /// Lets a short watch follow that should reach this position. If a short watch has already tried to reach it, the
    /// loop lists again.
    fn start_catch_up(&mut self, position: u64) -> Result<(), ListNeeded> {
        if position <= self.tried_position {
            debug!(path = self.source.path, "listing again as asked");
            self.fruitful = true;
            return Err(ListNeeded { silent: false });
        }
        self.tried_position = position;
        Ok(())
    }

    /// Passes one line of a watch to the sink.
    fn deliver_line<T>(&mut self, line: &str, times: &WatchTimes) -> Result<(), ListNeeded>
    where
        S: WatchSink<T>,
    {
        let delivered = deliver_event::<T, S>(self.source, self.sink, line, self.version);
        // Usually an error event with the code 410 (Gone).
        let delivered = delivered.ok_or(ListNeeded { silent: false })?;
        self.version = delivered.version;
        self.fruitful = true;
        self.sink.on_heard(self.version);
        // A line may be old, and the next lines may be late, too. Only a bookmark proves that there were no other
        // events.
        if delivered.is_bookmark {
            self.sink.on_known_at(times.known_by_bookmark());
        }
        Ok(())
    }

    /// Checks that the delivered version is not in the future. A watch that starts at a version in the future is silent
    /// until that version is reached. If etcd was restored to an earlier state, the list detects it.
    async fn check_position<T>(&self) -> Result<(), ListNeeded>
    where
        S: WatchSink<T>,
    {
        let read = read_list_version(self.client, self.source);
        let present = run_until_lost(self.sink, read).await;
        if present.is_none_or(|present| present < self.version) {
            return Err(ListNeeded { silent: false });
        }
        Ok(())
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
        warn!(
            path = source.path,
            version, known, "a watch delivered an older version than before; listing again"
        );
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
