//! `--watch`: reads again after each change, and prints new results.

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

use super::api_reads;
use crate::cli::output;

/// Changes often come in bursts. All changes within this time cause one read.
pub const BURST_WINDOW: Duration = Duration::from_millis(300);
/// The same for objects whose diagnosis needs a list of all Pods of the namespace.
pub const LIST_BURST_WINDOW: Duration = Duration::from_secs(5);

/// The result of one read.
pub struct FollowFrame {
    text: String,
    /// The result is printed only if this text differs from the last one.
    key: String,
    last: bool,
}

impl FollowFrame {
    /// A result after which others may follow.
    pub fn open_frame(text: String, key: String) -> FollowFrame {
        FollowFrame {
            text,
            key,
            last: false,
        }
    }

    /// The last result.
    pub fn final_frame(text: String) -> FollowFrame {
        FollowFrame {
            key: text.clone(),
            text,
            last: true,
        }
    }
}

/// `Ok` after a change, or the error if the API server refuses the watch permanently.
pub type WatchChange = anyhow::Result<()>;

/// Changes of all objects of a kind, or of the object with this name. The watch reconnects by itself after
/// interruptions.
pub fn watch_changes<K>(api: Api<K>, name: Option<&str>) -> BoxStream<'static, WatchChange>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let mut config = watcher::Config::default();
    if let Some(name) = name {
        config = config.fields(&format!("metadata.name={name}"));
    }
    let plural = K::plural(&());
    let namespace = api.namespace().map(str::to_owned);
    let events = watch(api, config).default_backoff();
    events
        .filter_map(move |event| {
            let change = match event {
                Ok(Event::Init | Event::InitApply(_)) => None,
                Ok(_) => Some(Ok(())),
                Err(error) => refusal(error).map(|(verb, error)| {
                    let namespace = namespace.as_deref();
                    Err(api_reads::explain_failure(
                        verb,
                        &plural,
                        namespace,
                        error.into(),
                    ))
                }),
            };
            std::future::ready(change)
        })
        .boxed()
}

/// The verb and the error of a request that the API server refuses. A watch begins with a list.
fn refusal(error: watcher::Error) -> Option<(&'static str, Error)> {
    let (verb, error) = match error {
        watcher::Error::InitialListFailed(error) => ("list", error),
        watcher::Error::WatchStartFailed(error) => ("watch", error),
        _ => return None,
    };
    let is_refused = matches!(&error, Error::Api(status) if matches!(status.code, 401 | 403));
    is_refused.then_some((verb, error))
}

/// Prints the result of `read_frame` now and after each change, until the last result or Ctrl-C.
pub async fn follow_changes(
    burst_window: Duration,
    mut changes: SelectAll<BoxStream<'static, WatchChange>>,
    read_frame: impl AsyncFn() -> anyhow::Result<FollowFrame>,
) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let mut shown: Option<String> = None;
    loop {
        match read_frame().await {
            Ok(frame) if shown.as_ref() != Some(&frame.key) => {
                let before = match (terminal, &shown) {
                    (true, _) => "\x1b[2J\x1b[H",
                    (false, Some(_)) if frame.text.lines().count() > 1 => "\n",
                    (false, _) => "",
                };
                output::write_stdout(&format!("{before}{}", frame.text))?;
                if frame.last {
                    return Ok(());
                }
                shown = Some(frame.key);
            }
            Ok(_) => {}
            Err(e) => eprintln!("warning: {e:#}; going on with the next change"),
        }
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => return Ok(interrupted?),
            change = next_change(burst_window, &mut changes) => if !change? { return Ok(()) },
        }
    }
}

/// Waits for a change, and for the end of its burst. Returns `false` if there will be no more changes.
pub async fn next_change(
    burst_window: Duration,
    changes: &mut SelectAll<BoxStream<'static, WatchChange>>,
) -> anyhow::Result<bool> {
    if changes.try_next().await?.is_none() {
        return Ok(false);
    }
    let burst = Instant::now() + burst_window;
    while let Ok(Some(change)) = timeout_at(burst, changes.next()).await {
        change?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn refusal_names_verb_of_request() {
        let answer = |code| {
            let status = Status::failure("no", "Reason").with_code(code);
            Error::Api(Box::new(status))
        };
        let verb = |error| refusal(error).map(|(verb, _)| verb);
        let list = watcher::Error::InitialListFailed;
        assert_eq!(verb(list(answer(403))), Some("list"));
        assert_eq!(verb(list(answer(500))), None);
        let watch = watcher::Error::WatchStartFailed(answer(401));
        assert_eq!(verb(watch), Some("watch"));
    }
}
