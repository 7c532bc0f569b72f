//! Holds what would break a rule: deletions, in-place changes of Pods that serve, and label edits that would dodge it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{invalid, parse};
use crate::admission::appeal::Appeal;
use crate::admission::context::Context;
use crate::admission::review::{Handler, Operation, Request, Verdict};
use crate::admission::{denial, gate, grace, held};
use crate::api::keys::{self, Family};
use crate::domain::grace::is_operated;
use crate::domain::inplace::{self, Change};
use crate::domain::lifecycle::FieldError;
use crate::domain::lifecycle::validate;
use crate::domain::pod::Pod;
use crate::ledger::commit::{Denied, Disruption};
use crate::ledger::protocol::Operation as Claimed;

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
        let free = held::never(request, &old, &self.0.index).or_else(|| self.frees(request, &old));
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
        if let Some(reason) = held::never(request, &old, &self.0.index) {
            return Verdict::allow().audit("free", reason);
        }
        let appeal = self.appeal(request, &old, deadline);
        if grace::is_due(self.0.settings.grace_delete, &old) {
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
        if let Some(reason) = held::never(request, &old, &self.0.index) {
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
        if let Some(rule) = left.first() {
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
                if let Err(denied) = claimed {
                    return self.held(&old, &denied);
                }
            }
        }
        match restart_of(&old, &new) {
            Some(change) => {
                let mut disruption = self.0.disruption(&old, Claimed::InPlace);
                disruption.detail.target = Some(change.target);
                disruption.detail.containers = change.containers;
                let appeal = self.appeal(request, &new, deadline);
                self.claim(&appeal, disruption).await
            }
            None => Verdict::allow(),
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

    /// Why the budget of no rule holds the request, as far as can be told without I/O.
    fn frees(&self, request: &Request, old: &Pod) -> Option<&'static str> {
        let index = &self.0.index;
        let deletes = request.operation == Operation::Delete;
        if deletes && grace::is_due(self.0.settings.grace_delete, old) {
            return None;
        }
        let lets_go = !deletes
            || is_operated(old)
            || index.synced().all() && gate::strict(index, old).is_empty();
        if !old.is_available() && restart(request, old).is_none() && lets_go {
            return Some("unavailable");
        }
        if !self.disrupts(request, old) {
            return Some("no-disruption");
        }
        (index.synced().all() && index.rules_of(old).is_empty()).then_some("no-rule")
    }

    /// Whether the request can disturb an available Pod at all.
    fn disrupts(&self, request: &Request, old: &Pod) -> bool {
        if request.operation == Operation::Delete {
            return true;
        }
        let Ok(new) = parse(request, request.object.as_deref()) else {
            return true;
        };
        restart_of(old, &new).is_some() || old.metadata.labels != new.metadata.labels
    }
}

/// The restart that an in-place change brings upon a Pod on traffic. One that is just not Ready is on traffic all the
/// same: it may recover before the kubelet gets to the restart. One that a lifecycle has taken off traffic, or that this
/// same write takes off, stays off until the lifecycle ends.
fn restart_of(old: &Pod, new: &Pod) -> Option<Change> {
    let on_traffic = |pod: &Pod| pod.label(keys::SERVICE_AVAILABLE).is_some();
    inplace::change(old, new).filter(|_| on_traffic(old) && on_traffic(new))
}

/// As [`restart_of`], for a request as it is.
fn restart(request: &Request, old: &Pod) -> Option<Change> {
    let new = parse(request, request.object.as_deref()).ok()?;
    restart_of(old, &new)
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
    use serde_json::json;

    use super::*;

    fn pod(image: &str, on_traffic: bool, ready: bool) -> Pod {
        let labels = if on_traffic {
            json!({ keys::SERVICE_AVAILABLE: "true" })
        } else {
            json!({})
        };
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "app", "image": image }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[test]
    fn a_restart_is_held_for_pods_on_traffic_even_while_they_are_not_ready() {
        for ready in [true, false] {
            assert!(
                restart_of(&pod("a:1", true, ready), &pod("a:2", true, ready)).is_some(),
                "ready: {ready}"
            );
        }
        assert!(restart_of(&pod("a:1", true, true), &pod("a:1", true, true)).is_none());
    }

    #[test]
    fn a_restart_off_traffic_is_free() {
        assert!(restart_of(&pod("a:1", false, true), &pod("a:2", false, true)).is_none());
        assert!(restart_of(&pod("a:1", true, true), &pod("a:2", false, true)).is_none());
    }
}
