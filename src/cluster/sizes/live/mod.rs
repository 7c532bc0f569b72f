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
use tracing::debug;

use super::discovery::{self, Discovery};
use super::failure::{Failure, Remedy};
use super::shared::Shared;
use super::wire::{self, Object};
use super::{Basis, Reading, Workload};
use crate::cluster::index::Index;
use crate::cluster::kind::Kind;
use crate::cluster::{absent, path};
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

/// References that are followed to one owner. Whoever may create Pods may give them any number of references to one UID.
const MOST_REFERENCES: usize = 16;

/// A reading that is this old is good enough for a decision.
pub const RECENT: Duration = Duration::from_secs(1);

/// Reads owners live, and puts what it reads into the index.
#[derive(Debug)]
pub struct LiveOwners {
    index: Arc<Index>,
    /// By namespace and UID; an error is the answer too.
    reads: Shared<(String, Uid), Result<(), Unreadable>>,
    discovery: Discovery,
    turns: Semaphore,
}

/// Why it is not known how many Pods an owner is to have. `owner` is kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The owner could not be read.
    Failed {
        /// The owner.
        owner: String,
        /// What went wrong, in a clause that does not change from try to try.
        error: String,
        /// What helps.
        remedy: Remedy,
    },
    /// The owner was read, and a field that its `scale` needs is not set. Waiting does not help: somebody must set it.
    Unset {
        /// The owner.
        owner: String,
        /// Path of the field, such as `spec.replicas`.
        field: String,
    },
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Failed { owner, error, .. } => write!(f, "{owner} can't be read: {error}"),
            Unreadable::Unset { owner, field } => write!(f, "{owner} does not set {field}"),
        }
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
        let failed = self.rounds(client, rule, age, deadline, true).await;
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// As [`LiveOwners::refresh`], and reads on after a failure: all owners that could not be read, in no order.
    pub async fn refresh_all(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
    ) -> Vec<Unreadable> {
        self.rounds(client, rule, age, deadline, false).await
    }

    /// The failures; the first alone if that is enough.
    async fn rounds(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
        first_is_enough: bool,
    ) -> Vec<Unreadable> {
        let (mut done, mut failed) = (HashSet::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut due = self.index.doubts(rule);
            due.retain(|uid| done.insert(uid.clone()));
            if due.is_empty() {
                break;
            }
            let reads = due
                .into_iter()
                .map(|uid| self.read(client, &rule.namespace, uid, age, deadline));
            let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
            while let Some(outcome) = reads.next().await {
                failed.extend(outcome.err());
                if first_is_enough && !failed.is_empty() {
                    return failed;
                }
            }
        }
        failed
    }

    async fn read(
        &self,
        client: &Client,
        namespace: &str,
        uid: Uid,
        age: Duration,
        deadline: Instant,
    ) -> Result<(), Unreadable> {
        let late = || Err(self.unreadable(namespace, &uid, Failure::late()));
        let read = || async {
            let limit = Instant::now() + READ_TIMEOUT;
            let read = async {
                let _turn = self.turns.acquire().await;
                self.fetch(client, namespace, &uid).await
            };
            timeout_at(limit, read).await.unwrap_or_else(|_| late())
        };
        // A failure is not asked for again at once, and is not kept for longer than it has to be.
        let age = |answer: &Result<(), Unreadable>| match answer {
            Ok(()) if self.is_read(namespace, &uid) => age,
            Ok(()) => Duration::ZERO,
            Err(_) => age.min(RECENT),
        };
        let key = (namespace.to_owned(), uid.clone());
        timeout_at(deadline, self.reads.get(&key, age, read))
            .await
            .unwrap_or_else(|_| late())
    }

    fn is_read(&self, namespace: &str, uid: &str) -> bool {
        let state = self.index.read();
        state.namespace(namespace).is_some_and(|n| n.is_read(uid))
    }

    /// The reference that leads to the owner, if it was found before; else all references to its UID.
    fn references(&self, namespace: &str, uid: &str) -> (Option<Arc<Owner>>, Vec<Arc<Owner>>) {
        let state = self.index.read();
        let Some(home) = state.namespace(namespace) else {
            return (None, Vec::new());
        };
        match home.found_owner(uid) {
            Some(owner) => (Some(owner), Vec::new()),
            None => (None, home.references(uid)),
        }
    }

    fn unreadable(&self, namespace: &str, uid: &str, failure: Failure) -> Unreadable {
        let (found, all) = self.references(namespace, uid);
        let owner = found.as_ref().or(all.first());
        Unreadable::Failed {
            owner: owner.map_or_else(|| format!("the owner {uid}"), |owner| describe(owner)),
            error: failure.cause,
            remedy: failure.remedy,
        }
    }

    /// Reads an owner. The reference of a Pod may be forged: an object that was found before is read by the reference that
    /// led to it, and an object that was not found is gone only if no reference leads to it.
    async fn fetch(&self, client: &Client, namespace: &str, uid: &Uid) -> Result<(), Unreadable> {
        for _ in 0..ROUNDS {
            let (found, references) = self.references(namespace, uid);
            let read = async |owner: &Arc<Owner>| {
                let read = self.follow(client, namespace, owner).await;
                read.map_err(|failure| Unreadable::Failed {
                    owner: describe(owner),
                    error: failure.cause,
                    remedy: failure.remedy,
                })
            };
            if let Some(owner) = found {
                let answer = read(&owner).await?;
                let outcome = answer.outcome(&owner);
                self.put(namespace, uid, answer, Basis::Object(Some(owner)));
                return outcome;
            }
            let (mut failure, mut without_number) = (None, None);
            for owner in references.iter().take(MOST_REFERENCES) {
                match read(owner).await {
                    Ok(answer @ (Followed::Watched(_) | Followed::Count(_))) => {
                        let basis = Basis::Object(Some(Arc::clone(owner)));
                        self.put(namespace, uid, answer, basis);
                        return Ok(());
                    }
                    Ok(answer @ Followed::Unset(_)) => without_number = Some((owner, answer)),
                    Ok(Followed::NoScale) => {
                        without_number = without_number.or(Some((owner, Followed::NoScale)));
                    }
                    Ok(Followed::Gone) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if references.len() > MOST_REFERENCES {
                let cause = format!(
                    "Pods name more than {MOST_REFERENCES} different objects by the UID {uid}, and none of the \
                     {MOST_REFERENCES} that most Pods name has it"
                );
                let remedy = Remedy::References;
                return Err(self.unreadable(namespace, uid, Failure { cause, remedy }));
            }
            let (first, answer) = match without_number {
                Some((owner, answer)) => (Some(owner), answer),
                None => (None, Followed::Gone),
            };
            let outcome = first.map_or(Ok(()), |owner| answer.outcome(owner));
            let others = references.iter().filter(|o| Some(*o) != first);
            let basis = first.into_iter().chain(others).cloned().collect();
            if self.put(namespace, uid, answer, Basis::References(basis)) {
                return outcome;
            }
        }
        let failure = Failure::passing("its Pods are given other owner references all the time");
        Err(self.unreadable(namespace, uid, failure))
    }

    /// Puts an answer into the index; see [`Index::set_reading`].
    fn put(&self, namespace: &str, uid: &Uid, answer: Followed, basis: Basis) -> bool {
        let reading = match answer {
            Followed::Watched(workload) => {
                self.index
                    .set_workload(namespace, uid.clone(), Some(workload));
                return true;
            }
            Followed::Count(n) => Reading::Count(n),
            Followed::Unset(_) => Reading::Unset,
            Followed::NoScale => Reading::NoScale,
            Followed::Gone => Reading::Gone,
        };
        self.index
            .set_reading(namespace, uid.clone(), reading, basis)
    }

    /// Reads what a reference leads to.
    async fn follow(
        &self,
        client: &Client,
        namespace: &str,
        owner: &Owner,
    ) -> Result<Followed, Failure> {
        if !is_version(&owner.api_version)
            || ![&owner.name, namespace].into_iter().all(path::is_plain)
        {
            return Ok(Followed::Gone); // no object can have such a name
        }
        if let Some(kind) = Kind::of_owner(owner) {
            let path = kind
                .object_path(namespace, &owner.name)
                .map_err(|e| Failure::no_request(&e))?;
            let found: Option<Object> = match get(client, &path, owner, kind.plural()).await? {
                Answer::Found(object) => Some(object),
                Answer::NoObject => None,
                Answer::Unset(field) => return Ok(Followed::Unset(field)),
                Answer::NotServed => {
                    let again =
                        self.discovery
                            .resource_again(client, &owner.api_version, &owner.kind);
                    return match again.await? {
                        None => Ok(Followed::NoScale),
                        Some(_) => Err(not_served(&path)),
                    };
                }
            };
            let ((_, found), workload) = found.map(|o| wire::read(kind, o)).unwrap_or_default();
            let workload = workload.filter(|_| *found == *owner.uid);
            return Ok(workload.map_or(Followed::Gone, Followed::Watched));
        }
        let resource = self
            .discovery
            .resource(client, &owner.api_version, &owner.kind);
        let Some(resource) = resource.await?.filter(|r| r.scale) else {
            return Ok(Followed::NoScale);
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
        .map_err(|e| Failure::no_request(&e))?;
        let scale: Option<Scale> = match get(client, &path, owner, &resource.plural).await? {
            Answer::Found(scale) => Some(scale),
            Answer::NoObject => {
                // A kind that has lost its `scale` answers so for every object.
                let again = self
                    .discovery
                    .resource_again(client, &owner.api_version, &owner.kind);
                if !again.await?.is_some_and(|r| r.scale) {
                    return Ok(Followed::NoScale);
                }
                None
            }
            Answer::Unset(field) => return Ok(Followed::Unset(field)),
            Answer::NotServed => return Err(not_served(&path)),
        };
        let scale = scale
            .filter(|s| s.metadata.uid == owner.uid && s.metadata.deletion_timestamp.is_none());
        Ok(scale.map_or(Followed::Gone, |s| {
            Followed::Count(u32::try_from(s.spec.replicas.max(0)).unwrap_or(u32::MAX))
        }))
    }
}

/// Where a reference leads.
enum Followed {
    /// To the owner, of a watched kind.
    Watched(Workload),
    /// To the owner; `spec.replicas` of its `scale`.
    Count(u32),
    /// To an object that does not set this field, which its `scale` needs. Its UID is not known.
    Unset(String),
    /// The kind has no `scale`, or is not served at all.
    NoScale,
    /// To no object of the UID, or to one whose deletion has begun.
    Gone,
}

impl Followed {
    /// Whether a decision can be made on it.
    fn outcome(&self, owner: &Owner) -> Result<(), Unreadable> {
        match self {
            Followed::Unset(field) => Err(Unreadable::Unset {
                owner: describe(owner),
                field: field.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// The field that the API server misses, from its answer to a GET of `scale`: 500, "the spec replicas field
/// \".spec.replicas\" does not exist" (apiextensions-apiserver, `pkg/registry/customresource/etcd.go`).
fn unset_field(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("the spec replicas field ")?;
    let path = rest.strip_suffix(" does not exist")?;
    Some(path.trim_matches('"').trim_start_matches('.').to_owned())
}

fn describe(owner: &Owner) -> String {
    format!("{} {}", owner.kind, owner.name)
}

/// What the API server answers to a GET.
enum Answer<T> {
    Found(T),
    NoObject,
    /// 404 without a word of the object: the path is not known, or the answer is not the API server's.
    NotServed,
    /// An error: the object does not set this field, see [`unset_field`].
    Unset(String),
}

fn not_served(path: &str) -> Failure {
    Failure::passing(format!("the API server does not serve {path} now"))
}

/// Reads the object of an owner, or a subresource of it; `resource` is the plural of its kind.
async fn get<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    owner: &Owner,
    resource: &str,
) -> Result<Answer<T>, Failure> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|e| Failure::no_request(&e))?;
    match client.request::<T>(request).await {
        Ok(found) => Ok(Answer::Found(found)),
        Err(Error::Api(status)) if status.code == 404 => {
            let group = owner.api_version.split_once('/').map_or("", |(g, _)| g);
            match absent::is_told(&status, group, resource, &owner.name) {
                true => Ok(Answer::NoObject),
                false => Ok(Answer::NotServed),
            }
        }
        Err(error) => {
            debug!(path, %error, "an owner of Pods can't be read");
            let field = match &error {
                Error::Api(status) => unset_field(&status.message),
                _ => None,
            };
            let failure = || Failure::of(&error, path);
            field.map(Answer::Unset).ok_or_else(failure)
        }
    }
}

/// Whether `group/version` of an owner reference can stand in a path. The API server does not check it.
fn is_version(api_version: &str) -> bool {
    api_version.split('/').count() <= 2 && api_version.split('/').all(path::is_plain)
}

#[cfg(test)]
mod tests;
