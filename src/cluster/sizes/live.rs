//! Live reads of owners: those that no watch tells of, and those whose watch seems to trail.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use http::Request;
use kube::{Client, Error};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::discovery::{self, Discovery};
use super::shared::Shared;
use super::wire::{self, Object};
use super::{Kind, Reading};
use crate::cluster::index::Index;
use crate::cluster::path;
use crate::domain::pod::Owner;
use crate::ledger::store::{RuleKey, Uid};

/// Reads under way at a time for one rule object.
const AT_ONCE: usize = 16;
/// Reads under way at a time for all rule objects. Whoever may label Pods may name any number of owners.
const AT_ONCE_IN_ALL: usize = 64;
/// No read takes longer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// A read may show an owner that is in doubt in turn: a ReplicaSet, then its controller.
const ROUNDS: usize = 3;

/// A reading that is this old is good enough for a decision.
pub const RECENT: Duration = Duration::from_secs(1);

/// Reads owners live, and puts what it reads into the index.
#[derive(Debug)]
pub struct LiveOwners {
    index: Arc<Index>,
    /// By namespace and UID; an error is the answer too.
    reads: Shared<(String, String), Result<(), String>>,
    discovery: Discovery,
    turns: Semaphore,
}

/// An owner that could not be read, so that it is not known how many Pods there should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Kind and name.
    pub owner: String,
    /// What went wrong.
    pub error: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} can't be read: {}", self.owner, self.error)
    }
}

/// `autoscaling/v1` Scale; its metadata is that of the scaled object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Scale {
    metadata: ScaleMeta,
    spec: ScaleSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScaleMeta {
    uid: String,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScaleSpec {
    /// Absent for 0.
    replicas: i64,
}

impl LiveOwners {
    /// Reads for this index.
    pub fn new(index: &Arc<Index>) -> Arc<Self> {
        Arc::new(LiveOwners {
            index: Arc::clone(index),
            reads: Shared::default(),
            discovery: Discovery::default(),
            turns: Semaphore::new(AT_ONCE_IN_ALL),
        })
    }

    /// Reads the owners that a rule object is in doubt about, unless a reading is younger than `age`. Afterwards the index
    /// knows how many Pods the rule object expects. Reads nothing if there is no doubt.
    ///
    /// # Errors
    /// The first owner that could not be read.
    pub async fn refresh(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
    ) -> Result<(), Unreadable> {
        let mut done = HashSet::new();
        for _ in 0..ROUNDS {
            let mut due = self.index.doubts(rule);
            due.retain(|owner| done.insert(owner.uid.clone()));
            if due.is_empty() {
                return Ok(());
            }
            let reads = due
                .into_iter()
                .map(|owner| self.read(client, &rule.namespace, owner, age, deadline));
            let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
            while let Some(outcome) = reads.next().await {
                outcome?;
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        client: &Client,
        namespace: &str,
        owner: Arc<Owner>,
        age: Duration,
        deadline: Instant,
    ) -> Result<(), Unreadable> {
        let key = (namespace.to_owned(), owner.uid.clone());
        let read = || async {
            let limit = Instant::now() + READ_TIMEOUT;
            let timed_out = || Err("the API server gave no answer in time".to_owned());
            let read = async {
                let _turn = self.turns.acquire().await;
                self.fetch(client, namespace, &owner).await
            };
            timeout_at(limit, read)
                .await
                .unwrap_or_else(|_| timed_out())
        };
        // A failure is not asked for again at once, and is not kept for longer than it has to be.
        let age = |answer: &Result<(), String>| match answer {
            Ok(()) => age,
            Err(_) => age.min(RECENT),
        };
        let outcome = timeout_at(deadline, self.reads.get(&key, age, read)).await;
        let late = || Err("no answer within the review's deadline".to_owned());
        outcome
            .unwrap_or_else(|_| late())
            .map_err(|error| Unreadable {
                owner: format!("{} {}", owner.kind, owner.name),
                error,
            })
    }

    async fn fetch(&self, client: &Client, namespace: &str, owner: &Owner) -> Result<(), String> {
        let uid = Uid::from(owner.uid.as_str());
        let put = |reading| self.index.set_reading(namespace, uid.clone(), reading);
        // A Pod's word for the kind and the name of an owner may be forged. What the watch has shown of the UID is not.
        let known = {
            let state = self.index.read();
            let workload = state.namespace(namespace).and_then(|n| n.workload(&uid));
            workload.map(|w| w.as_owner(&uid))
        };
        let owner = known.as_ref().unwrap_or(owner);
        if !is_version(&owner.api_version)
            || ![&owner.name, namespace].into_iter().all(path::is_plain)
        {
            put(Reading::Gone); // no object can have such a name
            return Ok(());
        }
        if let Some(kind) = Kind::of(owner) {
            let path = kind
                .object_path(namespace, &owner.name)
                .map_err(|e| e.to_string())?;
            let found: Option<Object> = match get(client, &path).await? {
                Answer::Found(object) => Some(object),
                Answer::NoObject => None,
                Answer::NotServed => {
                    put(Reading::NoScale);
                    return Ok(());
                }
            };
            let ((_, found), workload) = found.map(|o| wire::read(kind, o)).unwrap_or_default();
            let workload = workload.filter(|_| found == uid);
            self.index.set_workload(namespace, uid, workload);
            return Ok(());
        }
        let resource = self
            .discovery
            .resource(client, &owner.api_version, &owner.kind);
        let Some(resource) = resource.await?.filter(|r| r.scale) else {
            put(Reading::NoScale);
            return Ok(());
        };
        let api = discovery::root(&owner.api_version);
        let namespace = resource.namespaced.then_some(namespace);
        let path = path::object(
            &api,
            namespace,
            &resource.plural,
            &owner.name,
            Some("scale"),
        )
        .map_err(|e| e.to_string())?;
        let scale: Option<Scale> = match get(client, &path).await? {
            Answer::Found(scale) => Some(scale),
            Answer::NoObject => None,
            Answer::NotServed => return Err(format!("the API server does not serve {path} yet")),
        };
        let scale = scale
            .filter(|s| s.metadata.uid == owner.uid && s.metadata.deletion_timestamp.is_none());
        put(scale.map_or(Reading::Gone, |s| {
            Reading::Count(u32::try_from(s.spec.replicas.max(0)).unwrap_or(u32::MAX))
        }));
        Ok(())
    }
}

/// What the API server answers to a GET.
enum Answer<T> {
    Found(T),
    NoObject,
    /// 404 without a word of an object: the path is not known.
    NotServed,
}

async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<Answer<T>, String> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|e| e.to_string())?;
    match client.request::<T>(request).await {
        Ok(found) => Ok(Answer::Found(found)),
        Err(Error::Api(status)) if status.code == 404 => match status.reason.as_str() {
            "NotFound" => Ok(Answer::NoObject),
            _ => Ok(Answer::NotServed),
        },
        Err(Error::Api(status)) => Err(status.message),
        Err(e) => Err(e.to_string()),
    }
}

/// Whether `group/version` of an owner reference can stand in a path. The API server does not check it.
fn is_version(api_version: &str) -> bool {
    api_version.split('/').count() <= 2 && api_version.split('/').all(path::is_plain)
}

#[cfg(test)]
mod tests;
