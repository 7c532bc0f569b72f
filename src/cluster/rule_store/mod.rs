//! Stores the ledger in the status of the PodTransitionRule.

mod ledger_format;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use super::changes::Change;
use super::index::Index;
use super::list_position::{self, PositionError};
use super::request_path::{self, ResourcePath};
use super::watch::CatchUpSignal;
use super::write_backoff::WriteBackoff;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request;
use crate::domain::inplace;
use crate::domain::pending_disruption::{PendingDisruption, pending_disruption};
use crate::domain::rules::ignore_policy;
use crate::domain::rules::{RuleSet, SkipAnnotation};
use crate::ledger::protocol::BudgetView;
use crate::ledger::store::{Claims, LedgerStore, RuleKey, RuleSnapshot, Uid, WriteError};

/// If the Pod cache is behind a position for this long, its watch is asked to catch up. The position may be the version
/// of a list, which no Pod event carries.
const CATCH_UP_AFTER: Duration = Duration::from_millis(400);

/// Why a rule object is not found, if nothing proves that it is gone: after a change of the CustomResourceDefinition,
/// the API server may no longer serve the kind or its status.
const NOT_SERVED: &str = "the API server does not serve PodTransitionRules with their status: put the \
                          CustomResourceDefinition back with `operating crds | kubectl apply -f -`";

/// Why the response of the API server does not hold the claims of the request.
const NOT_STORED: &str = "the API server did not store status.ledger as it was written, because the CustomResourceDefinition \
                          in the cluster, or another webhook, drops fields of it: put the CustomResourceDefinition back with \
                          `operating crds | kubectl apply -f -`";

/// The store of the claims in the API server.
pub struct RuleStore {
    client: Client,
    index: Arc<Index>,
    catch_up: CatchUpSignal,
    /// Whether the API server kept the ledger that this replica wrote last, or tried to write by a dry run. Only rules
    /// for which this is worth knowing have an entry.
    kept_ledgers: Mutex<HashMap<RuleKey, bool>>,
    /// Rules whose last write failed.
    failures: WriteBackoff<RuleKey>,
}

/// How many unavailable Pods of a rule object are examined for the text of a denial.
const MAX_UNAVAILABLE_LISTED: usize = 1_000;

impl RuleStore {
    /// Creates a store over the index. `catch_up` belongs to the Pod watch.
    pub fn new(client: Client, index: Arc<Index>, catch_up: CatchUpSignal) -> Arc<Self> {
        Arc::new(RuleStore {
            client,
            index,
            catch_up,
            kept_ledgers: Mutex::default(),
            failures: WriteBackoff::default(),
        })
    }

    /// The index of this store.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Whether the API server kept the ledger of a rule object at the last write or dry run of this replica. `None` if
    /// this replica has made no dry run, and no write has given a reason for doubt.
    pub fn is_ledger_kept(&self, key: &RuleKey) -> Option<bool> {
        self.kept_ledgers.lock().get(key).copied()
    }

    /// How much longer a write that is not urgent should wait because earlier writes of this ledger have failed.
    pub fn retry_delay(&self, key: &RuleKey) -> Option<Duration> {
        self.failures.remaining_delay(key, Instant::now())
    }

    /// Records that a write has failed.
    fn record_write_failure(&self, key: &RuleKey, error: &WriteError) {
        let why = match error {
            WriteError::Unreachable(why) => why,
            WriteError::NotStored(_) => "", // the code that finds this also logs it
            WriteError::Conflict | WriteError::Gone | WriteError::Replaced => return,
        };
        self.failures
            .retain(|key| self.cached_snapshot(key).is_some());
        if self.failures.record_failure(key, Instant::now()) && !why.is_empty() {
            warn!(namespace = %key.namespace, rule = %key.name, why, "a ledger could not be written; requests that need a claim are denied until a write succeeds");
        }
    }

    /// How many existing rule objects have a ledger that the API server did not keep at the last write of this replica.
    pub fn count_unkept_ledgers(&self) -> usize {
        let unkept: Vec<_> = {
            let ledgers = self.kept_ledgers.lock();
            let unkept = ledgers.iter().filter(|(_, kept)| !**kept);
            unkept.map(|(key, _)| key.clone()).collect()
        };
        let present = unkept
            .iter()
            .filter(|key| self.cached_snapshot(key).is_some());
        present.count()
    }

    /// Asks the API server by a dry run whether it would accept the claims and keep them. Returns false if its response
    /// does not hold them.
    ///
    /// # Errors
    /// The error of the API server for the write, or that it does not answer.
    pub async fn dry_run_claims(&self, key: &RuleKey, claims: &Claims) -> Result<bool, Error> {
        let next = Claims {
            attempts: claims.attempts.saturating_add(1), // an admission policy may allow a write that changes nothing
            ..claims.clone()
        };
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let written = self.send_ledger(key, None, &next, &dry).await?;
        Ok(self.is_kept(key, &written, &next, true))
    }

    /// Whether the object in the response of the API server holds the claims of the request. A positive result is
    /// stored only if `is_asked`, or if the former result was negative.
    fn is_kept(
        &self,
        key: &RuleKey,
        written: &PodTransitionRule,
        claims: &Claims,
        is_asked: bool,
    ) -> bool {
        let ledger = written.status.as_ref().and_then(|s| s.ledger.as_ref());
        let is_kept = ledger.is_some_and(|ledger| ledger_format::has_exact_claims(ledger, claims));
        let before = {
            let mut ledgers = self.kept_ledgers.lock();
            let before = ledgers.get(key).copied();
            if is_asked || !is_kept || before.is_some() {
                ledgers.insert(key.clone(), is_kept);
            }
            before
        };
        match (before, is_kept) {
            (None | Some(true), false) => {
                warn!(namespace = %key.namespace, rule = %key.name, "{NOT_STORED}");
            }
            (Some(false), true) => {
                info!(namespace = %key.namespace, rule = %key.name, "the API server stores status.ledger again");
            }
            (None | Some(true), true) | (Some(false), false) => return is_kept,
        }
        self.forget_deleted_rules();
        // No event may announce this, because a write that is not kept changes nothing.
        let (namespace, name) = (key.namespace.clone(), key.name.clone());
        self.index.changes().notify(Change::Rule(namespace, name));
        is_kept
    }

    /// Forgets rule objects that are gone. Most calls do nothing.
    fn forget_deleted_rules(&self) {
        let known: Vec<RuleKey> = {
            let ledgers = self.kept_ledgers.lock();
            match ledgers.len().is_power_of_two() {
                true => ledgers.keys().cloned().collect(),
                false => return,
            }
        };
        for key in known
            .iter()
            .filter(|key| self.cached_snapshot(key).is_none())
        {
            self.kept_ledgers.lock().remove(key);
        }
    }

    /// Writes the claims. If `version` is given, the write succeeds only if the object has this resourceVersion.
    async fn send_ledger(
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
            "status": { "ledger": ledger_format::claims_to_status(claims) },
        }));
        let rules = self.rules_api(key)?;
        rules.patch_status(&key.name, params, &patch).await
    }

    /// The meaning of a failed call about a rule object. The API server also answers 404 for a resource that it does
    /// not serve, so only a list proves that the object is gone.
    async fn classify_error(&self, key: &RuleKey, error: Error) -> WriteError {
        match &error {
            Error::Api(status) if status.code == 404 => {}
            _ => return to_write_error(error),
        }
        let found = match self.list_rule_uid(key).await {
            Ok(None) => return WriteError::Gone,
            Ok(Some(uid)) if uid != *key.uid => return WriteError::Replaced,
            found => found,
        };
        let why = match found {
            Err(e) if !matches!(&e, Error::Api(status) if status.code == 404) => {
                api_request::text(&e)
            }
            _ => NOT_SERVED.to_owned(),
        };
        warn!(namespace = %key.namespace, rule = %key.name, why, "the API server did not find a rule, which may still exist; requests that need a claim are denied");
        WriteError::Unreachable(why)
    }

    /// The UID of the rule object with this name, by a consistent list.
    async fn list_rule_uid(&self, key: &RuleKey) -> Result<Option<String>, Error> {
        let by_name = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let list = self.rules_api(key)?.list_metadata(&by_name).await?; // without a resourceVersion: a consistent read
        let mut named = list.items.into_iter();
        let found = named.find(|rule| rule.metadata.name.as_ref() == Some(&key.name));
        Ok(found.map(|rule| rule.metadata.uid.unwrap_or_default()))
    }

    fn rules_api(&self, key: &RuleKey) -> Result<Api<PodTransitionRule>, Error> {
        request_path::namespaced_api(&self.client, &key.namespace)
    }
}

impl LedgerStore for RuleStore {
    fn cached_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot> {
        let state = self.index.read_state();
        let entry = state.rule(&key.namespace, &key.name)?;
        (entry.snapshot.rules.uid == key.uid).then(|| entry.snapshot.clone())
    }

    fn is_replaced(&self, key: &RuleKey) -> bool {
        let state = self.index.read_state();
        let entry = state.rule(&key.namespace, &key.name);
        entry.is_some_and(|entry| entry.snapshot.rules.uid != key.uid)
    }

    async fn live_snapshot(&self, key: &RuleKey) -> Result<Option<RuleSnapshot>, WriteError> {
        let object = self
            .rules_api(key)
            .map_err(to_write_error)?
            .get(&key.name)
            .await;
        match object {
            Ok(o) if o.metadata.uid.as_deref() != Some(&*key.uid) => Err(WriteError::Replaced),
            Ok(o) if o.metadata.deletion_timestamp.is_none() => {
                Ok(Some(RuleSnapshot::from_rule_object(
                    &o,
                    self.cached_snapshot(key).as_ref(),
                    self.index.skips(),
                )))
            }
            Ok(_) => Ok(None),
            Err(e) => match self.classify_error(key, e).await {
                WriteError::Gone => Ok(None),
                e => Err(e),
            },
        }
    }

    async fn compare_and_swap(
        &self,
        key: &RuleKey,
        base: &RuleSnapshot,
        claims: &Claims,
    ) -> Result<RuleSnapshot, WriteError> {
        let params = PatchParams::default();
        let written = match self
            .send_ledger(key, Some(base.version), claims, &params)
            .await
        {
            Ok(written) => written,
            Err(e) => {
                let error = self.classify_error(key, e).await;
                self.record_write_failure(key, &error);
                return Err(error);
            }
        };
        if !self.is_kept(key, &written, claims, false) {
            let error = WriteError::NotStored(NOT_STORED.to_owned());
            self.record_write_failure(key, &error);
            return Err(error);
        }
        self.failures.forget_key(key);
        Ok(RuleSnapshot::from_rule_object(
            &written,
            Some(base),
            self.index.skips(),
        ))
    }

    async fn dry_run_swap(&self, key: &RuleKey, claims: &Claims) -> Result<(), WriteError> {
        match self.dry_run_claims(key, claims).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(WriteError::NotStored(NOT_STORED.to_owned())),
            // The API server gives this answer if another webhook does not support dry runs. It says nothing about a
            // real write.
            Err(Error::Api(status)) if status.code == 400 => Ok(()),
            Err(e) => Err(self.classify_error(key, e).await),
        }
    }

    fn position(&self) -> u64 {
        self.index.read_state().position
    }

    fn is_following(&self) -> bool {
        self.index.decision_watches.pods.is_trusted_now()
    }

    fn wait_followed(&self) -> impl Future<Output = ()> + Send {
        self.index.decision_watches.pods.wait_trusted()
    }

    fn history_lost(&self) -> Option<Arc<str>> {
        self.index.etcd_history.lost_reason()
    }

    fn mark_history_lost(&self, known: u64, found: u64) {
        self.index.etcd_history.mark_lost("Pods", known, found);
    }

    fn with_view<R>(&self, rules: &RuleSet, read: impl FnOnce(&dyn BudgetView<Uid>) -> R) -> R {
        self.index.read_state().with_view(rules, read)
    }

    async fn read_present_position(&self, namespace: &str) -> Result<u64, WriteError> {
        let pods =
            ResourcePath::from_parts("/api/v1", namespace, "pods").map_err(to_write_error)?;
        let read = list_position::read_list_position(&self.client, &pods, None).await;
        read.map_err(|e| match e {
            PositionError::Failed(e) => to_write_error(e),
            e @ PositionError::Version(_) => WriteError::Unreachable(e.to_string()),
        })
    }

    fn wait_position(&self, position: u64) -> impl Future<Output = ()> + Send {
        let (index, catch_up) = (Arc::clone(&self.index), self.catch_up.clone());
        async move {
            while tokio::time::timeout(CATCH_UP_AFTER, index.wait_position(position))
                .await
                .is_err()
            {
                catch_up.request_catch_up(position);
            }
        }
    }

    fn serves_deferred(&self, rules: &RuleSet, pod: &Uid) -> Option<bool> {
        let state = self.index.read_state();
        let pod = state.pod(&rules.namespace, pod)?;
        pod.is_available().then(|| inplace::is_resize_deferred(pod))
    }

    fn unreadable_pod(&self, rules: &RuleSet) -> Option<String> {
        let state = self.index.read_state();
        let entry = state.rule(&rules.namespace, &rules.name)?;
        let mut first = entry.tally.unavailable_pods().take(MAX_UNAVAILABLE_LISTED);
        first.find_map(|(_, uid)| {
            let pod = state.pod(&rules.namespace, uid)?;
            (!pod.is_readable()).then(|| pod.metadata.name.clone())
        })
    }

    fn pending_disruptions(&self, rules: &RuleSet) -> Vec<(String, PendingDisruption)> {
        let state = self.index.read_state();
        let Some(entry) = state.rule(&rules.namespace, &rules.name) else {
            return Vec::new();
        };
        let first = entry.tally.unavailable_pods().take(MAX_UNAVAILABLE_LISTED);
        let serving = first.filter_map(|(_, uid)| state.pod(&rules.namespace, uid));
        let serving = serving.filter(|pod| pod.is_available());
        serving
            .filter_map(|pod| Some((pod.metadata.name.clone(), pending_disruption(pod)?)))
            .collect()
    }

    fn unavailable_pods(&self, rules: &RuleSet, most: usize) -> Vec<(String, Option<Timestamp>)> {
        let state = self.index.read_state();
        let Some(entry) = state.rule(&rules.namespace, &rules.name) else {
            return Vec::new();
        };
        entry
            .tally
            .unavailable_pods()
            .filter_map(|(since, uid)| {
                let pod = state.pod(&rules.namespace, uid)?;
                Some((pod.metadata.name.clone(), *since))
            })
            .take(most)
            .collect()
    }
}

impl RuleSnapshot {
    /// The object as the ledger reads it. The compiled rules of `known` are reused if they have the same generation.
    /// The claims of `known` are reused if the ledger has vanished.
    pub fn from_rule_object(
        object: &PodTransitionRule,
        known: Option<&RuleSnapshot>,
        skips: SkipAnnotation,
    ) -> RuleSnapshot {
        let meta = &object.metadata;
        let ledger = object.status.as_ref().and_then(|s| s.ledger.as_ref());
        // A spec that could not be read is compiled again: after a change of the CustomResourceDefinition, the API
        // server may serve the same generation in another form.
        let same = |s: &&RuleSnapshot| {
            s.rules.selector.is_ok()
                && Some(&*s.rules.uid) == meta.uid.as_deref()
                && Some(s.rules.generation) == meta.generation
                && s.rules.ignores == ignore_policy::acknowledged_names(meta.annotations.as_ref())
        };
        let version = meta.resource_version.as_deref();
        let version = version.and_then(|v| v.parse().ok()).unwrap_or(0);
        // If the ledger was unusable, somebody has emptied it to start anew. Otherwise it has vanished.
        let is_emptied = known.is_some_and(|known| known.fault.is_some());
        let snapshot = RuleSnapshot {
            version,
            held: match ledger.is_some() || is_emptied {
                true => version,
                false => 0,
            },
            rules: known.filter(same).map_or_else(
                || {
                    let compiled = RuleSet::compile(object);
                    Arc::new(RuleSet { skips, ..compiled })
                },
                |s| Arc::clone(&s.rules),
            ),
            claims: Arc::new(
                ledger
                    .map(ledger_format::claims_from_status)
                    .unwrap_or_default(),
            ),
            forgotten: None,
            fault: ledger.and_then(ledger_format::find_fault).map(Arc::from),
        };
        match known {
            Some(known) => snapshot.merge_remembered_claims(known),
            None => snapshot,
        }
    }
}

/// The meaning of a failed call, without reading the object.
fn to_write_error(e: Error) -> WriteError {
    match e {
        Error::Api(status) if status.code == 409 => WriteError::Conflict,
        e => WriteError::Unreachable(api_request::text(&e)),
    }
}

#[cfg(test)]
mod tests;
