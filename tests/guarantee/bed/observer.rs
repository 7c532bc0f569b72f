//! Follows the Pods of a namespace and replays them in resourceVersion order.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::objects::is_available;
use super::{Scope, wait};

/// Sees every change of every Pod of a namespace from the moment it was made.
pub struct Observer {
    scope: Scope,
    seen: Arc<Mutex<History>>,
    _watching: AbortOnDropHandle<()>,
}

/// Pods by UID; each entry replaces the one before. Gone: `None`.
#[derive(Default)]
struct History {
    events: Vec<(u64, String, Option<Pod>)>,
    now: BTreeMap<String, u64>,
}

impl History {
    fn push(&mut self, pod: Pod, gone: bool) {
        let (version, uid) = (version(&pod), pod.uid().unwrap());
        if gone {
            self.now.remove(&uid);
        } else {
            self.now.insert(uid.clone(), version);
        }
        self.events.push((version, uid, (!gone).then_some(pod)));
    }
}

impl Observer {
    pub async fn start(scope: &Scope) -> Observer {
        let seen = Arc::new(Mutex::new(History::default()));
        let list = scope.pods().list(&ListParams::default()).await.unwrap();
        let from = list.metadata.resource_version.clone().unwrap();
        for pod in list.items {
            seen.lock().push(pod, false);
        }
        let watching = tokio::spawn(follow(scope.pods(), from, seen.clone()));
        Observer {
            scope: scope.clone(),
            seen,
            _watching: AbortOnDropHandle::new(watching),
        }
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// Every version of every Pod in the order in which they were written; complete up to the call.
    pub async fn versions(&self) -> Vec<Pod> {
        let changes = self.changes().await;
        changes.into_iter().filter_map(|(_, pod)| pod).collect()
    }

    #[allow(dead_code)] // as above
    /// The same by UID, with `None` where a Pod is gone.
    pub async fn changes(&self) -> Vec<(String, Option<Pod>)> {
        self.catch_up().await;
        let mut seen = self.seen.lock();
        seen.events.sort_by_key(|(version, ..)| *version);
        let changes = seen.events.iter();
        changes
            .map(|(_, uid, pod)| (uid.clone(), pod.clone()))
            .collect()
    }

    /// Over every change since `matching` Pods that `counts` were available for the first time: the fewest that were.
    /// Complete up to the call.
    pub async fn fewest_available(&self, counts: impl Fn(&Pod) -> bool, matching: usize) -> Fewest {
        self.catch_up().await;
        let mut seen = self.seen.lock();
        seen.events.sort_by_key(|(version, ..)| *version);
        let mut available: BTreeMap<&str, bool> = BTreeMap::new();
        let mut story = Vec::new();
        let mut fewest: Option<Fewest> = None;
        for (version, uid, pod) in &seen.events {
            let now = pod.as_ref().is_some_and(|p| counts(p) && serves(p));
            let before = available.insert(uid, now).unwrap_or_default();
            if before == now {
                continue;
            }
            let count = available.values().filter(|v| **v).count();
            story.push(format!(
                "{version}: {count} available, {}",
                told(uid, pod.as_ref())
            ));
            if fewest
                .as_ref()
                .map_or(count == matching, |f| count < f.count)
            {
                fewest = Some(Fewest {
                    count,
                    until: story.len(),
                    story: Vec::new(),
                });
            }
        }
        let mut fewest = fewest
            .unwrap_or_else(|| panic!("there were never {matching} available Pods: {story:#?}"));
        fewest.story = story;
        fewest
    }

    /// Waits until the watch has delivered all that a list shows now.
    async fn catch_up(&self) {
        let list = self
            .scope
            .pods()
            .list(&ListParams::default())
            .await
            .unwrap();
        let now: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        let listed: BTreeMap<_, _> = list
            .items
            .iter()
            .map(|p| (p.uid().unwrap(), version(p)))
            .collect();
        wait::until("the observer to catch up", async || {
            let seen = self.seen.lock();
            let newest = seen
                .events
                .iter()
                .map(|(v, ..)| *v)
                .max()
                .unwrap_or_default();
            let missing = listed
                .iter()
                .any(|(uid, v)| seen.now.get(uid).is_none_or(|s| s < v) && newest < now);
            let extra = seen
                .now
                .iter()
                .any(|(uid, v)| *v <= now && !listed.contains_key(uid));
            !missing && !extra
        })
        .await;
    }
}

/// The fewest Pods that were available, and how it came to that.
pub struct Fewest {
    pub count: usize,
    until: usize,
    story: Vec<String>,
}

impl Fewest {
    /// Fails with the last changes before the moment of least availability.
    pub fn at_least(&self, wanted: usize) {
        let last = &self.story[self.until.saturating_sub(25)..self.until];
        assert!(
            self.count >= wanted,
            "{} available instead of {wanted}: {last:#?}",
            self.count
        );
    }
}

/// A Pod as far as its availability goes.
fn told(uid: &str, pod: Option<&Pod>) -> String {
    let Some(pod) = pod else {
        return format!("{uid} is gone");
    };
    let keys: Vec<_> = pod
        .labels()
        .keys()
        .filter(|k| k.contains("kusionstack.io"))
        .collect();
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let conditions: Vec<_> = conditions
        .map(|c| format!("{}={}", c.type_, c.status))
        .collect();
    let going = if pod.metadata.deletion_timestamp.is_some() {
        "terminating"
    } else {
        ""
    };
    format!("{} {going} {keys:?} {conditions:?}", pod.name_any())
}

/// Available, and the kubelet has caught up with the last in-place change.
fn serves(pod: &Pod) -> bool {
    let running = |name: &str| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|s| s.container_statuses.iter().flatten());
        statuses
            .into_iter()
            .find(|s| s.name == name)
            .map(|s| s.image.clone())
    };
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    is_available(pod) && containers.into_iter().all(|c| running(&c.name) == c.image)
}

fn version(pod: &Pod) -> u64 {
    pod.resource_version().unwrap().parse().unwrap()
}

async fn follow(pods: Api<Pod>, mut from: String, seen: Arc<Mutex<History>>) {
    loop {
        // The API server closes a watch now and then, and is killed by some tests; no event is lost by asking again.
        if let Ok(stream) = pods
            .watch(&WatchParams::default().timeout(290), &from)
            .await
        {
            let mut stream = stream.boxed();
            while let Some(Ok(event)) = stream.next().await {
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        from = pod.resource_version().unwrap();
                        seen.lock().push(pod, false);
                    }
                    WatchEvent::Deleted(pod) => {
                        from = pod.resource_version().unwrap();
                        seen.lock().push(pod, true);
                    }
                    WatchEvent::Bookmark(mark) => from = mark.metadata.resource_version,
                    WatchEvent::Error(error) => panic!("the observer lost its place: {error:?}"),
                }
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
