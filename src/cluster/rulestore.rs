//! The ledger's store: claims in the status of the PodTransitionRule.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;

use super::failure;
use super::index::Index;
use super::path;
use super::watch::Relist;
use crate::api::podtransitionrule::{self as api, PodTransitionRule};
use crate::domain::inplace::{self, Before};
use crate::domain::rules::{RuleSet, Skips};
use crate::ledger::protocol::{Claim, Ledger, Operation, View};
use crate::ledger::store::{Claims, Detail, RuleKey, Snapshot, Store, Uid, WriteError};

/// A cache that trails the last release for this long is listed again: the release may rest on a list, whose version
/// no Pod event carries.
const PATIENCE: Duration = Duration::from_millis(700);

/// Claims in the API server.
pub struct RuleStore {
    client: Client,
    index: Arc<Index>,
    relist: Relist,
}

impl RuleStore {
    /// A store over the index; `relist` belongs to the Pod watch.
    pub fn new(client: Client, index: Arc<Index>, relist: Relist) -> Arc<Self> {
        Arc::new(RuleStore {
            client,
            index,
            relist,
        })
    }

    /// The index.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Asks the API server by a dry run whether it would let the claims be written.
    ///
    /// # Errors
    /// What the API server answers to the write, or that it does not answer.
    pub async fn try_swap(&self, key: &RuleKey, claims: &Claims) -> Result<(), Error> {
        let next = Claims {
            attempts: claims.attempts.saturating_add(1), // a policy may let a write pass that changes nothing
            ..claims.clone()
        };
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        self.write(key, None, &next, &dry).await.map(drop)
    }

    /// Writes the claims, on condition of a resourceVersion if there is one.
    async fn write(
        &self,
        key: &RuleKey,
        version: Option<u64>,
        claims: &Claims,
        params: &PatchParams,
    ) -> Result<PodTransitionRule, Error> {
        let mut metadata = json!({ "uid": &*key.uid });
        if let Some(version) = version {
            metadata["resourceVersion"] = version.to_string().into();
        }
        let patch = Patch::Merge(json!({
            "metadata": metadata,
            "status": { "ledger": to_api(claims) },
        }));
        let rules = self.api(key)?;
        rules.patch_status(&key.name, params, &patch).await
    }

    fn api(&self, key: &RuleKey) -> Result<Api<PodTransitionRule>, Error> {
        path::namespaced(&self.client, &key.namespace)
    }
}

impl Store for RuleStore {
    fn cached(&self, key: &RuleKey) -> Option<Snapshot> {
        let state = self.index.read();
        let entry = state.rule(&key.namespace, &key.name)?;
        (entry.snapshot.rules.uid == key.uid).then(|| entry.snapshot.clone())
    }

    fn is_replaced(&self, key: &RuleKey) -> bool {
        let state = self.index.read();
        let entry = state.rule(&key.namespace, &key.name);
        entry.is_some_and(|entry| entry.snapshot.rules.uid != key.uid)
    }

    async fn live(&self, key: &RuleKey) -> Result<Option<Snapshot>, WriteError> {
        let object = self.api(key).map_err(write_error)?.get_opt(&key.name).await;
        match object.map_err(write_error)? {
            Some(o) if o.metadata.uid.as_deref() != Some(&*key.uid) => Err(WriteError::Replaced),
            Some(o) if o.metadata.deletion_timestamp.is_none() => Ok(Some(Snapshot::of(
                &o,
                self.cached(key).as_ref(),
                self.index.skips(),
            ))),
            _ => Ok(None),
        }
    }

    async fn swap(
        &self,
        key: &RuleKey,
        base: &Snapshot,
        claims: &Claims,
    ) -> Result<Snapshot, WriteError> {
        let params = PatchParams::default();
        let written = self.write(key, Some(base.version), claims, &params);
        let written = written.await.map_err(write_error)?;
        Ok(Snapshot::of(&written, Some(base), self.index.skips()))
    }

    fn view<R>(&self, rules: &RuleSet, look: impl FnOnce(&dyn View<Uid>) -> R) -> R {
        self.index.read().view(rules, look)
    }

    async fn present(&self, key: &RuleKey) -> Result<u64, WriteError> {
        let pods: Api<Pod> = path::namespaced(&self.client, &key.namespace).map_err(write_error)?;
        let newest = ListParams::default().limit(1); // without a resourceVersion: as etcd has it
        let list = pods.list_metadata(&newest).await.map_err(write_error)?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let unusable =
            |_| WriteError::Unreachable(format!("a list of Pods has version {version:?}"));
        version.parse().map_err(unusable)
    }

    fn caught_up(&self, position: u64) -> impl Future<Output = ()> + Send {
        let (index, relist) = (Arc::clone(&self.index), self.relist.clone());
        async move {
            while tokio::time::timeout(PATIENCE, index.wait_position(position))
                .await
                .is_err()
            {
                relist.now();
            }
        }
    }

    fn serves_deferred(&self, rules: &RuleSet, pod: &Uid) -> Option<bool> {
        let state = self.index.read();
        let pod = state.pod(&rules.namespace, pod)?;
        pod.is_available().then(|| inplace::is_deferred(pod))
    }

    fn unavailable(&self, rules: &RuleSet, most: usize) -> Vec<(String, Option<Timestamp>)> {
        let state = self.index.read();
        let Some(entry) = state.rule(&rules.namespace, &rules.name) else {
            return Vec::new();
        };
        entry
            .tally
            .unavailable()
            .filter_map(|(since, uid)| {
                let pod = state.pod(&rules.namespace, uid)?;
                Some((pod.metadata.name.clone(), *since))
            })
            .take(most)
            .collect()
    }
}

impl Snapshot {
    /// The object as the ledger sees it; what `known` has compiled from the same generation is used again.
    pub fn of(object: &PodTransitionRule, known: Option<&Snapshot>, skips: Skips) -> Snapshot {
        let meta = &object.metadata;
        let same = |s: &&Snapshot| {
            Some(&*s.rules.uid) == meta.uid.as_deref()
                && Some(s.rules.generation) == meta.generation
        };
        Snapshot {
            version: meta
                .resource_version
                .as_deref()
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
            rules: known.filter(same).map_or_else(
                || {
                    let compiled = RuleSet::compile(object);
                    Arc::new(RuleSet { skips, ..compiled })
                },
                |s| Arc::clone(&s.rules),
            ),
            claims: Arc::new(
                object
                    .status
                    .as_ref()
                    .and_then(|s| s.ledger.as_ref())
                    .map(from_api)
                    .unwrap_or_default(),
            ),
        }
    }
}

/// Claims as stored. A claim of an operation that this version does not know is kept under its word, and goes when its
/// Pod goes.
fn from_api(ledger: &api::Ledger) -> Claims {
    let attempts = ledger
        .claims
        .iter()
        .map(|c| c.attempt)
        .chain([ledger.attempts])
        .max();
    let claims = ledger.claims.iter().map(|c| {
        let operation = Operation::parse(c.operation.as_str());
        let attempt = u64::try_from(c.attempt).unwrap_or(0);
        let claim = Claim {
            at: c.resource_version.parse().unwrap_or(0),
            attempt,
            opened: c
                .opened
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(attempt),
            closing: c.closing,
            detail: Detail {
                pod_name: c.pod_name.clone(),
                since: c.since.0,
                until: c.until.0,
                target: c.target.clone(),
                containers: c.containers.iter().map(before).collect(),
                word: (operation == Operation::Unknown).then(|| c.operation.clone()),
            },
        };
        ((Uid::from(c.pod_uid.as_str()), operation), claim)
    });
    Ledger {
        claims: claims.collect(),
        watermark: ledger.watermark.parse().unwrap_or(0),
        attempts: attempts.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
    }
}

fn before(container: &api::ClaimedContainer) -> Before {
    Before {
        name: container.name.clone(),
        run: container.container_id.clone(),
        image: u64::from_str_radix(&container.image_hash, 16).ok(),
        by_resources: container.by_resources,
    }
}

/// The word under which a claim is stored.
fn word(operation: Operation, detail: &Detail) -> &str {
    detail.word.as_deref().unwrap_or(operation.as_str())
}

fn to_api(claims: &Claims) -> api::Ledger {
    let list = claims
        .claims
        .iter()
        .map(|((uid, operation), claim)| api::Claim {
            pod_name: claim.detail.pod_name.clone(),
            pod_uid: uid.to_string(),
            operation: word(*operation, &claim.detail).to_owned(),
            resource_version: claim.at.to_string(),
            attempt: i64::try_from(claim.attempt).unwrap_or(i64::MAX),
            opened: (claim.opened != claim.attempt)
                .then(|| i64::try_from(claim.opened).unwrap_or(i64::MAX)),
            closing: claim.closing,
            since: Time(claim.detail.since),
            until: Time(claim.detail.until),
            target: claim.detail.target.clone(),
            containers: claim
                .detail
                .containers
                .iter()
                .map(|before| api::ClaimedContainer {
                    name: before.name.clone(),
                    container_id: before.run.clone(),
                    image_hash: before
                        .image
                        .map(|i| format!("{i:016x}"))
                        .unwrap_or_default(),
                    by_resources: before.by_resources,
                })
                .collect(),
        });
    api::Ledger {
        claims: list.collect(),
        watermark: claims.watermark.to_string(),
        attempts: i64::try_from(claims.attempts).unwrap_or(i64::MAX),
    }
}

fn write_error(e: Error) -> WriteError {
    match e {
        Error::Api(status) if status.code == 409 => WriteError::Conflict,
        Error::Api(status) if status.code == 404 => WriteError::Gone,
        e => WriteError::Unreachable(failure::text(&e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(attempts: u64, attempt: u64) -> Claims {
        let detail = Detail {
            pod_name: "web-1".into(),
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::UNIX_EPOCH,
            target: Some("digest".into()),
            containers: vec![
                Before {
                    name: "app".into(),
                    run: "run-1".into(),
                    image: Some(7),
                    by_resources: false,
                },
                Before {
                    name: "resized".into(),
                    run: "run-2".into(),
                    image: None,
                    by_resources: true,
                },
            ],
            word: None,
        };
        let claim = Claim {
            at: 7,
            attempt,
            opened: attempt,
            closing: false,
            detail,
        };
        Ledger {
            claims: [((Uid::from("uid-1"), Operation::InPlace), claim)].into(),
            watermark: 9,
            attempts,
        }
    }

    #[test]
    fn refused_write_says_the_message_of_the_status_alone() {
        let message = "admission webhook \"x\" denied the request: no";
        let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
        let said = write_error(Error::Api(Box::new(status))).to_string();
        assert_eq!(said, message);
    }

    #[test]
    fn claims_are_read_as_they_were_written() {
        assert_eq!(from_api(&to_api(&claims(5, 3))), claims(5, 3));
    }

    #[test]
    fn renewed_and_closing_claims_are_read_as_they_were_written() {
        let mut renewed = claims(5, 3);
        for claim in renewed.claims.values_mut() {
            (claim.opened, claim.closing) = (1, true);
        }
        assert_eq!(from_api(&to_api(&renewed)), renewed);
    }

    #[test]
    fn claim_of_newer_version_is_stored_as_it_was_read() {
        let mut stored = to_api(&claims(5, 3));
        stored.claims[0].operation = "Teleport".into();
        let read = from_api(&stored);
        assert!(
            read.claims
                .contains_key(&(Uid::from("uid-1"), Operation::Unknown))
        );
        assert_eq!(to_api(&read), stored);
    }

    #[test]
    fn the_count_of_attempts_is_never_below_a_claim() {
        assert_eq!(from_api(&to_api(&claims(0, 3))), claims(3, 3));
    }
}
