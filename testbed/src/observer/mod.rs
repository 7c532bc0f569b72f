//! An independent observer: it follows objects of a namespace by watches of its own on the API server.
//!
//! The observer never asks the server under test, and it shares no code with that server. Resource versions order all
//! changes, of all kinds, as etcd stored them. Tests keep whole objects ([`Observer::follow`]). The commands keep of
//! Pods and their owners a [`Fact`] each ([`Observer::of_budgets`]), and [`judge`] says which changes broke a rule.

mod audit;
mod facts;
mod fewest;
pub mod judge;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use futures::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

pub use audit::requests_for;
pub use facts::{Fact, Owner, Pod};
pub use fewest::{Fewest, describe_pod, serves};

use crate::scope::Scope;
use crate::wait;

/// Timeout for the watches to deliver the state of a list.
const CATCH_UP: Duration = Duration::from_secs(120);

/// The form in which an observer stores an object.
pub trait Record: Sized + Send + Sync + 'static {
    /// Whether an observer may skip the changes that a restarted API server does not deliver any more. Otherwise the
    /// observer fails, because a test that judges every version must not miss one.
    const MAY_SKIP: bool;

    /// Reads an object of a kind.
    ///
    /// # Errors
    /// When the object is not of the kind.
    fn read(kind: &str, object: &DynamicObject) -> Result<Self>;

    /// Whether a change from `former` to this value has no relevance and is left out.
    fn repeats(&self, former: &Self) -> bool;
}

/// A whole object, in every version.
impl<K> Record for K
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    const MAY_SKIP: bool = false;

    fn read(_: &str, object: &DynamicObject) -> Result<Self> {
        Ok(serde_json::from_value(serde_json::to_value(object)?)?)
    }

    fn repeats(&self, _: &Self) -> bool {
        false
    }
}

/// One stored change of one object.
#[derive(Debug)]
pub struct Change<T = Fact> {
    /// The resource version that the change produced.
    pub version: u64,
    /// When the watch delivered the change.
    pub at: Instant,
    /// UID of the object.
    pub uid: String,
    /// `Kind/name` of the object.
    pub name: String,
    /// The object after the change; `None` after its removal.
    pub object: Option<Arc<T>>,
    /// Whether the object existed before the observer started.
    pub listed: bool,
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self {
            version: self.version,
            at: self.at,
            uid: self.uid.clone(),
            name: self.name.clone(),
            object: self.object.clone(),
            listed: self.listed,
        }
    }
}

/// The changes that the watches have delivered so far.
#[derive(Debug)]
struct Seen<T> {
    /// All changes, except irrelevant ones.
    changes: Vec<Change<T>>,
    /// The last change of each object, by UID.
    last: BTreeMap<String, Change<T>>,
    failure: Option<String>,
}

/// Follows objects of a namespace until it is dropped.
#[derive(Debug)]
pub struct Observer<T = k8s_openapi::api::core::v1::Pod> {
    apis: Vec<Api<DynamicObject>>,
    seen: Arc<Mutex<Seen<T>>>,
    _watching: Vec<AbortOnDropHandle<()>>,
}

/// The [`ApiResource`] of a kind, with the plural that English gives it.
#[must_use]
pub fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The built-in kinds that own Pods, directly or through another object.
#[must_use]
pub fn workload_kinds() -> Vec<ApiResource> {
    vec![
        resource("apps", "v1", "Deployment"),
        resource("apps", "v1", "ReplicaSet"),
        resource("apps", "v1", "StatefulSet"),
        resource("apps", "v1", "DaemonSet"),
        resource("", "v1", "ReplicationController"),
        resource("batch", "v1", "Job"),
        resource("apps.kusionstack.io", "v1alpha1", "CollaSet"),
    ]
}

impl Observer<Fact> {
    /// Begins to follow the Pods of a namespace and the objects of the kinds `owners`.
    ///
    /// # Errors
    /// When one of the kinds cannot be listed.
    pub async fn of_budgets(
        client: &Client,
        namespace: &str,
        owners: &[ApiResource],
    ) -> Result<Self> {
        let kinds = [&[resource("", "v1", "Pod")], owners].concat();
        Self::follow_kinds(client, namespace, kinds).await
    }
}

#[allow(clippy::unwrap_used)] // a test fails by a panic
impl<K: Record + Resource<DynamicType = ()>> Observer<K> {
    /// Begins to follow the objects of a kind in the namespace of a test.
    ///
    /// # Panics
    /// When they cannot be listed.
    pub async fn follow(scope: &Scope) -> Self {
        let kinds = vec![ApiResource::erase::<K>(&())];
        let following = Self::follow_kinds(&scope.client, &scope.namespace, kinds);
        following.await.unwrap()
    }

    /// As [`Observer::changes`].
    ///
    /// # Panics
    /// Where [`Observer::changes`] returns an error.
    pub async fn history(&self) -> Vec<Change<K>> {
        self.changes().await.unwrap()
    }
}

impl<T: Record> Observer<T> {
    async fn follow_kinds(
        client: &Client,
        namespace: &str,
        kinds: Vec<ApiResource>,
    ) -> Result<Self> {
        let seen = Arc::new(Mutex::new(Seen {
            changes: Vec::new(),
            last: BTreeMap::new(),
            failure: None,
        }));
        let (mut apis, mut watching) = (Vec::new(), Vec::new());
        for kind in kinds {
            let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind);
            let list = api.list(&ListParams::default()).await;
            let list = list.with_context(|| format!("listing {}", kind.plural))?;
            for object in list.items {
                lock(&seen).push(&typed(object, &kind), false, true)?;
            }
            let from = list.metadata.resource_version.unwrap_or_default();
            let follow = follow(api.clone(), kind, from, seen.clone());
            watching.push(AbortOnDropHandle::new(tokio::spawn(follow)));
            apis.push(api);
        }
        Ok(Self {
            apis,
            seen,
            _watching: watching,
        })
    }

    /// All changes in the order in which they were stored, complete up to the time of the call.
    ///
    /// # Errors
    /// If a watch lost its position, or did not deliver the state of a list in two minutes.
    pub async fn changes(&self) -> Result<Vec<Change<T>>> {
        for api in &self.apis {
            let list = retry_list(api).await?;
            let upto: u64 = list.metadata.resource_version.unwrap_or_default().parse()?;
            let mut listed = BTreeMap::new();
            for object in &list.items {
                listed.insert(object.uid().unwrap_or_default(), version(object)?);
            }
            let kind = api.resource_url();
            wait::within("the observer to catch up", CATCH_UP, || async {
                let seen = lock(&self.seen);
                if let Some(failure) = &seen.failure {
                    bail!("the observer lost its place: {failure}");
                }
                let behind = listed
                    .iter()
                    .find(|(uid, v)| seen.newest(uid).is_none_or(|s| s < **v));
                if let Some((uid, _)) = behind {
                    bail!("{kind}: {uid} is not up to date");
                }
                // A removal shows in that the list lacks the object.
                let existing = seen.existing_uids(kind, upto);
                Ok(existing.into_iter().all(|uid| listed.contains_key(uid)))
            })
            .await?;
        }
        Ok(self.changes_so_far())
    }

    /// The changes so far, without waiting for further ones.
    #[must_use]
    pub fn changes_so_far(&self) -> Vec<Change<T>> {
        let mut changes = lock(&self.seen).changes.clone();
        // Listed objects come first, and owners before their Pods.
        changes.sort_by_key(|change| {
            let listed_pod = change.listed && change.name.starts_with("Pod/");
            (!change.listed, listed_pod, change.version)
        });
        changes
    }
}

impl<T: Record> Seen<T> {
    fn push(&mut self, object: &DynamicObject, is_removed: bool, listed: bool) -> Result<()> {
        let kind = object.types.as_ref().map(|t| t.kind.as_str());
        let kind = kind.unwrap_or_default();
        let mut change = Change {
            version: version(object)?,
            at: Instant::now(),
            name: format!("{kind}/{}", object.name_any()),
            uid: object.uid().unwrap_or_default(),
            object: match is_removed {
                true => None,
                false => Some(Arc::new(T::read(kind, object)?)),
            },
            listed,
        };
        let last = self.last.get(&change.uid);
        let repeats = last.filter(|last| match (&last.object, &change.object) {
            (Some(former), Some(now)) => now.repeats(former),
            (None, None) => true,
            _ => false,
        });
        match repeats {
            // Equal facts share their memory.
            Some(last) => change.object.clone_from(&last.object),
            None => self.changes.push(change.clone()),
        }
        self.last.insert(change.uid.clone(), change);
        Ok(())
    }

    /// Records the removal of an object.
    fn remove(&mut self, uid: &str, version: u64) {
        if let Some(last) = self.last.get_mut(uid) {
            last.version = version;
            last.at = Instant::now();
            last.object = None;
            last.listed = false;
            self.changes.push(last.clone());
        }
    }

    /// Version up to which the observer knows an object, existing or removed.
    fn newest(&self, uid: &str) -> Option<u64> {
        self.last.get(uid).map(|change| change.version)
    }

    /// UIDs of the objects of one URL that exist since `upto` or before.
    fn existing_uids(&self, url: &str, upto: u64) -> Vec<&String> {
        let plural = url.rsplit('/').next().unwrap_or_default();
        let of_url = |change: &&Change<T>| {
            let kind = change.name.split('/').next().unwrap_or_default();
            format!("{}s", kind.to_lowercase()) == plural
        };
        let old = |change: &&Change<T>| change.object.is_some() && change.version <= upto;
        let existing_uids = self.last.values().filter(old).filter(of_url);
        existing_uids.map(|change| &change.uid).collect()
    }
}

async fn retry_list(api: &Api<DynamicObject>) -> Result<kube::core::ObjectList<DynamicObject>> {
    let mut last = None;
    for _ in 0..60 {
        match api.list(&ListParams::default()).await {
            Ok(list) => return Ok(list),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    match last {
        Some(error) => Err(error).context("listing for the observer"),
        None => bail!("listing for the observer"),
    }
}

/// Makes up for the changes that a restarted API server does not deliver any more: each object jumps to its present
/// state. Few are concerned, since nothing changes while the API server is away.
async fn relist<T: Record>(
    api: &Api<DynamicObject>,
    kind: &ApiResource,
    from: &mut String,
    seen: &Mutex<Seen<T>>,
) -> Result<()> {
    let list = retry_list(api).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let upto: u64 = version.parse()?;
    let listed: BTreeSet<String> = list.items.iter().filter_map(ResourceExt::uid).collect();
    let mut seen = lock(seen);
    for object in list.items {
        let known = seen.newest(&object.uid().unwrap_or_default());
        if known != Some(self::version(&object)?) {
            seen.push(&typed(object, kind), false, false)?;
        }
    }
    let existing = seen.existing_uids(api.resource_url(), upto);
    let removed: Vec<String> = existing
        .into_iter()
        .filter(|uid| !listed.contains(*uid))
        .cloned()
        .collect();
    for uid in removed {
        seen.remove(&uid, upto);
    }
    *from = version;
    Ok(())
}

/// An item of a list, which does not name its kind.
fn typed(mut object: DynamicObject, kind: &ApiResource) -> DynamicObject {
    object.types = Some(kube::core::TypeMeta {
        api_version: kind.api_version.clone(),
        kind: kind.kind.clone(),
    });
    object
}

/// Follows one kind. It resumes at the version where a watch ended, so that it misses no change.
async fn follow<T: Record>(
    api: Api<DynamicObject>,
    kind: ApiResource,
    mut from: String,
    seen: Arc<Mutex<Seen<T>>>,
) {
    loop {
        let params = WatchParams::default().timeout(290);
        if let Ok(stream) = api.watch(&params, &from).await {
            let mut stream = stream.boxed();
            while let Some(Ok(event)) = stream.next().await {
                let (object, is_removed) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(mark) => {
                        from = mark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => {
                        // An API server has no older versions after a start.
                        let listed = match status.code {
                            410 if T::MAY_SKIP => relist(&api, &kind, &mut from, &seen).await,
                            410 => Err(anyhow!("the API server does not know version {from}")),
                            _ => Ok(()),
                        };
                        if let Err(error) = listed {
                            lock(&seen).failure = Some(format!("{error:#}"));
                            return;
                        }
                        break;
                    }
                };
                from = object.resource_version().unwrap_or(from);
                let pushed = lock(&seen).push(&object, is_removed, false);
                if let Err(error) = pushed {
                    lock(&seen).failure = Some(format!("{error:#}"));
                    return;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn lock<T>(seen: &Mutex<Seen<T>>) -> MutexGuard<'_, Seen<T>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn version(object: &DynamicObject) -> Result<u64> {
    let version = object.resource_version().context("a resource version")?;
    version.parse().context("a resource version")
}

/// A value at a JSON pointer; `null` when it is absent.
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}
