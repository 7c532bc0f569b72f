//! Holds what would break a rule: deletions, whatever else ends or restarts a Pod that serves, and label edits that would
//! dodge the rule.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{entering, invalid, parse, writes};
use crate::admission::appeal::{Appeal, Refused};
use crate::admission::context::Context;
use crate::admission::review::{Handler, Operation, Request, Verdict};
use crate::admission::{denial, gate, grace, held};
use crate::api::keys::Family;
use crate::domain::grace::is_operated;
use crate::domain::lifecycle::FieldError;
use crate::domain::lifecycle::{restarts, validate};
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
        let free = held::by_itself(request, &old).or_else(|| self.frees(request, &old));
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
            return grace::verdict(&appeal, &old, Claimed::Delete).await;
        }
        if !old.is_available() {
            return match appeal.let_go(&old).await {
                Ok(leave) => leave.audit(Verdict::allow().audit("free", "unavailable"), &appeal),
                Err(refused) => refused.verdict(&old.metadata.name, (self.0.now)()),
            };
        }
        self.claim(&appeal, self.0.disruption(&old, Claimed::Delete))
            .await
    }

    fn appeal<'a>(
        &'a self,
        request: &'a Request,
        carrier: &'a Pod,
        deadline: Instant,
    ) -> Appeal<'a> {
        Appeal {
            context: &self.0,
            request,
            carrier,
            dry_run: request.dry_run,
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
            if old.is_available() {
                let disruption = self.0.disruption(&old, Claimed::Leave);
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

    async fn claim(&self, appeal: &Appeal<'_>, disruption: Disruption) -> Verdict {
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

    /// Why the budget of no rule holds the request, as far as the review tells. What the caches do not know proves nothing:
    /// a rule may have been made a moment ago, or have come back with a restore of etcd.
    fn frees(&self, request: &Request, old: &Pod) -> Option<&'static str> {
        let deletes = request.operation == Operation::Delete;
        if deletes && grace::is_due(self.0.settings.grace_delete, old) {
            return None;
        }
        let lets_go = !deletes || is_operated(old);
        if !old.is_available() && !self.ends(request, old) && lets_go {
            return Some("unavailable");
        }
        (!self.disrupts(request, old)).then_some("no-disruption")
    }

    /// Whether the request can disturb an available Pod at all.
    fn disrupts(&self, request: &Request, old: &Pod) -> bool {
        if request.operation == Operation::Delete {
            return true;
        }
        let Ok(new) = parse(request, request.object.as_deref()) else {
            return true;
        };
        writes::may_disrupt(&self.0, old, &new) || old.metadata.labels != new.metadata.labels
    }

    /// Whether the request is an UPDATE that may end or restart the Pod.
    fn ends(&self, request: &Request, old: &Pod) -> bool {
        let new = parse(request, request.object.as_deref());
        new.is_ok_and(|new| writes::may_disrupt(&self.0, old, &new))
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
    use crate::cluster::index::{NamespaceFacts, Synced};

    /// The verdict without a look at anything on the deletion of a Pod with this status, where the caches know its namespace
    /// as going, and no rule.
    fn fallback(control: &str, status: Value) -> Verdict {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let context = Context::at_epoch(Client::new(service, "default"));
        context.index.mark(Synced::everything);
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
}
