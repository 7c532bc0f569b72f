//! Follows the Pods of a namespace, or other objects, and replays them in resourceVersion order.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;

use crate::pods::is_available;
use crate::scope::Scope;
use crate::wait;

/// What can be followed.
pub trait Followed: ResourceExt + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}

impl<K: ResourceExt + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Followed for K {}

/// Sees every change of every Pod of a namespace, or of other objects, from the moment it was made.
pub struct Observer<K = Pod> {
    api: Api<K>,
    seen: Arc<Mutex<History<K>>>,
    _watching: AbortOnDropHandle<()>,
}

/// One change of an object.
#[derive(Clone, Debug)]
pub struct Change<K> {
    /// The resource version that the change produced.
    pub version: u64,
    /// UID of the object.
    pub uid: String,
    /// What is there from now on. Gone: `None`.
    pub object: Option<K>,
    /// When the watch delivered it.
    pub at: Instant,
}

/// Objects by UID; each entry replaces the one before.
struct History<K> {
    events: Vec<Change<K>>,
    now: BTreeMap<String, u64>,
}

impl<K: Followed> History<K> {
    fn push(&mut self, object: K, gone: bool) {
        let (version, uid) = (version(&object), object.uid().unwrap());
        if gone {
            self.now.remove(&uid);
        } else {
            self.now.insert(uid.clone(), version);
        }
        self.events.push(Change {
            version,
            uid,
            object: (!gone).then_some(object),
            at: Instant::now(),
        });
    }
}

impl<K: Followed> Observer<K> {
    /// Begins to follow all objects of an API.
    pub async fn follow(api: Api<K>) -> Observer<K> {
        let seen = Arc::new(Mutex::new(History {
            events: Vec::new(),
            now: BTreeMap::new(),
        }));
        let list = api.list(&ListParams::default()).await.unwrap();
        let from = list.metadata.resource_version.clone().unwrap();
        for object in list.items {
            lock(&seen).push(object, false);
        }
        let watching = tokio::spawn(follow(api.clone(), from, seen.clone()));
        Observer {
            api,
            seen,
            _watching: AbortOnDropHandle::new(watching),
        }
    }

    /// Every change in the order in which they were written; complete up to the call.
    pub async fn history(&self) -> Vec<Change<K>> {
        self.catch_up().await;
        let mut seen = lock(&self.seen);
        seen.events.sort_by_key(|change| change.version);
        seen.events.clone()
    }

    /// Waits until the watch has delivered all that a list shows now.
    async fn catch_up(&self) {
        let list = self.api.list(&ListParams::default()).await.unwrap();
        let now: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        let listed: BTreeMap<_, _> = list
            .items
            .iter()
            .map(|object| (object.uid().unwrap(), version(object)))
            .collect();
        wait::until("the observer to catch up", async || {
            let seen = lock(&self.seen);
            let newest = seen.events.iter().map(|change| change.version).max();
            let newest = newest.unwrap_or_default();
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

impl Observer {
    /// Begins to follow the Pods of a namespace.
    pub async fn start(scope: &Scope) -> Observer {
        Observer::follow(scope.pods()).await
    }

    /// Every version of every Pod in the order in which they were written; complete up to the call.
    pub async fn versions(&self) -> Vec<Pod> {
        let changes = self.changes().await;
        changes.into_iter().filter_map(|(_, pod)| pod).collect()
    }

    /// The same by UID, with `None` where a Pod is gone.
    pub async fn changes(&self) -> Vec<(String, Option<Pod>)> {
        let history = self.history().await.into_iter();
        history.map(|change| (change.uid, change.object)).collect()
    }

    /// Over every change since `matching` Pods that `counts` were available for the first time: the fewest that were.
    /// Complete up to the call.
    pub async fn fewest_available(&self, counts: impl Fn(&Pod) -> bool, matching: usize) -> Fewest {
        let history = self.history().await;
        let mut available: BTreeMap<&str, bool> = BTreeMap::new();
        let mut story = Vec::new();
        let mut fewest: Option<Fewest> = None;
        for change in &history {
            let (version, uid, pod) = (change.version, &change.uid, &change.object);
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
}

/// The fewest Pods that were available, and how it came to that.
pub struct Fewest {
    /// How many were available.
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
pub fn told(uid: &str, pod: Option<&Pod>) -> String {
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
pub fn serves(pod: &Pod) -> bool {
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

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

async fn follow<K: Followed>(api: Api<K>, mut from: String, seen: Arc<Mutex<History<K>>>) {
    loop {
        // The API server closes a watch now and then, and is killed by some tests; no event is lost by asking again.
        if let Ok(stream) = api.watch(&WatchParams::default().timeout(290), &from).await {
            let mut stream = stream.boxed();
            while let Some(Ok(event)) = stream.next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        from = object.resource_version().unwrap();
                        lock(&seen).push(object, false);
                    }
                    WatchEvent::Deleted(object) => {
                        from = object.resource_version().unwrap();
                        lock(&seen).push(object, true);
                    }
                    WatchEvent::Bookmark(mark) => from = mark.metadata.resource_version,
                    WatchEvent::Error(error) => panic!("the observer lost its place: {error:?}"),
                }
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn lock<K>(history: &Mutex<History<K>>) -> MutexGuard<'_, History<K>> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}
