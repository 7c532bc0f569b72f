//! One list-and-watch per kind, feeding an index.
//!
//! Own code instead of a reflector because the ledger needs what those hide: the position, i.e. the largest
//! resourceVersion delivered, deletions and bookmarks included. Lists are paged; a malformed object is logged and counted,
//! its sink says what to take it for, and it never ends the watch.

mod list;

use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt};
use kube::Client;
use kube::core::Request;
use kube::core::params::WatchParams;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::failure;
use list::list;

/// The API server ends a watch after this long; the next one continues where it stopped.
const WATCH_SECONDS: u32 = 290;
/// A connection that delivers nothing for this long (bookmarks come each minute) is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// Longest pause between attempts to list.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// What receives the objects of a watch. Calls come from one task, in the order of resourceVersions.
pub trait Sink<T>: Send + Sync + 'static {
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
    /// An object can't be read. What to take it for instead, from the JSON as it is; `None` leaves what was known of it.
    fn unreadable(&self, raw: &str) -> Option<T>;
    /// The API server does not serve the kind (404). It is asked again later.
    fn absent(&self) {}
    /// A list or a watch has ended, well or badly; another one follows.
    fn ended(&self) {}
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct Source {
    /// API path, e.g. `/api/v1/pods`.
    pub path: &'static str,
    /// Label selector, if any.
    pub labels: Option<&'static str>,
    /// Field selector, if any.
    pub fields: Option<String>,
}

/// Asks a running watch to list again, e.g. because it seems to trail.
#[derive(Clone, Debug, Default)]
pub struct Relist(Arc<Notify>);

impl Relist {
    /// Lists again as soon as possible.
    pub fn now(&self) {
        self.0.notify_one();
    }
}

/// Runs until cancelled; every failure is retried with a growing, jittered pause.
pub async fn run<T, S>(
    client: Client,
    source: Source,
    sink: Arc<S>,
    relist: Relist,
    stop: CancellationToken,
) where
    T: Send + 'static,
    S: Sink<T>,
{
    let mut failures = 0u32;
    let work = async {
        loop {
            match list::<T, S>(&client, &source, &sink).await {
                Ok((objects, version)) => {
                    failures = 0;
                    sink.replace(objects, version);
                    follow::<T, S>(&client, &source, &*sink, &relist, version).await;
                }
                Err(e) => {
                    warn!(path = source.path, error = said(&e), "list failed");
                    if is_not_served(&e) {
                        sink.absent();
                    }
                }
            }
            sink.ended();
            failures = (failures + 1).min(8);
            let most = MAX_BACKOFF.min(Duration::from_millis(50 << failures));
            tokio::time::sleep(most.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    };
    tokio::select! { () = stop.cancelled() => {}, () = work => {} }
}

fn said(error: &anyhow::Error) -> String {
    let answer = error.downcast_ref::<kube::Error>();
    answer.map_or_else(|| error.to_string(), failure::text)
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

fn parse<T, S: Sink<T>>(source: &Source, sink: &S, raw: &RawValue) -> Option<T> {
    match sink.parse(raw.get()) {
        Ok(object) => Some(object),
        Err(e) => {
            warn!(path = source.path, error = %e, "an object can't be read");
            sink.unreadable(raw.get())
        }
    }
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

/// Follows the watch from `version` until it has to be listed again.
async fn follow<T, S>(client: &Client, source: &Source, sink: &S, relist: &Relist, mut version: u64)
where
    T: Send + 'static,
    S: Sink<T>,
{
    loop {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..50))).await; // a server that hangs up at once
        let params = WatchParams {
            bookmarks: true,
            timeout: Some(WATCH_SECONDS),
            label_selector: source.labels.map(Into::into),
            field_selector: source.fields.clone(),
            ..WatchParams::default()
        };
        let Ok(request) = Request::new(source.path).watch(&params, &version.to_string()) else {
            return;
        };
        let stream = match timeout(Duration::from_secs(30), client.request_stream(request)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => {
                return warn!(
                    path = source.path,
                    error = failure::text(&e),
                    "watch failed"
                );
            }
            Err(_) => return warn!(path = source.path, "watch timed out"),
        };
        let mut lines = Box::pin(stream).lines();
        loop {
            let line = tokio::select! {
                () = relist.0.notified() => return debug!(path = source.path, "listing again as asked"),
                line = timeout(SILENCE, lines.next()) => line,
            };
            let line = match line {
                Ok(Some(Ok(line))) => line,
                Ok(None) => break, // the server ended this watch; continue from `version`
                Ok(Some(Err(e))) => {
                    return debug!(path = source.path, error = %e, "watch broke off");
                }
                Err(_) => return warn!(path = source.path, "watch fell silent"),
            };
            match deliver::<T, S>(source, sink, &line) {
                Some(seen) => version = version.max(seen),
                None => return, // usually an error event, 410 Gone
            }
        }
    }
}

/// Hands one line of a watch to the sink; the version it carries, or `None` if all must be listed again: for an error
/// event, and for a deletion that can't be read.
pub(crate) fn deliver<T, S: Sink<T>>(source: &Source, sink: &S, line: &str) -> Option<u64> {
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
    match event.kind.as_str() {
        "BOOKMARK" => sink.bookmark(version),
        kind => match (kind, parse(source, sink, &event.object)) {
            ("DELETED", Some(object)) => sink.delete(object),
            ("DELETED", None) => return None, // which one is gone, the list will say
            (_, Some(object)) => sink.apply(object),
            (_, None) => sink.bookmark(version),
        },
    }
    Some(version)
}
