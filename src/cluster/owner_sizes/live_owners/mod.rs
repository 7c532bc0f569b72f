//! Reads owners of Pods live: owners that are not watched, and owners whose watch may be behind.

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

use super::read_failure::{ReadFailure, Remedy};
use super::scale_discovery::{self, ScaleDiscovery};
use super::single_flight::SingleFlightCache;
use super::workload_json::{self, WorkloadObject};
use super::{LiveReading, ReadingBasis, Workload};
use crate::cluster::index::Index;
use crate::cluster::kind::WatchedKind;
use crate::cluster::{not_found, request_path};
use crate::domain::pod::Owner;
use crate::ledger::store::{RuleKey, Uid};

/// How many reads may be under way at a time for one rule object.
const MAX_READS_PER_RULE: usize = 16;
/// How many reads may be under way at a time for all rule objects. Anybody who may label Pods can name any number of
/// owners.
const MAX_CONCURRENT_READS: usize = 64;
/// The time limit of each read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How many rounds of reads a refresh makes. A read may show another owner to read: first a ReplicaSet, then its
/// controller.
const MAX_ROUNDS: usize = 3;

/// How many references to one owner are followed. Anybody who may create Pods can give them any number of references to
/// one UID.
const MAX_REFERENCES: usize = 16;

/// How old a reading may be for a decision.
pub const MAX_READING_AGE: Duration = Duration::from_secs(1);

/// Reads owners live, and stores the results in the index.
#[derive(Debug)]
pub struct LiveOwners {
    index: Arc<Index>,
    /// The results by namespace and UID, including errors.
    reads: SingleFlightCache<(String, Uid), Result<(), OwnerReadError>>,
    discovery: ScaleDiscovery,
    turns: Semaphore,
}

/// Why the number of Pods that an owner asks for is not known. `owner` is its kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerReadError {
    /// The owner could not be read.
    Failed {
        /// Kind and name of the owner.
        owner: String,
        /// The cause as a clause that does not change from try to try.
        error: String,
        /// What to do.
        remedy: Remedy,
    },
    /// The owner was read, and a field that its `scale` needs is not set. Waiting does not help: a user must set the
    /// field.
    Unset {
        /// Kind and name of the owner.
        owner: String,
        /// Path of the field, such as `spec.replicas`.
        field: String,
    },
}

impl fmt::Display for OwnerReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnerReadError::Failed { owner, error, .. } => {
                write!(f, "{owner} can't be read: {error}")
            }
            OwnerReadError::Unset { owner, field } => write!(f, "{owner} does not set {field}"),
        }
    }
}

/// `autoscaling/v1` Scale. Its metadata are those of the scaled object.
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
    /// Absent in JSON if the number is 0.
    replicas: i64,
}

impl LiveOwners {
    /// Creates a reader for this index.
    pub fn new(index: &Arc<Index>) -> Arc<Self> {
        Arc::new(LiveOwners {
            index: Arc::clone(index),
            reads: SingleFlightCache::default(),
            discovery: ScaleDiscovery::default(),
            turns: Semaphore::new(MAX_CONCURRENT_READS),
        })
    }

    /// Reads the doubtful owners of a rule object, unless their last reading is younger than `age`. Afterwards the
    /// index knows how many Pods the rule object expects. If no owner is doubtful, nothing is read.
    ///
    /// # Errors
    /// The first owner that could not be read.
    pub async fn refresh_owners(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
    ) -> Result<(), OwnerReadError> {
        let failed = self.refresh_rounds(client, rule, age, deadline, true).await;
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// As [`LiveOwners::refresh_owners`], but continues after a failure. Returns all owners that could not be read, in
    /// no order.
    pub async fn refresh_all_owners(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
    ) -> Vec<OwnerReadError> {
        self.refresh_rounds(client, rule, age, deadline, false)
            .await
    }

    /// Returns the failures. If `first_is_enough`, it stops at the first failure.
    async fn refresh_rounds(
        &self,
        client: &Client,
        rule: &RuleKey,
        age: Duration,
        deadline: Instant,
        first_is_enough: bool,
    ) -> Vec<OwnerReadError> {
        let (mut done, mut failed) = (HashSet::new(), Vec::new());
        for _ in 0..MAX_ROUNDS {
            let mut due = self.index.doubtful_owners(rule);
            due.retain(|uid| done.insert(uid.clone()));
            if due.is_empty() {
                break;
            }
            let reads = due
                .into_iter()
                .map(|uid| self.read_owner_batch(client, &rule.namespace, uid, age, deadline));
            let mut reads = stream::iter(reads).buffer_unordered(MAX_READS_PER_RULE);
            while let Some(outcome) = reads.next().await {
                failed.extend(outcome.err());
                if first_is_enough && !failed.is_empty() {
                    return failed;
                }
            }
        }
        failed
    }

    async fn read_owner_batch(
        &self,
        client: &Client,
        namespace: &str,
        uid: Uid,
        age: Duration,
        deadline: Instant,
    ) -> Result<(), OwnerReadError> {
        let late = || Err(self.to_read_error(namespace, &uid, ReadFailure::timed_out()));
        let read = || async {
            let limit = Instant::now() + READ_TIMEOUT;
            let read = async {
                let _turn = self.turns.acquire().await;
                self.fetch_owner(client, namespace, &uid).await
            };
            timeout_at(limit, read).await.unwrap_or_else(|_| late())
        };
        // A failure is not retried at once, but it is also not kept longer than necessary.
        let age = |answer: &Result<(), OwnerReadError>| match answer {
            Ok(()) if self.is_owner_known(namespace, &uid) => age,
            Ok(()) => Duration::ZERO,
            Err(_) => age.min(MAX_READING_AGE),
        };
        let key = (namespace.to_owned(), uid.clone());
        timeout_at(deadline, self.reads.get_or_read(&key, age, read))
            .await
            .unwrap_or_else(|_| late())
    }

    fn is_owner_known(&self, namespace: &str, uid: &str) -> bool {
        let state = self.index.read_state();
        state
            .namespace(namespace)
            .is_some_and(|n| n.is_owner_known(uid))
    }

    /// The reference that leads to the owner, if the owner was found before. Otherwise all references to its UID.
    fn owner_references(
        &self,
        namespace: &str,
        uid: &str,
    ) -> (Option<Arc<Owner>>, Vec<Arc<Owner>>) {
        let state = self.index.read_state();
        let Some(namespace_index) = state.namespace(namespace) else {
            return (None, Vec::new());
        };
        match namespace_index.resolved_owner(uid) {
            Some(owner) => (Some(owner), Vec::new()),
            None => (None, namespace_index.owner_references(uid)),
        }
    }

    fn to_read_error(&self, namespace: &str, uid: &str, failure: ReadFailure) -> OwnerReadError {
        let (found, all) = self.owner_references(namespace, uid);
        let owner = found.as_ref().or(all.first());
        OwnerReadError::Failed {
            owner: owner.map_or_else(|| format!("the owner {uid}"), |owner| describe_owner(owner)),
            error: failure.cause,
            remedy: failure.remedy,
        }
    }

    /// Reads an owner. The reference of a Pod may be forged. Therefore an object that was found before is read by the
    /// reference that led to it, and a missing object counts as gone only if no reference leads to it.
    async fn fetch_owner(
        &self,
        client: &Client,
        namespace: &str,
        uid: &Uid,
    ) -> Result<(), OwnerReadError> {
        for _ in 0..MAX_ROUNDS {
            let (found, references) = self.owner_references(namespace, uid);
            let read = async |owner: &Arc<Owner>| {
                let read = self.follow_reference(client, namespace, owner).await;
                read.map_err(|failure| OwnerReadError::Failed {
                    owner: describe_owner(owner),
                    error: failure.cause,
                    remedy: failure.remedy,
                })
            };
            if let Some(owner) = found {
                let answer = read(&owner).await?;
                let outcome = answer.check_decidable(&owner);
                self.put_answer(namespace, uid, answer, ReadingBasis::Object(Some(owner)));
                return outcome;
            }
            let (mut failure, mut without_number) = (None, None);
            for owner in references.iter().take(MAX_REFERENCES) {
                match read(owner).await {
                    Ok(answer @ (ReferenceTarget::Watched(_) | ReferenceTarget::Count(_))) => {
                        let basis = ReadingBasis::Object(Some(Arc::clone(owner)));
                        self.put_answer(namespace, uid, answer, basis);
                        return Ok(());
                    }
                    Ok(answer @ ReferenceTarget::Unset(_)) => {
                        without_number = Some((owner, answer))
                    }
                    Ok(ReferenceTarget::NoScale) => {
                        without_number = without_number.or(Some((owner, ReferenceTarget::NoScale)));
                    }
                    Ok(ReferenceTarget::Gone) => {}
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if references.len() > MAX_REFERENCES {
                let cause = format!(
                    "Pods name more than {MAX_REFERENCES} different objects by the UID {uid}, and none of the \
                     {MAX_REFERENCES} that most Pods name has it"
                );
                let remedy = Remedy::References;
                return Err(self.to_read_error(namespace, uid, ReadFailure { cause, remedy }));
            }
            let (first, answer) = match without_number {
                Some((owner, answer)) => (Some(owner), answer),
                None => (None, ReferenceTarget::Gone),
            };
            let outcome = first.map_or(Ok(()), |owner| answer.check_decidable(owner));
            let others = references.iter().filter(|o| Some(*o) != first);
            let basis = first.into_iter().chain(others).cloned().collect();
            if self.put_answer(namespace, uid, answer, ReadingBasis::References(basis)) {
                return outcome;
            }
        }
        let failure =
            ReadFailure::transient_failure("its Pods get other owner references all the time");
        Err(self.to_read_error(namespace, uid, failure))
    }

    /// Stores an answer in the index, see [`Index::set_live_reading`].
    fn put_answer(
        &self,
        namespace: &str,
        uid: &Uid,
        answer: ReferenceTarget,
        basis: ReadingBasis,
    ) -> bool {
        let reading = match answer {
            ReferenceTarget::Watched(workload) => {
                self.index
                    .set_workload(namespace, uid.clone(), Some(workload));
                return true;
            }
            ReferenceTarget::Count(n) => LiveReading::Count(n),
            ReferenceTarget::Unset(_) => LiveReading::Unset,
            ReferenceTarget::NoScale => LiveReading::NoScale,
            ReferenceTarget::Gone => LiveReading::Gone,
        };
        self.index
            .set_live_reading(namespace, uid.clone(), reading, basis)
    }

    /// Reads the object that a reference leads to.
    async fn follow_reference(
        &self,
        client: &Client,
        namespace: &str,
        owner: &Owner,
    ) -> Result<ReferenceTarget, ReadFailure> {
        if !is_group_version(&owner.api_version)
            || ![&owner.name, namespace]
                .into_iter()
                .all(request_path::is_path_safe)
        {
            return Ok(ReferenceTarget::Gone); // no object can have such a name
        }
        if let Some(kind) = WatchedKind::from_owner(owner) {
            let path = kind
                .object_path(namespace, &owner.name)
                .map_err(|e| ReadFailure::invalid_request(&e))?;
            let found: Option<WorkloadObject> =
                match get_owner_object(client, &path, owner, kind.plural()).await? {
                    GetResult::Found(object) => Some(object),
                    GetResult::NoObject => None,
                    GetResult::Unset(field) => return Ok(ReferenceTarget::Unset(field)),
                    GetResult::NotServed => {
                        let again = self.discovery.find_resource_anew(
                            client,
                            &owner.api_version,
                            &owner.kind,
                        );
                        return match again.await? {
                            None => Ok(ReferenceTarget::NoScale),
                            Some(_) => Err(not_served_failure(&path)),
                        };
                    }
                };
            let ((_, found), workload) = found
                .map(|o| workload_json::workload_from_object(kind, o))
                .unwrap_or_default();
            let workload = workload.filter(|_| *found == *owner.uid);
            return Ok(workload.map_or(ReferenceTarget::Gone, ReferenceTarget::Watched));
        }
        let resource = self
            .discovery
            .find_resource(client, &owner.api_version, &owner.kind);
        let Some(resource) = resource.await?.filter(|r| r.scale) else {
            return Ok(ReferenceTarget::NoScale);
        };
        let api = scale_discovery::group_version_path(&owner.api_version);
        let namespace = resource.namespaced.then_some(namespace);
        let path = request_path::build_object_path(
            &api,
            namespace,
            &resource.plural,
            &owner.name,
            Some("scale"),
        )
        .map_err(|e| ReadFailure::invalid_request(&e))?;
        let scale: Option<Scale> =
            match get_owner_object(client, &path, owner, &resource.plural).await? {
                GetResult::Found(scale) => Some(scale),
                GetResult::NoObject => {
                    // A kind whose `scale` was removed gives this response for every object.
                    let again =
                        self.discovery
                            .find_resource_anew(client, &owner.api_version, &owner.kind);
                    if !again.await?.is_some_and(|r| r.scale) {
                        return Ok(ReferenceTarget::NoScale);
                    }
                    None
                }
                GetResult::Unset(field) => return Ok(ReferenceTarget::Unset(field)),
                GetResult::NotServed => return Err(not_served_failure(&path)),
            };
        let scale = scale
            .filter(|s| s.metadata.uid == owner.uid && s.metadata.deletion_timestamp.is_none());
        Ok(scale.map_or(ReferenceTarget::Gone, |s| {
            ReferenceTarget::Count(u32::try_from(s.spec.replicas.max(0)).unwrap_or(u32::MAX))
        }))
    }
}

/// The result of following a reference.
enum ReferenceTarget {
    /// The owner, of a watched kind.
    Watched(Workload),
    /// The number `spec.replicas` in the `scale` of the owner.
    Count(u32),
    /// The object does not set this field, which its `scale` needs. The UID of the object is not known.
    Unset(String),
    /// The kind has no `scale`, or is not served at all.
    NoScale,
    /// No object has the UID, or the deletion of the object has begun.
    Gone,
}

impl ReferenceTarget {
    /// Checks that a decision is possible with this result.
    fn check_decidable(&self, owner: &Owner) -> Result<(), OwnerReadError> {
        match self {
            ReferenceTarget::Unset(field) => Err(OwnerReadError::Unset {
                owner: describe_owner(owner),
                field: field.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// The field that the API server misses, from its response to a GET of `scale`: 500, "the spec replicas field
/// \".spec.replicas\" does not exist" (apiextensions-apiserver, `pkg/registry/customresource/etcd.go`).
fn missing_field(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("the spec replicas field ")?;
    let path = rest.strip_suffix(" does not exist")?;
    Some(path.trim_matches('"').trim_start_matches('.').to_owned())
}

fn describe_owner(owner: &Owner) -> String {
    format!("{} {}", owner.kind, owner.name)
}

enum GetResult<T> {
    Found(T),
    NoObject,
    /// A 404 that does not name the object: the path is unknown, or the response is not from the API server.
    NotServed,
    /// An error because the object does not set this field, see [`missing_field`].
    Unset(String),
}

fn not_served_failure(path: &str) -> ReadFailure {
    ReadFailure::transient_failure(format!("the API server does not serve {path} now"))
}

/// Reads the object of an owner, or a subresource of it. `resource` is the plural of its kind.
async fn get_owner_object<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    owner: &Owner,
    resource: &str,
) -> Result<GetResult<T>, ReadFailure> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|e| ReadFailure::invalid_request(&e))?;
    match client.request::<T>(request).await {
        Ok(found) => Ok(GetResult::Found(found)),
        Err(Error::Api(status)) if status.code == 404 => {
            let group = owner.api_version.split_once('/').map_or("", |(g, _)| g);
            match not_found::proves_not_found(&status, group, resource, &owner.name) {
                true => Ok(GetResult::NoObject),
                false => Ok(GetResult::NotServed),
            }
        }
        Err(error) => {
            debug!(path, %error, "an owner of Pods can't be read");
            let field = match &error {
                Error::Api(status) => missing_field(&status.message),
                _ => None,
            };
            let failure = || ReadFailure::from_error(&error, path);
            field.map(GetResult::Unset).ok_or_else(failure)
        }
    }
}

/// Whether the `group/version` of an owner reference can be put into a path. The API server does not check this.
fn is_group_version(api_version: &str) -> bool {
    api_version.split('/').count() <= 2 && api_version.split('/').all(request_path::is_path_safe)
}

#[cfg(test)]
mod tests;
