//! Validates writes of Pods: denies deletions and other disruptions that would violate a rule, and label changes that
//! would evade a rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{deny_invalid_pod, entering_rules, parse_pod, pod_updates};
use crate::admission::bypass::{BypassCheck, ExplainedDenial};
use crate::admission::context::AdmissionContext;
use crate::admission::review::{Handler, Request, RequestOperation, Verdict};
use crate::admission::{denial, exempt, graceful_deletion, rule_check};
use crate::api::keys::Family;
use crate::domain::deletion::DeletionOptions;
use crate::domain::grace_delete::is_operation_allowed;
use crate::domain::lifecycle::LifecycleError;
use crate::domain::lifecycle::{is_held_offline, restarts, validate};
use crate::domain::pod::Pod;
use crate::ledger::commit::{Denied, Disruption};
use crate::ledger::protocol::{ClaimGrant, ClaimOperation as Claimed};
use crate::ledger::store::RuleKey;

/// Denies writes that would violate a rule.
pub struct PodValidator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for PodValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        match request.operation {
            RequestOperation::Delete => self.review_delete(request, deadline).await,
            RequestOperation::Update => self.review_update(request, deadline).await,
            RequestOperation::Create | RequestOperation::Connect => Verdict::allow(),
        }
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        let old = match parse_pod(request, request.old_object.as_deref()) {
            Ok(old) => old,
            Err(verdict) => return verdict,
        };
        let free = match request.operation {
            RequestOperation::Update => match parse_pod(request, request.object.as_deref()) {
                Ok(new) => self.update_exemption(request, &old, &new),
                Err(verdict) => return verdict,
            },
            _ => exempt::exemption_by_request(request, &old)
                .or_else(|| self.deletion_exemption(&old)),
        };
        if let Some(reason) = free {
            return Verdict::allow().with_audit("free", reason);
        }
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(
            code,
            reason,
            format!(
                "Pod {} is held: {why}; try again in a moment",
                old.metadata.name
            ),
        )
    }
}

impl PodValidator {
    async fn review_delete(&self, request: &Request, deadline: Instant) -> Verdict {
        let old = match parse_pod(request, request.old_object.as_deref()) {
            Ok(old) => Arc::new(old),
            Err(verdict) => return verdict,
        };
        if let Some(reason) = exempt::find_exemption(&self.0, request, &old, deadline).await {
            return Verdict::allow().with_audit("free", reason);
        }
        if let Some(reason) = exempt::exemption_for_controller_manager(&self.0, request, &old).await
        {
            return Verdict::allow().with_audit("free", reason);
        }
        let bypass = self.bypass_check(request, &old, deadline);
        if graceful_deletion::is_lifecycle_due(self.0.settings.grace_delete, &old) {
            if graceful_deletion::is_own_dry_run(&self.0, request, deadline).await {
                return Verdict::allow().with_audit("free", "own-dry-run");
            }
            let wishes =
                DeletionOptions::from_delete(&request.options_json(), &request.old_object_json());
            return graceful_deletion::decide_deletion(&bypass, &old, Claimed::Delete, wishes)
                .await;
        }
        if exempt::is_deleted_with_collaset(&self.0, &old, deadline).await {
            return Verdict::allow().with_audit("free", exempt::COLLASET_DELETED);
        }
        let disruption = self.0.new_disruption(&old, Claimed::Delete);
        if old.is_available() {
            return self.claim_disruption(&bypass, disruption).await;
        }
        let approval = match bypass.admit_unavailable(&old).await {
            Ok(approval) => approval,
            Err(refused) => return refused.to_verdict(&old.metadata.name, (self.0.now)()),
        };
        if self.is_about_to_serve(&old) {
            let verdict = self.claim_disruption(&bypass, disruption).await;
            return approval.audit_bypass(verdict, &bypass);
        }
        approval.audit_bypass(Verdict::allow().with_audit("free", "unavailable"), &bypass)
    }

    /// Whether a Pod has become Ready a moment ago and only lacks the label that the leader adds afterwards. Many Pods
    /// may become Ready at the same time, and without this check all of them could be deleted before the first is
    /// labelled.
    fn is_about_to_serve(&self, pod: &Pod) -> bool {
        let is_starting = pod.is_starting((self.0.now)());
        let is_new = || is_starting || self.0.index.read_state().is_briefly_down(pod);
        pod.is_ready() && !is_held_offline(pod) && is_new()
    }

    fn bypass_check<'a>(
        &'a self,
        request: &'a Request,
        carrier: &'a Pod,
        deadline: Instant,
    ) -> BypassCheck<'a> {
        BypassCheck {
            context: &self.0,
            request,
            carrier,
            dry_run: request.dry_run,
            is_asked_for: true,
            deadline,
        }
    }

    async fn review_update(&self, request: &Request, deadline: Instant) -> Verdict {
        let (old, new) = match (
            parse_pod(request, request.old_object.as_deref()),
            parse_pod(request, request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (Arc::new(old), new),
            (Err(verdict), _) | (_, Err(verdict)) => return verdict,
        };
        if new.is_managed()
            && rule_check::are_user_labels_changed(&old, &new)
            && let Err(denied) =
                rule_check::ensure_rules_current(&self.0, &old.metadata.namespace, deadline).await
            && exempt::find_exemption(&self.0, request, &new, deadline)
                .await
                .is_none()
        {
            return self.deny_held(&old, &denied); // the Pod may come under a rule that the cache does not have yet
        }
        if let Some(refused) = entering_rules::refuse_entering(&self.0, request, &old, &new)
            && exempt::find_exemption(&self.0, request, &new, deadline)
                .await
                .is_none()
        {
            return refused;
        }
        if let Some(reason) = exempt::find_exemption(&self.0, request, &old, deadline).await {
            return Verdict::allow().with_audit("free", reason);
        }
        if new.is_managed() {
            let errors: Vec<LifecycleError> = validate(Some(&old), &new);
            if !errors.is_empty() {
                return deny_invalid_pod(&new, &errors);
            }
        }
        // Read the generations before the rules: a rule that changes in between then has another generation.
        let generations = match rule_check::are_user_labels_changed(&old, &new) {
            true => rule_check::rule_generations(&self.0, &old.metadata.namespace),
            false => BTreeMap::new(),
        };
        let left = match rule_check::rules_losing_pod(&self.0, &old, &new, deadline).await {
            Ok(left) => left,
            Err(denied) => return self.deny_held(&old, &denied),
        };
        let mut taken = TakenClaims::default();
        if let Some(rule) = left.first() {
            if let Some(restarts) = restarts::pending_restarts(&old) {
                // Once the Pod is outside of the management, anybody could remove the record of its restarts.
                let message = format!(
                    "Pod {} can't leave PodTransitionRule {} while it waits for {restarts}",
                    old.metadata.name, rule.name
                );
                return Verdict::deny(403, "Forbidden", message)
                    .with_audit("held", "awaits-restart");
            }
            if let Some(id) = operation_in_flight(&old) {
                let message = format!(
                    "Pod {} can't leave PodTransitionRule {} while operation {id} is in flight on it: finish or undo the \
                     operation first",
                    old.metadata.name, rule.name
                );
                return Verdict::deny(403, "Forbidden", message)
                    .with_audit("held", "leaves-in-flight");
            }
            if old.is_available() || self.is_about_to_serve(&old) {
                let disruption = Disruption {
                    generations,
                    ..self.0.new_disruption(&old, Claimed::Leave)
                };
                let claimed = rule_check::claim_by_rules(
                    &self.0,
                    left,
                    &disruption,
                    request.dry_run,
                    deadline,
                )
                .await;
                match claimed {
                    Ok(claims) => taken.add(Claimed::Leave, claims),
                    Err(denied) => {
                        let note = None;
                        let refused =
                            ExplainedDenial { denied, note }.with_held_write_reason(Claimed::Leave);
                        return refused.to_verdict(&old.metadata.name, (self.0.now)());
                    }
                }
            }
        }
        let bypass = self.bypass_check(request, &new, deadline);
        let mut verdict = Verdict::allow();
        for disruption in pod_updates::update_disruptions(&self.0, &old, &new, deadline).await {
            let operation = disruption.operation;
            if !disruption.bypassed_rules.is_empty() {
                match rule_check::claim_for_disruption(
                    &self.0,
                    &disruption,
                    request.dry_run,
                    deadline,
                )
                .await
                {
                    Ok(claims) => taken.add(operation, claims),
                    Err(denied) => {
                        taken.withdraw(&self.0, &old);
                        return self.deny_held(&old, &denied);
                    }
                }
                continue;
            }
            match bypass.claim_or_bypass(disruption).await {
                Ok(approval) => {
                    verdict = approval.audit_bypass(verdict, &bypass);
                    taken.add(operation, approval.claims);
                }
                Err(refused) => {
                    taken.withdraw(&self.0, &old);
                    let refused = refused.with_held_write_reason(operation);
                    return refused.to_verdict(&old.metadata.name, (self.0.now)());
                }
            }
        }
        match taken.audit_operations() {
            Some(operations) => verdict.with_audit("claimed", operations),
            None => verdict,
        }
    }

    async fn claim_disruption(&self, bypass: &BypassCheck<'_>, disruption: Disruption) -> Verdict {
        let (pod, operation) = (Arc::clone(&disruption.pod), disruption.operation);
        match bypass.claim_or_bypass(disruption).await {
            Ok(approval) if approval.claims.is_empty() => {
                approval.audit_bypass(Verdict::allow(), bypass)
            }
            Ok(approval) => {
                let verdict = Verdict::allow().with_audit("claimed", operation.as_str());
                approval.audit_bypass(verdict, bypass)
            }
            Err(refused) => refused.to_verdict(&pod.metadata.name, (self.0.now)()),
        }
    }

    fn deny_held(&self, pod: &Pod, denied: &Denied) -> Verdict {
        denial::denied_to_verdict(&pod.metadata.name, denied, (self.0.now)())
    }

    /// Why no budget holds a deletion, by the review alone. A rule that is missing in the caches may exist: it may be
    /// new, or a restore of etcd may have brought it back.
    fn deletion_exemption(&self, old: &Pod) -> Option<&'static str> {
        if graceful_deletion::is_lifecycle_due(self.0.settings.grace_delete, old) {
            return None;
        }
        (!old.is_available() && is_operation_allowed(old)).then_some("unavailable")
    }

    /// The same as [`PodValidator::deletion_exemption`] for an UPDATE. Every write that rules could deny, or for which
    /// they could need a claim, is held, because it is unknown which rules the Pod enters or leaves.
    fn update_exemption(&self, request: &Request, old: &Pod, new: &Pod) -> Option<&'static str> {
        let may_be_held = exempt::exemption_by_request(request, new).is_none();
        if may_be_held
            && entering_rules::refuse_entry_by_review(&self.0, request, old, new).is_some()
        {
            return None;
        }
        if let Some(reason) = exempt::exemption_by_request(request, old) {
            return Some(reason);
        }
        if new.is_managed() && !validate(Some(old), new).is_empty() {
            return None;
        }
        if pod_updates::may_disrupt_by_itself(&self.0, old, new) {
            return None;
        }
        if !rule_check::are_user_labels_changed(old, new) {
            // At most labels of the lifecycle differ.
            let is_begun_or_ended = old.metadata.labels != new.metadata.labels;
            return (!is_begun_or_ended || !old.is_available()).then_some("no-disruption");
        }
        let may_leave = !old.is_available()
            && operation_in_flight(old).is_none()
            && restarts::pending_restarts(old).is_none();
        may_leave.then_some("unavailable")
    }
}

/// The claims that one request has taken so far, by operation.
#[derive(Debug, Default)]
struct TakenClaims(Vec<(Claimed, Vec<(RuleKey, ClaimGrant)>)>);

impl TakenClaims {
    fn add(&mut self, operation: Claimed, claims: Vec<(RuleKey, ClaimGrant)>) {
        if !claims.is_empty() {
            self.0.push((operation, claims));
        }
    }

    /// Withdraws all of these claims, because the request is denied.
    fn withdraw(self, context: &AdmissionContext, pod: &Pod) {
        for (operation, claims) in self.0 {
            let uid = &pod.metadata.uid;
            context.ledgers.withdraw_claims(uid, operation, claims);
        }
    }

    /// The operations for the audit annotation `claimed`; `None` without claims.
    fn audit_operations(&self) -> Option<String> {
        let words: Vec<_> = self.0.iter().map(|(o, _)| o.as_str()).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// The ID of an operation in flight on the Pod, if there is one.
fn operation_in_flight(pod: &Pod) -> Option<&str> {
    pod.metadata
        .labels
        .keys()
        .find_map(|key| match Family::parse(key) {
            Some((Family::OperationPermission, _)) | None => None,
            Some((_, id)) => Some(id),
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use kube::Client;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;
    use crate::cluster::index::NamespaceFacts;

    /// The fallback verdict on the deletion of a Pod with this status, if the caches have its namespace as terminating
    /// and no rule.
    fn fallback(control: &str, status: Value) -> Verdict {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let context = AdmissionContext::at_epoch(Client::new(service, "default"));
        context.index.mark_all_listed();
        context.index.apply_namespace(NamespaceFacts {
            name: "shop".to_owned(),
            terminating_since: NamespaceFacts::parse_deletion_time(Some("2026-01-01T00:00:10Z")),
            ..NamespaceFacts::default()
        });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "DELETE", "namespace": "shop", "name": "web-1",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "ann" },
            "oldObject": {
                "metadata": {
                    "name": "web-1", "namespace": "shop", "uid": "p", "resourceVersion": "7",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": { (keys::CONTROL): control },
                },
                "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
                "status": status,
            },
        } });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        PodValidator(Arc::new(context)).fallback(&request, "nobody can look")
    }

    #[tokio::test]
    async fn fallback_admits_deletion_by_review_alone() {
        let ready =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        for (control, status, code) in [
            (keys::CONTROL_VALUE, ready.clone(), 429),
            (keys::CONTROL_VALUE, json!({ "phase": "Running" }), 429), // a rule may hold it all the same
            (keys::CONTROL_VALUE, json!({ "phase": "Failed" }), 200),
            ("other", ready, 200),
        ] {
            let verdict = fallback(control, status.clone());
            assert_eq!(verdict.is_allowed(), code == 200, "{control} {status}");
            let said = verdict.message();
            assert!(
                verdict.is_allowed() || said.contains("nobody can look"),
                "{said}"
            );
        }
    }

    /// The fallback verdict on an UPDATE of a Pod. `change` is applied to the stored Pod.
    fn update_fallback(old: &Value, change: impl FnOnce(&mut Value)) -> Verdict {
        let context = AdmissionContext::at_epoch(Client::new(
            tower::service_fn(|_: http::Request<kube::client::Body>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
            }),
            "default",
        ));
        context.index.mark_all_listed();
        let mut new = old.clone();
        change(&mut new);
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web-1",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "ann" }, "oldObject": old, "object": new,
        } });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        PodValidator(Arc::new(context)).fallback(&request, "nobody can look")
    }

    fn stored(labels: Value) -> Value {
        json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "p", "resourceVersion": "7", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels,
            },
            "spec": { "containers": [{ "name": "app", "image": "a:1" }] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] },
        })
    }

    #[tokio::test]
    async fn fallback_keeps_unavailable_pod_under_rule_during_operation() {
        let leave_rule =
            |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!("other");
        let key = Family::Operating.key("x");
        let operated = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE, (key): "1" }));
        assert!(!update_fallback(&operated, leave_rule).is_allowed());
        let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
        assert!(
            update_fallback(&down, leave_rule).is_allowed(),
            "nobody is served by it"
        );
    }

    #[tokio::test]
    async fn fallback_denies_rule_entry_with_outstanding_change() {
        let enter =
            |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!(keys::CONTROL_VALUE);
        let mut changed = stored(json!({}));
        assert!(
            !update_fallback(&changed, enter).is_allowed(),
            "its spec has changed"
        );
        let relabel = |pod: &mut Value| pod["metadata"]["labels"]["app"] = json!("web");
        assert!(
            update_fallback(&changed, relabel).is_allowed(),
            "not managed at all"
        );
        changed["metadata"]["labels"] = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
        assert!(
            !update_fallback(&changed, relabel).is_allowed(),
            "its spec has changed"
        );
        changed["metadata"]["generation"] = json!(1);
        assert!(update_fallback(&changed, relabel).is_allowed());
    }

    #[tokio::test]
    async fn fallback_denies_restarts_ends_and_forged_lifecycle() {
        let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
        let image = |pod: &mut Value| pod["spec"]["containers"][0]["image"] = json!("a:2");
        assert!(!update_fallback(&down, image).is_allowed());
        let deadline = |pod: &mut Value| pod["spec"]["activeDeadlineSeconds"] = json!(9);
        assert!(!update_fallback(&down, deadline).is_allowed());
        let owned = |pod: &mut Value| {
            pod["metadata"]["ownerReferences"] =
                json!([{ "apiVersion": "v1", "kind": "Thing", "name": "a", "uid": "a" }]);
        };
        assert!(!update_fallback(&down, owned).is_allowed());
        let forge =
            |pod: &mut Value| pod["metadata"]["labels"][Family::Operate.key("x")] = json!("1");
        assert!(!update_fallback(&down, forge).is_allowed());
        let note = |pod: &mut Value| pod["metadata"]["annotations"] = json!({ "a": "b" });
        assert!(update_fallback(&down, note).is_allowed());
    }
}
