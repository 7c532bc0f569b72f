//! Break-glass: admits a disruption that a rule denies, beyond the budget of the rule. The Pod must name a reason in an
//! annotation, and the user of the request must have the RBAC verb `bypass` on the rule. The server checks the right
//! only when a rule would deny the request. The claim is written all the same, so that later decisions count the Pod as
//! going.

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

use super::context::AdmissionContext;
use super::review::{Request, Verdict};
use super::{denial, overlap, rule_check};
use crate::api::keys;
use crate::api_request;
use crate::cluster::events::pod_reference;
use crate::domain::pod::Pod;
use crate::domain::rules::{SkipAnnotation, unreadable_skips_message};
use crate::ledger::commit::{Denied, DenyReason, Disruption};
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::RuleKey;

/// The RBAC verb on `podtransitionrules`. The name of the rule object is the resource name.
pub const BYPASS_VERB: &str = "bypass";
const PLURAL: &str = "podtransitionrules";
const KIND: &str = "PodTransitionRule";
/// The words of log and Events between "was admitted" and the rule, for a rule whose budget is bypassed.
const BEYOND_BUDGET: &str = "beyond the budget of";
/// The same words for a rule that denies the request for another reason than its budget.
pub const AGAINST_RULE: &str = "though not let go by";
/// Reason of the Event on the rule object and the Pod.
const BYPASS_EVENT: &str = "BudgetBypassed";
/// Reason of the Event on the rule object and the Pod when the Pod skips a rule that would hold it.
const SKIP_EVENT: &str = "RuleSkipped";
/// Time limit of a SubjectAccessReview. It is short, so that a denial is still in time when the API server does not
/// answer.
const ACCESS_REVIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// The bypass check of one request.
pub struct BypassCheck<'a> {
    /// The state that all handlers share.
    pub context: &'a AdmissionContext,
    /// The request. Its user needs the right.
    pub request: &'a Request,
    /// The Pod whose annotation names the reason: the new Pod of an update, the stored Pod of a deletion or an
    /// eviction.
    pub carrier: &'a Pod,
    /// Whether nothing may be written.
    pub dry_run: bool,
    /// Whether the reason in the annotation of `carrier` applies to this request.
    pub is_asked_for: bool,
    /// When the API server stops waiting for the verdict.
    pub deadline: Instant,
}

/// The claims of a request that is admitted, and the rules that were bypassed or skipped for it.
#[derive(Debug, Default)]
pub struct Approval {
    /// The claims that were written, by rule object.
    pub claims: Vec<(RuleKey, ClaimGrant)>,
    /// Names of the rule objects whose budget was bypassed.
    pub bypassed_rules: BTreeSet<String>,
    /// Rules that would hold the Pod and that its annotation skips, by rule object.
    pub skipped: BTreeMap<String, Vec<String>>,
    /// Names of the rule objects that were bypassed for another reason than their budget: their label checks, their
    /// endpoints, or the lifecycle before a deletion.
    pub bypassed_checks: BTreeSet<String>,
    /// Whether a deletion was admitted without the lifecycle that comes before it.
    pub without_lifecycle: bool,
}

/// A denial, and the reasons why the bypass check and the skip annotation did not prevent it. The note is silent about
/// a bypass or an annotation that the user did not try.
#[derive(Debug)]
pub struct ExplainedDenial {
    /// The denial.
    pub denied: Denied,
    /// Text that is appended to the message. It also says when the Pod's skip annotation cannot be parsed.
    pub note: Option<String>,
}

impl ExplainedDenial {
    /// The message for the user: the denial and the note.
    pub fn denial_message(&self, pod: &str, now: Timestamp) -> String {
        let text = denial::describe_denial(pod, &self.denied, now);
        match &self.note {
            Some(note) => format!("{text}; {note}"),
            None => text,
        }
    }

    /// Adds the reason why rules hold a write that leaves the Pod running.
    pub fn with_held_write_reason(mut self, operation: ClaimOperation) -> ExplainedDenial {
        let parts = denial::explain_held_write(operation).map(str::to_owned);
        let parts: Vec<_> = parts.into_iter().chain(self.note.take()).collect();
        self.note = (!parts.is_empty()).then(|| parts.join("; "));
        self
    }

    /// The verdict: status 429 with the message and the audit annotation `held`.
    pub fn to_verdict(&self, pod: &str, now: Timestamp) -> Verdict {
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(code, reason, self.denial_message(pod, now))
            .with_audit("held", denial::audit_reason(&self.denied.why))
    }
}

impl Approval {
    /// Adds the rules that the Pod skips, the bypassed rules and the reason of the bypass to the audit event of an
    /// allowed request.
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
    /// Takes a claim for the disruption from every rule object that covers the Pod. Rules that deny are bypassed, if
    /// the user may bypass them.
    pub async fn claim_or_bypass(
        &self,
        mut disruption: Disruption,
    ) -> Result<Approval, ExplainedDenial> {
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

    /// Asks the rules that hold Pods which are not available. The result has the names of the bypassed rules.
    pub async fn admit_unavailable(&self, pod: &Arc<Pod>) -> Result<Approval, ExplainedDenial> {
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

    /// Finds the rules that would hold the Pod and that its annotation skips, by rule object, and reports them by the
    /// metric and Events. With `unavailable`, only rules count that hold Pods which are not available.
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

    /// Adds the rule of a denial to `beyond`, if the user may bypass it.
    async fn bypass_denied_rule(
        &self,
        denied: Denied,
        pod: &Pod,
        beyond: &mut BTreeSet<String>,
    ) -> Result<(), ExplainedDenial> {
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
            return Err(ExplainedDenial { denied, note: None });
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
        Err(ExplainedDenial { denied, note })
    }

    /// The reason in the annotation, if it applies to this request.
    fn bypass_reason(&self) -> Option<&str> {
        let carrier = self.is_asked_for.then_some(self.carrier)?;
        carrier.annotation(keys::BYPASS).map(str::trim)
    }

    /// Whether the user asks for a bypass.
    pub fn is_requested(&self) -> bool {
        self.bypass_reason().is_some()
    }

    /// Whether the user may bypass a rule object. Without a name, the user must have the verb on all rule objects of
    /// the namespace.
    ///
    /// # Errors
    /// The text for the user; `None` if the user did not ask for a bypass.
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
        let why = match api_request::by(limit, self.is_allowed(rule)).await {
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

    /// Whether the user may bypass all of these rule objects. If the set is empty, the user must have the verb on all
    /// rule objects of the namespace.
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

    /// Reports that a request was admitted although these rule objects deny it: to the log, the metric, and Events on
    /// the Pod and the rule objects. `how` comes before the name of the rule in the texts.
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

    /// Reports the same as [`BypassCheck::announce_bypass`], for a Pod that no rule object covers.
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

    /// The kind of the request, such as `DELETE` or `CREATE of pods/eviction`.
    fn describe_request(&self) -> String {
        let operation = self.request.operation.as_str();
        match self.request.sub_resource.as_deref() {
            Some(sub) => format!("{operation} of pods/{sub}"),
            None => operation.to_owned(),
        }
    }

    /// Records a Warning Event on the Pod and on a rule object.
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
