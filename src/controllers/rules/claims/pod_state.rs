//! Reads the Pod of a claim from the cache, or live if the cache does not contain enough of the Pod.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::super::super::ControllerContext;
use super::super::super::api_calls::API_CALL_TIMEOUT;
use super::ClaimRef;
use super::deadlines::ClaimDeadlines;
use crate::api_request;
use crate::cluster::index::IndexState;
use crate::cluster::pod_requests;
use crate::domain::inplace;
use crate::domain::ownership::uid_token;
use crate::domain::pod::Pod;
use crate::ledger::evidence::{ClaimedPodState, LAPSE_MARGIN, is_claim_lapsed, is_conditional};
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::{ClaimDetail, LedgerStore as _};

/// What is known of the Pod of a claim.
pub struct ClaimPodObservation {
    /// The state of the Pod; `None` if nothing proves the effect of the operation.
    pub pod_state: Option<ClaimedPodState>,
    /// Position of the cache.
    pub position: u64,
    /// Whether the cache contains the Pod.
    pub is_known: bool,
}

/// Reads the Pod of a claim from the cache, and live if the cache does not contain enough of it.
pub async fn observe_claim_pod(
    context: &Arc<ControllerContext>,
    deadlines: &ClaimDeadlines,
    claimed: ClaimRef<'_>,
) -> ClaimPodObservation {
    let (cached_state, position, stub_version, is_known) = {
        let state = context.index.read_state();
        let cached = state.pod(&claimed.rule.namespace, claimed.pod);
        let stub = cached.filter(|cached| !cached.is_readable());
        (
            cached_pod_state(&state, claimed),
            state.position,
            stub.map(|stub| stub.metadata.resource_version),
            cached.is_some(),
        )
    };
    let pod_state = match (cached_state, stub_version) {
        (None, Some(version)) => {
            match deadlines.is_read_due(claimed.key(), version, Instant::now()) {
                true => {
                    let live = read_claim_pod(context, claimed).await.flatten();
                    live.map(|live| pod_state(&live, claimed))
                }
                false => None,
            }
        }
        (Some(gone @ ClaimedPodState::Gone { .. }), _) if !is_conditional(claimed.operation) => {
            confirm_gone(context, claimed, gone).await
        }
        (cached_state, _) => cached_state,
    };
    ClaimPodObservation {
        pod_state,
        position,
        is_known,
    }
}

/// The state of the Pod of a claim in the cache. `None` if the cache is older than the claim, or if it does not contain
/// the fields that prove the effect of the operation.
fn cached_pod_state(state: &IndexState, claimed: ClaimRef<'_>) -> Option<ClaimedPodState> {
    match state.pod(&claimed.rule.namespace, claimed.pod) {
        Some(pod) if pod.is_readable() => Some(pod_state(pod, claimed)),
        Some(stub) => stub_state(stub, claimed.operation),
        None => (state.last_event > claimed.claim.at).then_some(ClaimedPodState::Gone {
            version: state.last_event,
        }),
    }
}

/// The state of a Pod that is too large to be cached, from its metadata. The metadata prove that the Pod ended. They
/// also suffice for operations that are conditional on the resourceVersion, because a newer version is enough evidence.
/// Such a Pod counts as not available, with or without a claim.
fn stub_state(pod: &Pod, operation: ClaimOperation) -> Option<ClaimedPodState> {
    let terminating = pod.is_terminating();
    (terminating || is_conditional(operation)).then_some(ClaimedPodState::Seen {
        version: pod.metadata.resource_version,
        terminating,
        available: false,
        applied: false,
        restart: inplace::RestartProgress::Awaited,
    })
}

fn pod_state(pod: &Pod, claimed: ClaimRef<'_>) -> ClaimedPodState {
    let detail = &claimed.claim.detail;
    ClaimedPodState::Seen {
        version: pod.metadata.resource_version,
        terminating: pod.is_terminating() || pod.is_finished(),
        available: pod.is_available(),
        applied: is_applied(pod, claimed.operation, detail),
        restart: inplace::restart_progress_of(pod, &detail.containers),
    }
}

/// Whether the Pod contains the change for which its claim was taken.
fn is_applied(pod: &Pod, operation: ClaimOperation, detail: &ClaimDetail) -> bool {
    let Some(target) = detail.target.as_deref() else {
        return false;
    };
    match operation {
        // If the change has replaced an earlier resize, the change need not be visible: the resize may still take
        // effect.
        ClaimOperation::InPlace => {
            let replaced_resize = detail.containers.iter().any(|c| c.by_resources);
            replaced_resize || inplace::is_spec_applied(pod, target)
        }
        // If the target can't be parsed, it may be any deadline.
        ClaimOperation::Deadline => {
            let latest = target.parse().unwrap_or(i64::MAX);
            let deadline = pod.spec.active_deadline_seconds;
            deadline.is_some_and(|seconds| seconds <= latest)
        }
        // If no controller is set, the target is another owner, because the garbage collector checks all owners.
        ClaimOperation::Reown => {
            let mut owners = pod.metadata.owner_references.iter();
            owners.any(|owner| {
                target
                    .split(' ')
                    .any(|token| token == uid_token(&owner.uid))
            })
        }
        _ => false,
    }
}

/// Reads a Pod live that has left the cache. The Pod may only have lost its control label, and may get it back while an
/// eviction or a restart is still on its way. Returns `None` if the Pod can't be read now.
async fn confirm_gone(
    context: &Arc<ControllerContext>,
    claimed: ClaimRef<'_>,
    gone: ClaimedPodState,
) -> Option<ClaimedPodState> {
    let live = read_claim_pod(context, claimed).await?;
    Some(live.map_or(gone, |live| pod_state(&live, claimed)))
}

/// Confirms that the Pod of a claim does not exist, and returns the present position of the Pods; a deleted Pod never
/// comes back. `unknown_for` says how long the cache has not contained the Pod. Usually the cache itself proves the
/// end, by an event that is newer than the claim. No such event comes if the Pod never existed, or if no Pod has
/// reached the resourceVersion of the claim.
pub async fn confirmed_gone_at(
    context: &Arc<ControllerContext>,
    claimed: ClaimRef<'_>,
    unknown_for: Option<Duration>,
) -> Option<u64> {
    unknown_for.filter(|unknown| *unknown >= LAPSE_MARGIN)?;
    let live = read_claim_pod(context, claimed).await?;
    if live.is_some() {
        return None;
    }
    // The position is read after the Pod. The end of the Pod is before this position, so every cache at this position
    // has seen the end.
    let present = context
        .ledgers
        .store()
        .read_present_position(&claimed.rule.namespace);
    let present = tokio::time::timeout(API_CALL_TIMEOUT, present).await;
    let present = present.ok()?.ok()?;
    info!(rule = %claimed.rule.name, pod = %claimed.claim.detail.pod_name, "the Pod of a claim does not exist");
    Some(present)
}

/// Confirms by a live read that the claim had no effect, and returns the resourceVersion of the Pod.
pub async fn confirmed_lapsed_at(
    context: &Arc<ControllerContext>,
    claimed: ClaimRef<'_>,
) -> Option<u64> {
    let live = read_claim_pod(context, claimed).await??; // if the Pod is gone, the cache will show its end
    let operation = claimed.operation;
    let has_lapsed = is_claim_lapsed(operation, pod_state(&live, claimed))
        || (operation == ClaimOperation::Reown && has_controller(context, &live));
    has_lapsed.then_some(live.metadata.resource_version)
}

/// Whether the Pod's controller exists. If it does, the garbage collector does not delete the Pod.
fn has_controller(context: &ControllerContext, pod: &Pod) -> bool {
    let state = context.index.read_state();
    let namespace = state.namespace(&pod.metadata.namespace);
    let owner = pod.controller();
    namespace
        .zip(owner)
        .is_some_and(|(namespace, owner)| namespace.has_owner(owner))
}

/// Reads the Pod of a claim from the API server. `Some(None)` means that the Pod is gone, `None` that the read failed.
async fn read_claim_pod(
    context: &Arc<ControllerContext>,
    claimed: ClaimRef<'_>,
) -> Option<Option<Pod>> {
    let name = &claimed.claim.detail.pod_name;
    let read = pod_requests::get_pod(&context.client, &claimed.rule.namespace, name);
    let live = api_request::within(API_CALL_TIMEOUT, read).await;
    let live = live.inspect_err(|failure| {
        warn!(pod = %name, error = failure.text(), "the Pod of a claim could not be read; the claim stays until a read succeeds");
    });
    Some(
        live.ok()?
            .filter(|live| *live.metadata.uid == **claimed.pod),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use testbed::api::FakeApi;

    use super::super::tests::claim;
    use super::*;
    use crate::ledger::evidence::release_evidence;
    use crate::ledger::store::RuleKey;

    /// The API server accepts any non-empty text as the UID of an owner.
    #[test]
    fn owner_whose_uid_has_spaces_is_found_on_its_pod() {
        let owned = |uid: &str| -> Pod {
            let owner = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "name": "a", "uid": uid, "controller": true });
            serde_json::from_value(
                json!({ "metadata": { "uid": "p", "ownerReferences": [owner] } }),
            )
            .unwrap()
        };
        let bare: Pod = serde_json::from_value(json!({ "metadata": { "uid": "p" } })).unwrap();
        let uids = ["x y", "x", "y", "%20", "x%20y", " ", "a b c d e f g h i"];
        for uid in uids {
            let new = owned(uid);
            let change = crate::domain::ownership::owner_change(&bare, &new).unwrap();
            let earlier = ClaimDetail {
                target: Some("earlier".into()),
                ..claim(1, 1).detail
            };
            let detail = ClaimDetail {
                target: Some(change.new_controller_token().into_owned()),
                ..claim(1, 1).detail
            };
            let detail = detail.merge_earlier_detail(Some(&earlier), ClaimOperation::Reown, false);
            for other in uids {
                let is_applied = is_applied(&owned(other), ClaimOperation::Reown, &detail);
                assert_eq!(is_applied, other == uid, "{other} for {uid}");
            }
        }
    }

    /// A Pod that is too large for the cache, as the cache contains it.
    fn stub(metadata: Value) -> Pod {
        let mut base =
            json!({ "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "6" });
        json_patch::merge(&mut base, &metadata);
        serde_json::from_value(json!({ "metadata": base })).unwrap()
    }

    #[test]
    fn metadata_suffices_to_release_conditional_or_ended_claims() {
        let released = |pod: &Pod, operation| {
            stub_state(pod, operation).and_then(|state| release_evidence(operation, 5, state))
        };
        let (living, terminating) = (
            stub(json!({})),
            stub(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })),
        );
        for operation in ClaimOperation::ALL {
            let conditional = is_conditional(operation);
            assert_eq!(released(&living, operation), conditional.then_some(6));
            assert_eq!(released(&terminating, operation), Some(6), "{operation:?}");
        }
        let same = stub(json!({ "resourceVersion": "5" }));
        assert_eq!(released(&same, ClaimOperation::Delete), None);
    }

    /// How many claims stay after one check, if the Pod is too large for the cache and the API server returns `live`.
    async fn count_remaining_claims(operation: &str, detail: Value, live: Value) -> usize {
        let context = context_with_live_pod(live);
        let mut claim = json!({
            "podName": "web-1", "podUID": "web-1", "operation": operation, "resourceVersion": "5",
            "attempt": 1, "since": Timestamp::UNIX_EPOCH, "until": Timestamp::UNIX_EPOCH,
        });
        json_patch::merge(&mut claim, &detail);
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "5", "generation": 1 },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            "status": { "ledger": { "claims": [claim], "watermark": "5", "attempts": 1 } },
        });
        context
            .index
            .apply_rule(serde_json::from_value(rule).unwrap());
        context.index.apply_pod(stub(json!({})));
        let key = RuleKey {
            namespace: "n".into(),
            name: "web".into(),
            uid: "rule".into(),
        };
        let (position, claims) = {
            let state = context.index.read_state();
            let entry = state.rule("n", "web").unwrap();
            (state.position, entry.snapshot.claims.claims.clone())
        };
        assert_eq!((position, claims.len()), (6, 1));
        let deadlines = ClaimDeadlines::default();
        let mut remaining = 0;
        for ((pod, operation), claim) in &claims {
            let claimed = ClaimRef {
                rule: &key,
                pod,
                operation: *operation,
                claim,
            };
            let observation = observe_claim_pod(&context, &deadlines, claimed).await;
            let based_on = observation
                .pod_state
                .and_then(|state| release_evidence(*operation, claim.at, state));
            remaining += usize::from(based_on.is_none());
        }
        remaining
    }

    #[tokio::test]
    async fn in_place_claim_of_large_pod_needs_live_read() {
        let pod = |image: &str, seconds: u64| {
            json!({
                "metadata": { "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "7" },
                "spec": { "containers": [{ "name": "app", "image": image }], "activeDeadlineSeconds": seconds },
            })
        };
        let target = json!({ "target": "60" });
        assert_eq!(
            count_remaining_claims("Deadline", target.clone(), pod("a", 60)).await,
            1
        );
        assert_eq!(
            count_remaining_claims("Deadline", target, pod("a", 90)).await,
            0
        );
        assert_eq!(
            count_remaining_claims("Delete", json!({}), json!(null)).await,
            0
        );
        assert_eq!(
            count_remaining_claims("Evict", json!({}), pod("a", 60)).await,
            1
        );
    }

    /// A context whose API server stores this Pod.
    fn context_with_live_pod(live: Value) -> Arc<ControllerContext> {
        let api = FakeApi::default();
        api.put_unchanged("/api/v1/namespaces/n/pods/web-1", live);
        ControllerContext::at_epoch(api.client())
    }
}
