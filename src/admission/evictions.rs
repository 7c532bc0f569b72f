//! `pods/eviction`: claim here or never, for the delete behind an eviction passes no admission.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use json_patch::Patch;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::appeal::{Appeal, Refused};
use super::context::Context;
use super::review::{Handler, Request, Verdict};
use super::{denial, gate, grace, held};
use crate::cluster::pods;
use crate::domain::pod::Pod;
use crate::ledger::commit::Why;
use crate::ledger::protocol::Operation;

/// For the live read, so that a denial is still in time when the API server does not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides evictions.
pub struct Evictions(pub Arc<Context>);

/// As much of policy/v1 and v1beta1 Eviction as the decision needs.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Eviction {
    delete_options: Option<DeleteOptions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteOptions {
    dry_run: Option<Vec<String>>,
    preconditions: Option<Preconditions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

#[async_trait]
impl Handler for Evictions {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let context = &self.0;
        let eviction: Eviction = match request
            .object
            .as_ref()
            .map(|raw| serde_json::from_str(raw.get()))
        {
            Some(Ok(eviction)) => eviction,
            Some(Err(e)) => {
                return Verdict::deny(422, "Invalid", format!("the Eviction can't be read: {e}"));
            }
            None => return Verdict::deny(400, "BadRequest", "the review carries no Eviction"),
        };
        let pod = match self.live(request, deadline).await {
            Ok(Some(pod)) => Arc::new(pod),
            Ok(None) => return Verdict::allow().audit("free", "pod-not-found"), // the eviction itself says 404
            Err(why) => return self.unreadable(request, &why),
        };
        if let Some(reason) = held::never(request, &pod, &context.index) {
            return Verdict::allow().audit("free", reason);
        }
        // kubectl drain --dry-run=server says so in the body.
        let options = eviction.delete_options.as_ref();
        let in_body = options
            .and_then(|o| o.dry_run.as_ref())
            .is_some_and(|d| d.iter().any(|d| d == "All"));
        let dry_run = request.dry_run || in_body;
        let appeal = Appeal {
            context,
            request,
            carrier: &pod,
            dry_run,
            deadline,
        };
        if grace::is_due(context.settings.grace_delete, &pod) {
            return grace::verdict(&appeal, &pod, Operation::Evict).await;
        }
        let refused = |refused: Refused| refused.verdict(&pod.metadata.name, (context.now)());
        let disruption = context.disruption(&pod, Operation::Evict);
        if pod.is_available() {
            return match appeal.claim(disruption).await {
                Ok(leave) if leave.claims.is_empty() => leave.audit(Verdict::allow(), &appeal),
                Ok(leave) => leave.audit(Verdict::allow().audit("claimed", "eviction"), &appeal),
                Err(denied) => refused(denied),
            };
        }
        let leave = match appeal.let_go(&pod).await {
            Ok(leave) => leave,
            Err(denied) => return refused(denied),
        };
        let verdict = match gate::claim(context, &disruption, dry_run, deadline).await {
            Ok(claims) if claims.is_empty() => Verdict::allow(),
            Ok(_) => Verdict::allow().audit("claimed", "eviction"),
            Err(denied) if matches!(denied.why, Why::Broken(_)) => match appeal
                .claim(disruption)
                .await
            {
                Ok(leave) => leave.audit(Verdict::allow().audit("claimed", "eviction"), &appeal),
                Err(denied) => return refused(denied),
            },
            // A Pod that is down takes nothing from the budget by going, but it may recover before the delete that no
            // webhook sees: let the delete happen only to the very version that was judged.
            Err(_) => conditional(&pod, options),
        };
        leave.audit(verdict, &appeal)
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        // Only the cache can tell here, and a cached Pod proves nothing good; but one that is not managed is free.
        let state = self.0.index.read();
        let managed = state
            .namespace(&request.namespace)
            .is_some_and(|n| n.pods.values().any(|p| p.metadata.name == request.name));
        if self.0.index.synced().all() && !managed {
            return Verdict::allow().audit("free", "not-managed");
        }
        let (code, reason) = denial::HELD;
        Verdict::deny(
            code,
            reason,
            format!(
                "the eviction of Pod {} is held: {why}; try again in a moment",
                request.name
            ),
        )
    }
}

impl Evictions {
    async fn live(&self, request: &Request, deadline: Instant) -> Result<Option<Pod>, String> {
        match timeout_at(
            deadline.min(Instant::now() + READ_TIMEOUT),
            pods::get(&self.0.client, &request.namespace, &request.name),
        )
        .await
        {
            Ok(Ok(pod)) => Ok(pod),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err("no answer in time".into()),
        }
    }

    fn unreadable(&self, request: &Request, why: &str) -> Verdict {
        self.fallback(request, &format!("the Pod can't be read ({why})"))
    }
}

/// Allows with preconditions on the version that was judged, kept where the caller set stricter ones.
fn conditional(pod: &Pod, options: Option<&DeleteOptions>) -> Verdict {
    let judged = pod.metadata.resource_version.to_string();
    let theirs = options.and_then(|o| o.preconditions.as_ref());
    let conflicts = theirs.is_some_and(|p| {
        p.resource_version.as_ref().is_some_and(|v| *v != judged)
            || p.uid.as_ref().is_some_and(|u| *u != pod.metadata.uid)
    });
    if conflicts {
        let message = format!(
            "Pod {} is at resourceVersion {judged}, not what the preconditions name",
            pod.metadata.name
        );
        return Verdict::deny(409, "Conflict", message);
    }
    let preconditions = json!({ "uid": pod.metadata.uid, "resourceVersion": judged });
    let operation = match options {
        Some(_) => {
            json!([{ "op": "add", "path": "/deleteOptions/preconditions", "value": preconditions }])
        }
        None => {
            json!([{ "op": "add", "path": "/deleteOptions", "value": { "preconditions": preconditions } }])
        }
    };
    match serde_json::from_value::<Patch>(operation) {
        Ok(patch) => Verdict::allow()
            .with_patch(patch)
            .audit("free", "unavailable-at-this-version"),
        Err(e) => Verdict::deny(
            500,
            "InternalError",
            format!("the preconditions could not be written: {e}"),
        ),
    }
}
