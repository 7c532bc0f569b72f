//! Break-glass: a disruption that a rule denies is admitted beyond its budget if the Pod names a reason and the very user
//! who asks has the RBAC verb `bypass` on the rule. The right is asked for only when a denial is due, and the claim is
//! written all the same: everybody else counts the Pod as going.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;
use tracing::warn;

use super::context::Context;
use super::review::{Request, Verdict};
use super::{denial, overlap, rule_check};
use crate::api::keys;
use crate::apirequest;
use crate::cluster::events::pod_reference;
use crate::domain::pod::Pod;
use crate::domain::rules::{SkipAnnotation, unreadable_skips_message};
use crate::ledger::commit::{Denied, DenyReason, Disruption};
use crate::ledger::protocol::{ClaimGrant, Operation};
use crate::ledger::store::RuleKey;

/// The verb on `podtransitionrules`, by name of the rule.
pub const BYPASS_VERB: &str = "bypass";
const PLURAL: &str = "podtransitionrules";
const KIND: &str = "PodTransitionRule";
/// How a request is admitted that a budget has no room for.
const BEYOND_BUDGET: &str = "beyond the budget of";
/// How a request is admitted that a rule of another kind holds.
pub const AGAINST_RULE: &str = "though not let go by";
/// Reason of the Event on rule and Pod.
const BYPASS_EVENT: &str = "BudgetBypassed";
/// Reason of the Event on rule and Pod when the Pod skips a rule that would hold it.
const SKIP_EVENT: &str = "RuleSkipped";
/// For the question, so that a denial is still in time when the API server does not answer.
const ACCESS_REVIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// One request that asks rules for leave, and may appeal.
pub struct BypassCheck<'a> {
    /// What the handler works with.
    pub context: &'a Context,
    /// Who asks.
    pub request: &'a Request,
    /// The Pod whose annotation counts: as it shall be stored, or as it is stored if it is to go.
    pub carrier: &'a Pod,
    /// Nothing may be written.
    pub dry_run: bool,
    /// Whether the reason that the Pod carries counts for this request.
    pub is_asked_for: bool,
    /// When the API server stops listening.
    pub deadline: Instant,
}

/// What was given.
#[derive(Debug, Default)]
pub struct Approval {
    /// Claims, by rule object.
    pub claims: Vec<(RuleKey, ClaimGrant)>,
    /// Rule objects whose budget was gone beyond.
    pub bypassed_rules: BTreeSet<String>,
    /// Rules that would hold the Pod and that its annotation skips, by rule object.
    pub skipped: BTreeMap<String, Vec<String>>,
    /// Rule objects that were bypassed otherwise: their label checks, their endpoints, or the lifecycle before a deletion.
    pub bypassed_checks: BTreeSet<String>,
    /// Whether a deletion was admitted without the lifecycle that comes before it.
    pub without_lifecycle: bool,
}

/// A denial, and why an appeal or the annotation to skip rules did not help; of what was not tried nothing is said.
#[derive(Debug)]
pub struct DenialWithNote {
    /// The denial.
    pub denied: Denied,
    /// To be added to its text: also that the Pod's annotation to skip rules can't be read.
    pub note: Option<String>,
}

impl DenialWithNote {
    /// The message.
    pub fn denial_message(&self, pod: &str, now: Timestamp) -> String {
        let text = denial::describe_denial(pod, &self.denied, now);
        match &self.note {
            Some(note) => format!("{text}; {note}"),
            None => text,
        }
    }

    /// Adds why a write that leaves the Pod running is held.
    pub fn with_held_write_reason(mut self, operation: Operation) -> DenialWithNote {
        let parts = denial::explain_held_write(operation).map(str::to_owned);
        let parts: Vec<_> = parts.into_iter().chain(self.note.take()).collect();
        self.note = (!parts.is_empty()).then(|| parts.join("; "));
        self
    }

    /// The verdict.
    pub fn to_verdict(&self, pod: &str, now: Timestamp) -> Verdict {
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(code, reason, self.denial_message(pod, now))
            .with_audit("held", denial::audit_reason(&self.denied.why))
    }
}

impl Approval {
    /// Adds to the audit event of an allowed request which rules the Pod skips, which were gone beyond, and why.
    pub fn audit_bypass(&self, mut verdict: Verdict, bypass: &BypassCheck<'_>) -> Verdict {
        if !self.skipped.is_empty() {
            let skipped = self.skipped.iter();
            let skipped = skipped.flat_map(|(object, rules)| {
                rules.iter().map(move |rule| format!("{object}/{rule}"))
            });
            let skipped: Vec<_> = skipped.collect();
            verdict = verdict.with_audit("skipped-rules", skipped.join(", "));
        }
        let mut rules: Vec<_> = (self.bypassed_rules.iter().chain(&self.bypassed_checks))
            .map(String::as_str)
            .collect();
        if self.without_lifecycle {
            rules.push("lifecycle");
        }
        if rules.is_empty() {
            return verdict;
        }
        let reason = bypass.bypass_reason().unwrap_or_default();
        verdict.with_audit("bypassed", format!("{}: {reason}", rules.join(", ")))
    }
}

impl BypassCheck<'_> {
    /// Claims for the disruption by every rule object that covers the Pod, beyond the budget of those that may be
    /// bypassed.
    pub async fn claim_or_bypass(
        &self,
        mut disruption: Disruption,
    ) -> Result<Approval, DenialWithNote> {
        loop {
            let asked = rule_check::claim_for_disruption(
                self.context,
                &disruption,
                self.dry_run,
                self.deadline,
            )
            .await;
            let denied = match asked {
                Ok(claims) => {
                    let beyond = disruption.bypassed_rules;
                    self.announce_bypass(&disruption.pod, &beyond, BEYOND_BUDGET);
                    let skipped = self.announce_skipped_rules(&disruption.pod, false);
                    return Ok(Approval {
                        claims,
                        bypassed_rules: beyond,
                        skipped,
                        ..Approval::default()
                    });
                }
                Err(denied) => denied,
            };
            self.bypass_denied_rule(denied, &disruption.pod, &mut disruption.bypassed_rules)
                .await?;
        }
    }

    /// Asks the rules that hold Pods that are not available; the names of those bypassed.
    pub async fn admit_unavailable(&self, pod: &Arc<Pod>) -> Result<Approval, DenialWithNote> {
        let mut beyond = BTreeSet::new();
        while let Err(denied) =
            rule_check::admit_unavailable(self.context, pod, &beyond, self.deadline).await
        {
            self.bypass_denied_rule(denied, pod, &mut beyond).await?;
        }
        self.announce_bypass(pod, &beyond, BEYOND_BUDGET);
        Ok(Approval {
            bypassed_rules: beyond,
            skipped: self.announce_skipped_rules(pod, true),
            ..Approval::default()
        })
    }

    /// The rules that would hold the Pod and that its annotation skips, by rule object; told to everybody who looks.
    /// `unavailable`: only those that hold Pods that are not available.
    fn announce_skipped_rules(
        &self,
        pod: &Pod,
        unavailable: bool,
    ) -> BTreeMap<String, Vec<String>> {
        let state = self.context.index.read_state();
        let namespace = state.namespace(&pod.metadata.namespace);
        let rules = namespace.into_iter().flat_map(|n| n.rules.values());
        let skipped = rules.filter_map(|entry| {
            let rules = &entry.snapshot.rules;
            let names = rules.skipped_rules(pod, unavailable);
            let names: Vec<_> = names.into_iter().map(str::to_owned).collect();
            (!names.is_empty()).then(|| (rules.name.clone(), names))
        });
        let skipped: BTreeMap<_, _> = skipped.collect();
        drop(state);
        if skipped.is_empty() || self.dry_run {
            return skipped;
        }
        let counters = &self.context.ledgers.counters;
        counters.skipped.fetch_add(1, Ordering::Relaxed);
        let (name, user) = (&pod.metadata.name, self.request.user());
        for (object, rules) in &skipped {
            let message = format!(
                "{} of Pod {name} by {user} was admitted without {KIND} {object}, rule {}: the Pod skips it by its annotation {}",
                self.describe_request(),
                rules.join(", "),
                keys::SKIP_RULE_CONDITIONS
            );
            self.record_warning_event(pod, object, SKIP_EVENT, &message);
        }
        skipped
    }

    /// Adds the rule of a denial to those that may be bypassed.
    async fn bypass_denied_rule(
        &self,
        denied: Denied,
        pod: &Pod,
        beyond: &mut BTreeSet<String>,
    ) -> Result<(), DenialWithNote> {
        let by_rule = matches!(
            denied.why,
            DenyReason::Full { .. }
                | DenyReason::Unhealthy { .. }
                | DenyReason::Broken(_)
                | DenyReason::UnknownOwner(_)
                | DenyReason::Unset { .. }
        );
        let by_number = matches!(denied.why, DenyReason::Overlapping { .. }) && beyond.is_empty();
        if !by_number && (!by_rule || beyond.contains(&denied.object)) {
            return Err(DenialWithNote { denied, note: None });
        }
        let rule = by_rule.then_some(denied.object.as_str());
        let note = match self.may_bypass(rule).await {
            Ok(()) if by_number => {
                let (index, rules) = (
                    &self.context.index,
                    self.context.index.rules_covering_pod(pod),
                );
                let names = overlap::availability_rule_names(index, &rules).into_iter();
                beyond.extend(names.map(str::to_owned));
                return Ok(());
            }
            Ok(()) => {
                beyond.insert(denied.object);
                return Ok(());
            }
            Err(note) => note,
        };
        let skips = match self.context.index.skips() {
            SkipAnnotation::Honoured => unreadable_skips_message(pod),
            SkipAnnotation::Ignored => None,
        };
        let notes: Vec<_> = skips.into_iter().chain(note).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Err(DenialWithNote { denied, note })
    }

    /// The reason in the annotation.
    fn bypass_reason(&self) -> Option<&str> {
        let carrier = self.is_asked_for.then_some(self.carrier)?;
        carrier.annotation(keys::BYPASS).map(str::trim)
    }

    /// Whether there is an appeal at all.
    pub fn is_requested(&self) -> bool {
        self.bypass_reason().is_some()
    }

    /// Whether the user may bypass a rule object, all of the namespace where none is named; else what to tell them, nothing
    /// where they did not ask.
    pub async fn may_bypass(&self, rule: Option<&str>) -> Result<(), Option<String>> {
        let key = keys::BYPASS;
        let Some(reason) = self.bypass_reason() else {
            return Err(None);
        };
        if reason.is_empty() {
            return Err(Some(format!(
                "its annotation {key} is empty: a bypass needs its reason there"
            )));
        }
        let user = &self.request.user_info.username;
        let limit = self.deadline.min(Instant::now() + ACCESS_REVIEW_TIMEOUT);
        let why = match apirequest::by(limit, self.is_allowed(rule)).await {
            Ok(true) => return Ok(()),
            Ok(false) => {
                let object = rule.map_or_else(
                    || format!("all {PLURAL} of the namespace"),
                    |rule| format!("{PLURAL}/{rule}"),
                );
                return Err(Some(format!(
                    "its annotation {key} asks to bypass that, but {user} lacks the RBAC verb {BYPASS_VERB} on {object}"
                )));
            }
            Err(failure) => failure.text(),
        };
        Err(Some(format!(
            "its annotation {key} asks to bypass that, but whether {user} may could not be asked ({why})"
        )))
    }

    /// Whether the user may bypass all of these rule objects; where there is none, all of the namespace.
    pub async fn may_bypass_all(&self, rules: &BTreeSet<String>) -> Result<(), Option<String>> {
        if rules.is_empty() {
            return self.may_bypass(None).await;
        }
        let asked = rules.iter().map(|rule| self.may_bypass(Some(rule)));
        try_join_all(asked).await.map(drop)
    }

    async fn is_allowed(&self, rule: Option<&str>) -> kube::Result<bool> {
        let user = &self.request.user_info;
        let extra = user.extra.iter().flatten();
        let extra = extra.map(|(key, values)| (key.clone(), values.clone().unwrap_or_default()));
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.username.clone()),
                uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(extra.collect()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(self.request.namespace.clone()),
                    verb: Some(BYPASS_VERB.to_owned()),
                    group: Some(keys::GROUP.to_owned()),
                    version: Some(keys::VERSION.to_owned()),
                    resource: Some(PLURAL.to_owned()),
                    name: rule.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.context.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        let verdict = answer.status.unwrap_or_default();
        Ok(verdict.allowed && !verdict.denied.unwrap_or(false))
    }

    /// Tells everybody who looks that a request was admitted `how` of these rule objects: the log, the metric, Events on Pod and
    /// rules.
    pub fn announce_bypass(&self, pod: &Pod, rules: &BTreeSet<String>, how: &str) {
        if rules.is_empty() || self.dry_run {
            return;
        }
        let counters = &self.context.ledgers.counters;
        counters.bypassed.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        let user = self.request.user();
        let reason = self.bypass_reason().unwrap_or_default();
        let what = self.describe_request();
        for rule in rules {
            warn!(%namespace, pod = %name, %rule, %user, reason, "admitted {how} the rule");
            let message = format!(
                "{what} of Pod {name} by {user} was admitted {how} {KIND} {rule}: {reason}"
            );
            self.record_warning_event(pod, rule, BYPASS_EVENT, &message);
        }
    }

    /// The same where no rule object covers the Pod.
    pub fn announce_pod_bypass(&self, pod: &Pod, how: &str) {
        if self.dry_run {
            return;
        }
        let counters = &self.context.ledgers.counters;
        counters.bypassed.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        let user = self.request.user();
        let reason = self.bypass_reason().unwrap_or_default();
        warn!(%namespace, pod = %name, %user, reason, "admitted {how}");
        let message = format!(
            "{} of Pod {name} by {user} was admitted {how}: {reason}",
            self.describe_request()
        );
        let events = &self.context.events;
        events.record_event(&pod_reference(pod), true, BYPASS_EVENT, &message);
    }

    /// What is asked for, such as `DELETE` or `CREATE of pods/eviction`.
    fn describe_request(&self) -> String {
        let operation = self.request.operation.as_str();
        match self.request.sub_resource.as_deref() {
            Some(sub) => format!("{operation} of pods/{sub}"),
            None => operation.to_owned(),
        }
    }

    /// A Warning on the Pod and on a rule object.
    fn record_warning_event(&self, pod: &Pod, rule: &str, reason: &'static str, message: &str) {
        let namespace = &pod.metadata.namespace;
        let state = self.context.index.read_state();
        let uid = state
            .rule(namespace, rule)
            .map(|e| e.rule_key().uid.to_string());
        drop(state);
        let about_rule = ObjectReference {
            api_version: Some(format!("{}/{}", keys::GROUP, keys::VERSION)),
            kind: Some(KIND.to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(rule.to_owned()),
            uid,
            ..ObjectReference::default()
        };
        for about in [about_rule, pod_reference(pod)] {
            let events = &self.context.events;
            events.record_event(&about, true, reason, message);
        }
    }
}

#[cfg(test)]
mod tests;
