//! Holds what would break a rule: deletions, whatever else ends or restarts a Pod that serves, and label edits that would
//! dodge the rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{entering, invalid, parse, writes};
use crate::admission::bypass::{BypassCheck, Refused};
use crate::admission::context::Context;
use crate::admission::review::{Handler, Operation, Request, Verdict};
use crate::admission::{denial, gate, grace, held};
use crate::api::keys::Family;
use crate::domain::deletion::Wishes;
use crate::domain::grace::is_operated;
use crate::domain::lifecycle::FieldError;
use crate::domain::lifecycle::{is_held_offline, restarts, validate};
use crate::domain::pod::Pod;
use crate::ledger::commit::{Denied, Disruption};
use crate::ledger::protocol::{Grant, Operation as Claimed};
use crate::ledger::store::RuleKey;

/// Holds what would break a rule.
pub struct Validate(pub Arc<Context>);

#[async_trait]
impl Handler for Validate {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        match request.operation {
            Operation::Delete => self.delete(request, deadline).await,
            Operation::Update => self.update(request, deadline).await,
            Operation::Create | Operation::Connect => Verdict::allow(),
        }
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        let old = match parse(request, request.old_object.as_deref()) {
            Ok(old) => old,
            Err(verdict) => return verdict,
        };
        let free = match request.operation {
            Operation::Update => match parse(request, request.object.as_deref()) {
                Ok(new) => self.frees_update(request, &old, &new),
                Err(verdict) => return verdict,
            },
            _ => held::by_itself(request, &old).or_else(|| self.frees_deletion(&old)),
        };
        if let Some(reason) = free {
            return Verdict::allow().audit("free", reason);
        }
        let (code, reason) = denial::HELD;
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

impl Validate {
    async fn delete(&self, request: &Request, deadline: Instant) -> Verdict {
        let old = match parse(request, request.old_object.as_deref()) {
            Ok(old) => Arc::new(old),
            Err(verdict) => return verdict,
        };
        if let Some(reason) = held::never(&self.0, request, &old, deadline).await {
            return Verdict::allow().audit("free", reason);
        }
        if let Some(reason) = held::by_shared_identity(&self.0, request, &old).await {
            return Verdict::allow().audit("free", reason);
        }
        let appeal = self.appeal(request, &old, deadline);
        if grace::is_due(self.0.settings.grace_delete, &old) {
            if grace::is_own_question(&self.0, request, deadline).await {
                return Verdict::allow().audit("free", "own-dry-run");
            }
            let wishes = Wishes::of_delete(&request.options_json(), &request.old_object_json());
            return grace::verdict(&appeal, &old, Claimed::Delete, wishes).await;
        }
        if held::goes_with_its_set(&self.0, &old, deadline).await {
            return Verdict::allow().audit("free", held::SET_DELETED);
        }
        let disruption = self.0.disruption(&old, Claimed::Delete);
        if old.is_available() {
            return self.claim(&appeal, disruption).await;
        }
        let leave = match appeal.let_go(&old).await {
            Ok(leave) => leave,
            Err(refused) => return refused.verdict(&old.metadata.name, (self.0.now)()),
        };
        if self.is_about_to_serve(&old) {
            let verdict = self.claim(&appeal, disruption).await;
            return leave.audit(verdict, &appeal);
        }
        leave.audit(Verdict::allow().audit("free", "unavailable"), &appeal)
    }

    /// Whether a Pod is Ready, as of a moment ago, and lacks but the label that the leader adds then: many may come back at once,
    /// and all of them could go before the first is labelled.
    fn is_about_to_serve(&self, pod: &Pod) -> bool {
        let is_starting = pod.is_starting((self.0.now)());
        let is_new = || is_starting || self.0.index.read().is_down_for_a_moment(pod);
        pod.is_ready() && !is_held_offline(pod) && is_new()
    }

    fn appeal<'a>(
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

    async fn update(&self, request: &Request, deadline: Instant) -> Verdict {
        let (old, new) = match (
            parse(request, request.old_object.as_deref()),
            parse(request, request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (Arc::new(old), new),
            (Err(verdict), _) | (_, Err(verdict)) => return verdict,
        };
        if new.is_managed()
            && gate::are_labels_changed(&old, &new)
            && let Err(denied) =
                gate::current_rules(&self.0, &old.metadata.namespace, deadline).await
            && held::never(&self.0, request, &new, deadline)
                .await
                .is_none()
        {
            return self.held(&old, &denied); // a rule that it comes under may be among those that are not known
        }
        if let Some(refused) = entering::refused(&self.0, request, &old, &new)
            && held::never(&self.0, request, &new, deadline)
                .await
                .is_none()
        {
            return refused;
        }
        if let Some(reason) = held::never(&self.0, request, &old, deadline).await {
            return Verdict::allow().audit("free", reason);
        }
        if new.is_managed() {
            let errors: Vec<FieldError> = validate(Some(&old), &new);
            if !errors.is_empty() {
                return invalid(&new, &errors);
            }
        }
        // Before the rules are looked up: what changes in between is another generation.
        let generations = match gate::are_labels_changed(&old, &new) {
            true => gate::generations(&self.0, &old.metadata.namespace),
            false => BTreeMap::new(),
        };
        let left = match gate::left(&self.0, &old, &new, deadline).await {
            Ok(left) => left,
            Err(denied) => return self.held(&old, &denied),
        };
        let mut taken = Taken::default();
        if let Some(rule) = left.first() {
            if let Some(restarts) = restarts::awaited(&old) {
                // Outside of the management anybody could remove the record.
                let message = format!(
                    "Pod {} can't leave PodTransitionRule {} while it waits for {restarts}",
                    old.metadata.name, rule.name
                );
                return Verdict::deny(403, "Forbidden", message).audit("held", "awaits-restart");
            }
            if let Some(id) = in_flight(&old) {
                let message = format!(
                    "Pod {} can't leave PodTransitionRule {} while operation {id} is in flight on it: finish or undo the \
                     operation first",
                    old.metadata.name, rule.name
                );
                return Verdict::deny(403, "Forbidden", message).audit("held", "leaves-in-flight");
            }
            if old.is_available() || self.is_about_to_serve(&old) {
                let disruption = Disruption {
                    generations,
                    ..self.0.disruption(&old, Claimed::Leave)
                };
                let claimed =
                    gate::claim_by(&self.0, left, &disruption, request.dry_run, deadline).await;
                match claimed {
                    Ok(claims) => taken.add(Claimed::Leave, claims),
                    Err(denied) => {
                        let note = None;
                        let refused = Refused { denied, note }.because(Claimed::Leave);
                        return refused.verdict(&old.metadata.name, (self.0.now)());
                    }
                }
            }
        }
        let appeal = self.appeal(request, &new, deadline);
        let mut verdict = Verdict::allow();
        for disruption in writes::disruptions(&self.0, &old, &new, deadline).await {
            let operation = disruption.operation;
            if !disruption.beyond.is_empty() {
                match gate::claim(&self.0, &disruption, request.dry_run, deadline).await {
                    Ok(claims) => taken.add(operation, claims),
                    Err(denied) => {
                        taken.withdraw(&self.0, &old);
                        return self.held(&old, &denied);
                    }
                }
                continue;
            }
            match appeal.claim(disruption).await {
                Ok(leave) => {
                    verdict = leave.audit(verdict, &appeal);
                    taken.add(operation, leave.claims);
                }
                Err(refused) => {
                    taken.withdraw(&self.0, &old);
                    let refused = refused.because(operation);
                    return refused.verdict(&old.metadata.name, (self.0.now)());
                }
            }
        }
        match taken.operations() {
            Some(operations) => verdict.audit("claimed", operations),
            None => verdict,
        }
    }

    async fn claim(&self, appeal: &BypassCheck<'_>, disruption: Disruption) -> Verdict {
        let (pod, operation) = (Arc::clone(&disruption.pod), disruption.operation);
        match appeal.claim(disruption).await {
            Ok(leave) if leave.claims.is_empty() => leave.audit(Verdict::allow(), appeal),
            Ok(leave) => {
                let verdict = Verdict::allow().audit("claimed", operation.as_str());
                leave.audit(verdict, appeal)
            }
            Err(refused) => refused.verdict(&pod.metadata.name, (self.0.now)()),
        }
    }

    fn held(&self, pod: &Pod, denied: &Denied) -> Verdict {
        denial::verdict(&pod.metadata.name, denied, (self.0.now)())
    }

    /// Why the budget of no rule holds a deletion, as far as the review tells. What the caches do not know proves nothing:
    /// a rule may have been made a moment ago, or have come back with a restore of etcd.
    fn frees_deletion(&self, old: &Pod) -> Option<&'static str> {
        if grace::is_due(self.0.settings.grace_delete, old) {
            return None;
        }
        (!old.is_available() && is_operated(old)).then_some("unavailable")
    }

    /// As [`Validate::frees_deletion`] of an UPDATE. Every write that a look at the rules could refuse or have claimed for is
    /// held: which rules the Pod comes under or leaves cannot be told.
    fn frees_update(&self, request: &Request, old: &Pod, new: &Pod) -> Option<&'static str> {
        let may_be_held = held::by_itself(request, new).is_none();
        if may_be_held && entering::refused_by_itself(&self.0, request, old, new).is_some() {
            return None;
        }
        if let Some(reason) = held::by_itself(request, old) {
            return Some(reason);
        }
        if new.is_managed() && !validate(Some(old), new).is_empty() {
            return None;
        }
        if writes::may_disrupt_by_itself(&self.0, old, new) {
            return None;
        }
        if !gate::are_labels_changed(old, new) {
            // Of its labels, those of the lifecycle at most.
            let is_begun_or_ended = old.metadata.labels != new.metadata.labels;
            return (!is_begun_or_ended || !old.is_available()).then_some("no-disruption");
        }
        let may_leave =
            !old.is_available() && in_flight(old).is_none() && restarts::awaited(old).is_none();
        may_leave.then_some("unavailable")
    }
}

/// The claims that one request has taken so far, by operation.
#[derive(Debug, Default)]
struct Taken(Vec<(Claimed, Vec<(RuleKey, Grant)>)>);

impl Taken {
    fn add(&mut self, operation: Claimed, claims: Vec<(RuleKey, Grant)>) {
        if !claims.is_empty() {
            self.0.push((operation, claims));
        }
    }

    /// Takes all of them back, because the request is refused.
    fn withdraw(self, context: &Context, pod: &Pod) {
        for (operation, claims) in self.0 {
            let uid = &pod.metadata.uid;
            context.ledgers.withdraw(uid, operation, claims);
        }
    }

    /// For the audit annotation.
    fn operations(&self) -> Option<String> {
        let words: Vec<_> = self.0.iter().map(|(o, _)| o.as_str()).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// An ID in flight on the Pod, if any.
fn in_flight(pod: &Pod) -> Option<&str> {
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

    /// The verdict without a look at anything on the deletion of a Pod with this status, where the caches know its namespace
    /// as going, and no rule.
    fn fallback(control: &str, status: Value) -> Verdict {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let context = Context::at_epoch(Client::new(service, "default"));
        context.index.mark_all_listed();
        context.index.apply_namespace(NamespaceFacts {
            name: "shop".to_owned(),
            terminating_since: NamespaceFacts::since(Some("2026-01-01T00:00:10Z")),
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
        Validate(Arc::new(context)).fallback(&request, "nobody can look")
    }

    #[tokio::test]
    async fn without_a_look_only_the_review_itself_frees_a_deletion() {
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

    /// The verdict without a look at anything on an UPDATE of a Pod. `change` is made to what is stored.
    fn blind(old: &Value, change: impl FnOnce(&mut Value)) -> Verdict {
        let context = Context::at_epoch(Client::new(
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
        Validate(Arc::new(context)).fallback(&request, "nobody can look")
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
    async fn without_a_look_a_pod_that_is_down_leaves_no_rule_while_an_operation_is_in_flight() {
        let leave = |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!("other");
        let key = Family::Operating.key("x");
        let operated = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE, (key): "1" }));
        assert!(!blind(&operated, leave).is_allowed());
        let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
        assert!(blind(&down, leave).is_allowed(), "nobody is served by it");
    }

    #[tokio::test]
    async fn without_a_look_no_pod_comes_under_a_rule_with_a_change_to_come() {
        let enter =
            |pod: &mut Value| pod["metadata"]["labels"][keys::CONTROL] = json!(keys::CONTROL_VALUE);
        let mut changed = stored(json!({}));
        assert!(!blind(&changed, enter).is_allowed(), "its spec has changed");
        let relabel = |pod: &mut Value| pod["metadata"]["labels"]["app"] = json!("web");
        assert!(blind(&changed, relabel).is_allowed(), "not managed at all");
        changed["metadata"]["labels"] = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
        assert!(
            !blind(&changed, relabel).is_allowed(),
            "its spec has changed"
        );
        changed["metadata"]["generation"] = json!(1);
        assert!(blind(&changed, relabel).is_allowed());
    }

    #[tokio::test]
    async fn without_a_look_nothing_restarts_ends_or_forges_the_lifecycle() {
        let down = stored(json!({ (keys::CONTROL): keys::CONTROL_VALUE }));
        let image = |pod: &mut Value| pod["spec"]["containers"][0]["image"] = json!("a:2");
        assert!(!blind(&down, image).is_allowed());
        let deadline = |pod: &mut Value| pod["spec"]["activeDeadlineSeconds"] = json!(9);
        assert!(!blind(&down, deadline).is_allowed());
        let owned = |pod: &mut Value| {
            pod["metadata"]["ownerReferences"] =
                json!([{ "apiVersion": "v1", "kind": "Thing", "name": "a", "uid": "a" }]);
        };
        assert!(!blind(&down, owned).is_allowed());
        let forge =
            |pod: &mut Value| pod["metadata"]["labels"][Family::Operate.key("x")] = json!("1");
        assert!(!blind(&down, forge).is_allowed());
        let note = |pod: &mut Value| pod["metadata"]["annotations"] = json!({ "a": "b" });
        assert!(blind(&down, note).is_allowed());
    }
}
