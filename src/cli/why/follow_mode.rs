//! `--watch`: looks again whenever something has changed, and shows what is new.

use std::fmt::Debug;
use std::io::IsTerminal;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Error, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::api;
use crate::cli::output;

/// Changes come in bursts: one look for all that come within this time.
const BURST_WINDOW: Duration = Duration::from_millis(300);

/// What one look has found.
pub struct FollowFrame {
    text: String,
    /// Shown only if this differs from the last time.
    key: String,
    last: bool,
}

impl FollowFrame {
    /// There may be more to see.
    pub fn open_frame(text: String, key: String) -> FollowFrame {
        FollowFrame {
            text,
            key,
            last: false,
        }
    }

    /// There is no more to see.
    pub fn final_frame(text: String) -> FollowFrame {
        FollowFrame {
            key: text.clone(),
            text,
            last: true,
        }
    }
}

/// Something has changed, or the watch is refused for good.
pub type WatchChange = anyhow::Result<()>;

/// Changes of objects of a kind, or of the one of this name. Interruptions are got over by the watch itself.
pub fn watch_changes<K>(api: Api<K>, name: Option<&str>) -> BoxStream<'static, WatchChange>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut config = watcher::Config::default();
    if let Some(name) = name {
        config = config.fields(&format!("metadata.name={name}"));
    }
    let plural = K::plural(&());
    let events = watch(api, config).default_backoff();
    events
        .filter_map(move |event| {
            let change = match event {
                Ok(Event::Init | Event::InitApply(_)) => None,
                Ok(_) => Some(Ok(())),
                Err(watcher::Error::InitialListFailed(e) | watcher::Error::WatchStartFailed(e))
                    if is_refused(&e) =>
                {
                    Some(Err(api::explain_failure("watch", &plural, None, e.into())))
                }
                Err(_) => None,
            };
            std::future::ready(change)
        })
        .boxed()
}

fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, 401 | 403))
}

/// Shows what `look` finds, now and after each change, until there is no more to see or Ctrl-C.
pub async fn follow_changes(
    mut changes: SelectAll<BoxStream<'static, WatchChange>>,
    look: impl AsyncFn() -> anyhow::Result<FollowFrame>,
) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let mut shown: Option<String> = None;
    loop {
        match look().await {
            Ok(look) if shown.as_ref() != Some(&look.key) => {
                let before = match (terminal, &shown) {
                    (true, _) => "\x1b[2J\x1b[H",
                    (false, Some(_)) if look.text.lines().count() > 1 => "\n",
                    (false, _) => "",
                };
                output::write_stdout(&format!("{before}{}", look.text))?;
                if look.last {
                    return Ok(());
                }
                shown = Some(look.key);
            }
            Ok(_) => {}
            Err(e) => eprintln!("warning: {e:#}; going on with the next change"),
        }
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => return Ok(interrupted?),
            change = changes.try_next() => if change?.is_none() { return Ok(()) },
        }
        let burst = Instant::now() + BURST_WINDOW;
        while let Ok(Some(change)) = timeout_at(burst, changes.next()).await {
            change?;
        }
    }
}
