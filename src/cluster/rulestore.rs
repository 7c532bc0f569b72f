//! The ledger's store: claims in the status of the PodTransitionRule.

mod stored;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;

use super::failure;
use super::index::Index;
use super::path;
use super::watch::Relist;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::inplace;
use crate::domain::rules::{RuleSet, Skips};
use crate::ledger::protocol::View;
use crate::ledger::store::{Claims, RuleKey, Snapshot, Store, Uid, WriteError};

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
    /// The position of the Pods in etcd at this moment, by a consistent list of one in this namespace.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses.
    pub async fn newest(&self, namespace: &str) -> Result<u64, WriteError> {
        let pods: Api<Pod> = path::namespaced(&self.client, namespace).map_err(write_error)?;
        let newest = ListParams::default().limit(1); // without a resourceVersion: as etcd has it
        let list = pods.list_metadata(&newest).await.map_err(write_error)?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let unusable =
            |_| WriteError::Unreachable(format!("a list of Pods has version {version:?}"));
        version.parse().map_err(unusable)
    }

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
            "status": { "ledger": stored::write(claims) },
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

    fn position(&self) -> u64 {
        self.index.read().position
    }

    fn is_following(&self) -> bool {
        self.index.timeline.is_following()
    }

    fn lost(&self) -> Option<Arc<str>> {
        self.index.timeline.lost()
    }

    fn set_back(&self, known: u64, found: u64) {
        self.index.timeline.set_back("Pods", known, found);
    }

    fn view<R>(&self, rules: &RuleSet, look: impl FnOnce(&dyn View<Uid>) -> R) -> R {
        self.index.read().view(rules, look)
    }

    async fn present(&self, key: &RuleKey) -> Result<u64, WriteError> {
        self.newest(&key.namespace).await
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
        let ledger = object.status.as_ref().and_then(|s| s.ledger.as_ref());
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
            claims: Arc::new(ledger.map(stored::read).unwrap_or_default()),
            fault: ledger.and_then(stored::fault).map(Arc::from),
        }
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

    #[test]
    fn refused_write_says_the_message_of_the_status_alone() {
        let message = "admission webhook \"x\" denied the request: no";
        let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
        let said = write_error(Error::Api(Box::new(status))).to_string();
        assert_eq!(said, message);
    }
}
