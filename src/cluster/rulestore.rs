//! The ledger's store: claims in the status of the PodTransitionRule.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;

use super::index::Index;
use super::path;
use super::watch::Relist;
use crate::api::podtransitionrule::{self as api, PodTransitionRule};
use crate::domain::inplace::Before;
use crate::domain::rules::RuleSet;
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

    fn api(&self, key: &RuleKey) -> Result<Api<PodTransitionRule>, WriteError> {
        path::namespaced(&self.client, &key.namespace).map_err(write_error)
    }
}

impl Store for RuleStore {
    fn cached(&self, key: &RuleKey) -> Option<Snapshot> {
        let state = self.index.read();
        let entry = state.rule(&key.namespace, &key.name)?;
        (entry.snapshot.rules.uid == key.uid).then(|| entry.snapshot.clone())
    }

    async fn live(&self, key: &RuleKey) -> Result<Option<Snapshot>, WriteError> {
        match self.api(key)?.get_opt(&key.name).await {
            Ok(object) => Ok(object
                .filter(|o| {
                    o.metadata.uid.as_deref() == Some(&*key.uid)
                        && o.metadata.deletion_timestamp.is_none()
                })
                .map(|o| Snapshot::of(&o, self.cached(key).as_ref()))),
            Err(e) => Err(write_error(e)),
        }
    }

    async fn swap(
        &self,
        key: &RuleKey,
        base: &Snapshot,
        claims: &Claims,
    ) -> Result<Snapshot, WriteError> {
        let patch = json!({
            "metadata": { "resourceVersion": base.version.to_string(), "uid": &*key.uid },
            "status": { "ledger": to_api(claims) },
        });
        let written = self
            .api(key)?
            .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(write_error)?;
        Ok(Snapshot::of(&written, Some(base)))
    }

    fn view<R>(&self, rules: &RuleSet, look: impl FnOnce(&dyn View<Uid>) -> R) -> R {
        self.index.read().view(rules, look)
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
    pub fn of(object: &PodTransitionRule, known: Option<&Snapshot>) -> Snapshot {
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
                || Arc::new(RuleSet::compile(object)),
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

/// Claims as stored. A claim that can't be read is kept in the strictest form, an eviction judged at the newest
/// version: it goes when its Pod goes, or at the deadline.
fn from_api(ledger: &api::Ledger) -> Claims {
    let attempts = ledger
        .claims
        .iter()
        .map(|c| c.attempt)
        .chain([ledger.attempts])
        .max();
    let claims = ledger.claims.iter().map(|c| {
        let operation = Operation::parse(c.operation.as_str()).unwrap_or(Operation::Evict);
        let claim = Claim {
            at: c.resource_version.parse().unwrap_or(0),
            attempt: u64::try_from(c.attempt).unwrap_or(0),
            detail: Detail {
                pod_name: c.pod_name.clone(),
                since: c.since.0,
                until: c.until.0,
                target: c.target.clone(),
                containers: c.containers.iter().map(before).collect(),
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
    }
}

fn to_api(claims: &Claims) -> api::Ledger {
    let list = claims
        .claims
        .iter()
        .map(|((uid, operation), claim)| api::Claim {
            pod_name: claim.detail.pod_name.clone(),
            pod_uid: uid.to_string(),
            operation: operation.as_str().into(),
            resource_version: claim.at.to_string(),
            attempt: i64::try_from(claim.attempt).unwrap_or(i64::MAX),
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
        e => WriteError::Unreachable(e.to_string()),
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
                },
                Before {
                    name: "resized".into(),
                    run: "run-2".into(),
                    image: None,
                },
            ],
        };
        let claim = Claim {
            at: 7,
            attempt,
            detail,
        };
        Ledger {
            claims: [((Uid::from("uid-1"), Operation::InPlace), claim)].into(),
            watermark: 9,
            attempts,
        }
    }

    #[test]
    fn claims_are_read_as_they_were_written() {
        assert_eq!(from_api(&to_api(&claims(5, 3))), claims(5, 3));
    }

    #[test]
    fn the_count_of_attempts_is_never_below_a_claim() {
        assert_eq!(from_api(&to_api(&claims(0, 3))), claims(3, 3));
    }
}
