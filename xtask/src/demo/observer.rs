//! An independent observer: follows the Pods in resourceVersion order and keeps the worst moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use testbed::wait;
use tokio_util::task::AbortOnDropHandle;

use super::workload::is_available;

/// Version and availability of each Pod, by name and UID.
type Pods = BTreeMap<(String, String), (String, bool)>;

#[derive(Debug, Default)]
struct Seen {
    expected: usize,
    pods: Pods,
    most_unavailable: usize,
    failure: Option<String>,
}

impl Seen {
    fn unavailable(&self) -> usize {
        let available = self.pods.values().filter(|(_, available)| *available);
        self.expected.saturating_sub(available.count())
    }

    fn apply(&mut self, event: WatchEvent<Pod>) -> Result<()> {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                self.pods.insert(key(&pod), state(&pod));
            }
            WatchEvent::Deleted(pod) => {
                self.pods.remove(&key(&pod));
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("the watch ended: {}", status.message),
        }
        self.most_unavailable = self.most_unavailable.max(self.unavailable());
        Ok(())
    }
}

fn key(pod: &Pod) -> (String, String) {
    (pod.name_any(), pod.uid().unwrap_or_default())
}

fn state(pod: &Pod) -> (String, bool) {
    (
        pod.resource_version().unwrap_or_default(),
        is_available(pod),
    )
}

/// See the module. It ends when dropped.
#[derive(Debug)]
pub struct Observer {
    pods: Api<Pod>,
    seen: Arc<Mutex<Seen>>,
    _watching: AbortOnDropHandle<()>,
}

impl Observer {
    /// Begins to follow; `expected` Pods should be available.
    pub async fn start(pods: Api<Pod>, expected: usize) -> Result<Self> {
        let list = pods.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let mut seen = Seen {
            expected,
            pods: list.items.iter().map(|p| (key(p), state(p))).collect(),
            ..Seen::default()
        };
        seen.most_unavailable = seen.unavailable();
        let seen = Arc::new(Mutex::new(seen));
        let watching = tokio::spawn(watch(pods.clone(), version, seen.clone()));
        Ok(Self {
            pods,
            seen,
            _watching: AbortOnDropHandle::new(watching),
        })
    }

    /// Forgets the worst moment so far; the present one counts.
    pub async fn reset(&self) -> Result<()> {
        self.catch_up().await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.most_unavailable = seen.unavailable();
        Ok(())
    }

    /// Most Pods that were unavailable at once since the last reset, up to now.
    ///
    /// # Errors
    /// When the watch ended: then nobody can say.
    pub async fn most_unavailable(&self) -> Result<usize> {
        self.catch_up().await?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.most_unavailable)
    }

    /// Waits until the watch has delivered what a list shows.
    async fn catch_up(&self) -> Result<()> {
        let caught_up = || async {
            let list = self.pods.list(&ListParams::default()).await?;
            let there: Pods = list.items.iter().map(|p| (key(p), state(p))).collect();
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(seen.failure.is_some() || seen.pods == there)
        };
        wait::within(
            "the observer to catch up",
            Duration::from_secs(60),
            caught_up,
        )
        .await?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &seen.failure {
            Some(failure) => bail!("the observer lost sight of the Pods: {failure}"),
            None => Ok(()),
        }
    }
}

async fn watch(pods: Api<Pod>, version: String, seen: Arc<Mutex<Seen>>) {
    let result = follow(&pods, version, &seen).await;
    if let Err(error) = result {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.failure = Some(format!("{error:#}"));
    }
}

/// Goes on at the version where a watch ended, so that no event is missed or seen twice.
async fn follow(pods: &Api<Pod>, mut version: String, seen: &Mutex<Seen>) -> Result<()> {
    loop {
        let params = WatchParams::default().timeout(240);
        let stream = pods.watch(&params, &version).await.context("the watch")?;
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.try_next().await.context("the watch")? {
            version = match &event {
                WatchEvent::Added(p) | WatchEvent::Modified(p) | WatchEvent::Deleted(p) => {
                    p.resource_version().unwrap_or(version)
                }
                WatchEvent::Bookmark(b) => b.metadata.resource_version.clone(),
                WatchEvent::Error(_) => version,
            };
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.apply(event)?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn pod(name: &str, version: u32, available: bool) -> Pod {
        let label = "podopslifecycle.kusionstack.io/service-available";
        let labels = if available {
            json!({label: "1"})
        } else {
            json!({})
        };
        serde_json::from_value(json!({"metadata": {
            "name": name, "uid": name, "resourceVersion": version.to_string(), "labels": labels,
        }}))
        .unwrap()
    }

    #[test]
    fn the_worst_moment_is_kept_when_the_pods_are_back() {
        let mut seen = Seen {
            expected: 2,
            ..Seen::default()
        };
        seen.apply(WatchEvent::Added(pod("a", 1, true))).unwrap();
        seen.apply(WatchEvent::Added(pod("b", 2, true))).unwrap();
        seen.most_unavailable = seen.unavailable();
        assert_eq!(seen.most_unavailable, 0);
        seen.apply(WatchEvent::Modified(pod("a", 3, false)))
            .unwrap();
        seen.apply(WatchEvent::Deleted(pod("b", 4, true))).unwrap();
        seen.apply(WatchEvent::Modified(pod("a", 5, true))).unwrap();
        assert_eq!((seen.unavailable(), seen.most_unavailable), (1, 2));
    }
}
