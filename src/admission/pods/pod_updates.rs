//! Finds the disruptions of an UPDATE of a Pod beyond its labels: changes that restart containers or end the Pod. Each
//! needs a claim. docs/pod-writes.md lists every write, whether it is held, and the reason.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::admission::context::{AdmissionContext, MAX_OWNER_LOOKUPS};
use crate::cluster::presence::Presence;
use crate::domain::inplace::{self, InPlaceRestart};
use crate::domain::lifecycle::is_held_offline;
use crate::domain::lifecycle::restarts::PendingRestarts;
use crate::domain::ownership;
use crate::domain::pod::Pod;
use crate::ledger::commit::Disruption;
use crate::ledger::protocol::ClaimOperation;

/// The disruptions that an UPDATE brings; each needs a claim. Owners that are not in the cache are looked up until
/// `deadline`. A new owner that cannot be read counts as absent, an old owner as present.
pub async fn update_disruptions(
    context: &AdmissionContext,
    old: &Arc<Pod>,
    new: &Pod,
    deadline: Instant,
) -> Vec<Disruption> {
    let mut found = Vec::new();
    if let Some(change) = in_place_restart(context, old, new) {
        let mut disruption = context.new_disruption(old, ClaimOperation::InPlace);
        disruption.detail.target = Some(change.target);
        disruption.detail.containers = change.containers;
        let is_off = is_offline_throughout(old, new) && !old.is_available();
        if is_off || inplace::withdraws_deferred_resize(old, new) {
            // No budget holds this change. Either the rules have let the operation begin, and the claim only keeps its
            // place until the restart. Or the change withdraws a deferred resize for which the Pod already has a place.
            let rules = context.index.rules_covering_pod(old);
            disruption.bypassed_rules = rules.into_iter().map(|rule| rule.name).collect();
        }
        found.push(disruption);
    }
    if let Some(seconds) = lowered_deadline(old, new) {
        let mut disruption = context.new_disruption(old, ClaimOperation::Deadline);
        disruption.detail.target = Some(seconds.to_string());
        found.push(disruption);
    }
    if let Some(reowned) = ownership::owner_change(old, new) {
        let mut remaining_lookups = MAX_OWNER_LOOKUPS;
        // An unknown owner makes the write take a claim: as a new owner it counts as absent and does not keep the Pod.
        let lives = look_up_owners(context, new, deadline, &mut remaining_lookups).await
            == OwnerLookup::Exists;
        // A claim does not save a Pod from the Kubernetes garbage collector, but an owner that exists does.
        let saves = lives
            && look_up_owners(context, old, deadline, &mut remaining_lookups).await
                == OwnerLookup::NoneExists;
        if !saves && (reowned.other_controller || !lives) {
            let mut disruption = context.new_disruption(old, ClaimOperation::Reown);
            // The claim is held as long as the Pod carries the target. With an owner that exists, nothing more happens
            // to the Pod, so the claim ends with the next version of the Pod.
            disruption.detail.target =
                (!lives).then(|| reowned.new_controller_token().into_owned());
            found.push(disruption);
        }
    }
    found
}

/// Whether [`update_disruptions`] may find a disruption. This function reads nothing from the API server.
pub fn may_disrupt(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    may_end_pod(context, old, new) || ownership::owner_change(old, new).is_some()
}

/// Whether an UPDATE restarts a container or ends the Pod in a way that needs a claim.
fn may_end_pod(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    in_place_restart(context, old, new).is_some() || lowered_deadline(old, new).is_some()
}

/// The same as [`may_end_pod`], for a write by which the Pod comes under a budget. The restart record of a Pod that was
/// not managed does not count, because anybody could write it.
pub fn may_end_on_entry(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    may_end_pod(context, old, new)
        || !old.is_managed() && inplace::in_place_restart(old, new).is_some()
}

/// Whether an UPDATE may need a claim, by the review alone. It does not trust what the caches say of a Pod that is
/// down.
pub fn may_disrupt_by_itself(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    let restarts = inplace::in_place_restart(old, new)
        .is_some_and(|change| !old.is_broken() && !is_offline_until_restart(&change, old, new));
    restarts || may_disrupt(context, old, new)
}

/// The restart that an in-place change causes and that needs a claim.
///
/// The change needs no claim if a lifecycle keeps the Pod off traffic before and after the write, and the restart is
/// recorded on the Pod: the rules were asked when the lifecycle began, and the Pod does not come back before the
/// restart. (The claim for an earlier resize may end only by a restart, and the restart of this change would end that
/// claim too early. So this change waits for the restart of the resize.) The absence of the label `service-available`
/// is not enough, because a short outage, or anybody by hand, can remove it.
///
/// A [lost](is_lost) Pod needs no claim either. If it can come back by itself, the restart must be recorded, too.
fn in_place_restart(context: &AdmissionContext, old: &Pod, new: &Pod) -> Option<InPlaceRestart> {
    let change = inplace::in_place_restart(old, new)?;
    let recorded = PendingRestarts::from_pod(new).unwrap_or_default();
    let is_lost =
        || (old.is_broken() || recorded.covers_image_restarts(&change)) && is_lost(context, old);
    (!is_offline_until_restart(&change, old, new) && !is_lost()).then_some(change)
}

/// Whether a lifecycle keeps the Pod off traffic before and after a change, and until the restart that the change
/// causes.
fn is_offline_until_restart(change: &InPlaceRestart, old: &Pod, new: &Pod) -> bool {
    is_offline_throughout(old, new)
        && PendingRestarts::from_pod(new)
            .unwrap_or_default()
            .covers_restarts(change)
        && !inplace::is_resize_unobservable(old)
}

/// Whether a Pod is down and is not expected to come back by itself, except by the end of an operation.
pub fn is_lost(context: &AdmissionContext, pod: &Pod) -> bool {
    let may_end_with_the_write = is_held_offline(pod) && !pod.is_broken();
    !pod.is_available()
        && !may_end_with_the_write
        && !context.index.read_state().is_briefly_down(pod)
}

/// Whether a lifecycle keeps the Pod off traffic before and after the write.
fn is_offline_throughout(old: &Pod, new: &Pod) -> bool {
    is_held_offline(old) && is_held_offline(new)
}

/// The deadline that an UPDATE sets or lowers, in seconds after the start of the Pod. The API server lets nobody raise
/// or remove it. It needs a claim whatever the state of the Pod, because the Pod may be available when the deadline
/// passes.
fn lowered_deadline(old: &Pod, new: &Pod) -> Option<i64> {
    let seconds = new.spec.active_deadline_seconds?;
    let earlier = old.spec.active_deadline_seconds;
    earlier
        .is_none_or(|earlier| seconds < earlier)
        .then_some(seconds)
}

/// The result of looking up the owners of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerLookup {
    /// At least one owner exists.
    Exists,
    /// No owner exists, or the Pod names no owner.
    NoneExists,
    /// No owner is known to exist, and at least one owner could not be read or was not looked up.
    Unknown,
}

/// Looks up the owners of a Pod. At most `left` owners are read, and `left` is reduced by their number.
async fn look_up_owners(
    context: &AdmissionContext,
    pod: &Pod,
    deadline: Instant,
    remaining_lookups: &mut usize,
) -> OwnerLookup {
    let namespace = &pod.metadata.namespace;
    let owners = &pod.metadata.owner_references;
    {
        let state = context.index.read_state();
        let namespace_index = state.namespace(namespace);
        if namespace_index
            .is_some_and(|namespace_index| owners.iter().any(|o| namespace_index.has_owner(o)))
        {
            return OwnerLookup::Exists;
        }
    }
    let may = (*remaining_lookups).min(owners.len());
    *remaining_lookups -= may;
    let look_up = async {
        let mut all_are_gone = may == owners.len();
        for owner in &owners[..may] {
            match context.object_lookup.look_up_owner(namespace, owner).await {
                Presence::Exists => return OwnerLookup::Exists,
                Presence::Gone | Presence::Leaving => {}
                Presence::Unknown(_) => {
                    all_are_gone &= !context.object_lookup.may_owner_exist(owner).await;
                }
            }
        }
        match all_are_gone {
            true => OwnerLookup::NoneExists,
            false => OwnerLookup::Unknown,
        }
    };
    timeout_at(deadline, look_up)
        .await
        .unwrap_or(OwnerLookup::Unknown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys::{self, Family};
    use crate::cluster::kind::WatchedKind;
    use crate::cluster::owner_sizes::Workload;
    use crate::domain::lifecycle::restarts;

    /// A context whose API server never answers.
    fn context() -> AdmissionContext {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            std::future::pending::<
                Result<http::Response<kube::client::Body>, std::convert::Infallible>,
            >()
            .await
        });
        AdmissionContext::at_epoch(kube::Client::new(service, "default"))
    }

    fn pod(image: &str, labels: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "web-1", "namespace": "shop", "labels": labels },
            "spec": { "containers": [{ "name": "app", "image": image }] },
            "status": status,
        }))
        .unwrap()
    }

    fn ready(ready: &str) -> Value {
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] })
    }

    fn on_traffic() -> Value {
        json!({ (keys::SERVICE_AVAILABLE): "1" })
    }

    fn in_operate() -> Value {
        let keys = [Family::Operating, Family::PreChecked, Family::Operate].map(|f| f.key("x"));
        keys.into_iter().map(|key| (key, json!("1"))).collect()
    }

    /// Whether an image change of a Pod in this state, together with these labels before and after, needs a claim.
    fn claims(labels: [&Value; 2], status: &Value) -> bool {
        let [before, after] = labels;
        let (old, mut new) = (pod("a:1", before, status), pod("a:2", after, status));
        // The mutating webhook records the restarts in the same way.
        if let Some(value) =
            restarts::restarts_after_write(&old, &new, &old, false, 0).annotation_value()
        {
            let annotations = &mut new.metadata.annotations;
            annotations.insert(keys::AWAITS_RESTART.to_owned(), value);
        }
        in_place_restart(&context(), &old, &new).is_some()
    }

    #[tokio::test]
    async fn image_change_of_serving_or_recovering_pod_needs_claim() {
        for is_ready in ["True", "False"] {
            for labels in [[&on_traffic(), &on_traffic()], [&json!({}), &json!({})]] {
                assert!(
                    claims(labels, &ready(is_ready)),
                    "{labels:?}, Ready {is_ready}"
                );
            }
        }
    }

    #[tokio::test]
    async fn image_and_removed_label_in_one_write_need_a_claim() {
        assert!(claims([&on_traffic(), &json!({})], &ready("True")));
    }

    #[tokio::test]
    async fn image_change_during_operate_passes() {
        assert!(!claims([&in_operate(), &in_operate()], &ready("False")));
    }

    #[tokio::test]
    async fn image_change_during_operate_without_record_needs_claim() {
        let (old, new) = ["a:1", "a:2"]
            .map(|image| pod(image, &in_operate(), &ready("False")))
            .into();
        assert!(in_place_restart(&context(), &old, &new).is_some());
    }

    #[tokio::test]
    async fn image_change_with_lifecycle_start_or_end_needs_claim() {
        assert!(claims([&on_traffic(), &in_operate()], &ready("True")));
        assert!(claims([&in_operate(), &json!({})], &ready("False")));
    }

    #[tokio::test]
    async fn image_change_of_broken_pod_passes() {
        let mut status = ready("False");
        status["containerStatuses"] =
            json!([{ "name": "app", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
        assert!(!claims([&on_traffic(), &on_traffic()], &status));
        assert!(!claims([&json!({}), &json!({})], &status));
    }

    /// A Pod with this deadline and this owner.
    fn pod_with(seconds: Option<i64>, owner: Option<&str>) -> Arc<Pod> {
        let mut pod = pod("a:1", &on_traffic(), &ready("True"));
        pod.spec.active_deadline_seconds = seconds;
        pod.metadata.owner_references = owner
            .map(|uid| crate::domain::pod::Owner {
                api_version: "apps/v1".to_owned(),
                kind: "ReplicaSet".to_owned(),
                name: uid.to_owned(),
                uid: uid.to_owned(),
                controller: true,
            })
            .into_iter()
            .collect();
        Arc::new(pod)
    }

    async fn found_disruptions(old: &Arc<Pod>, new: &Pod) -> Vec<(ClaimOperation, Option<String>)> {
        let soon = Instant::now() + std::time::Duration::from_secs(1);
        let found = update_disruptions(&context(), old, new, soon).await;
        found
            .into_iter()
            .map(|d| (d.operation, d.detail.target))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_set_or_lowered_needs_a_claim() {
        let deadline_disruption = vec![(ClaimOperation::Deadline, Some("1".to_owned()))];
        for earlier in [None, Some(2)] {
            assert_eq!(
                found_disruptions(&pod_with(earlier, None), &pod_with(Some(1), None)).await,
                deadline_disruption
            );
        }
        assert_eq!(
            found_disruptions(&pod_with(Some(1), None), &pod_with(Some(1), None)).await,
            []
        );
    }

    #[tokio::test(start_paused = true)]
    async fn owner_that_cannot_be_read_needs_a_claim() {
        let new = pod_with(None, Some("new"));
        for earlier in [None, Some("old")] {
            let found = found_disruptions(&pod_with(None, earlier), &new).await;
            assert_eq!(found, [(ClaimOperation::Reown, Some("new".to_owned()))]);
        }
        assert_eq!(
            found_disruptions(&pod_with(None, Some("old")), &pod_with(None, None)).await,
            []
        );
    }

    fn workload() -> Workload {
        Workload {
            kind: WatchedKind::ReplicaSet,
            name: "new".to_owned(),
            version: 1,
            replicas: Some(1),
            controller: None,
            selector: None,
            template_labels: None,
            template_labels_dropped: false,
            rolling: false,
            keeps_old: false,
            recreates: false,
            paused: false,
            created: None,
            pods_seen: 0,
            revision: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_adoption_by_known_workload_passes() {
        let context = context();
        context
            .index
            .set_workload("shop", "new".into(), Some(workload()));
        let soon = Instant::now() + std::time::Duration::from_secs(1);
        let new = pod_with(None, Some("new"));
        let adopted = update_disruptions(&context, &pod_with(None, None), &new, soon).await;
        assert!(adopted.is_empty());
        let other = Workload {
            name: "old".to_owned(),
            ..workload()
        };
        let old = pod_with(None, Some("old"));
        let unread = update_disruptions(&context, &old, &new, soon).await;
        assert_eq!(unread.len(), 1, "whether its owner is gone is not known");
        context
            .index
            .set_workload("shop", "old".into(), Some(other));
        let moved = update_disruptions(&context, &old, &new, soon).await;
        assert_eq!(moved[0].operation, ClaimOperation::Reown);
        assert_eq!(moved[0].detail.target, None);
    }

    /// A context whose API server serves the kind `Thing`, has the objects named in `here`, and counts its requests.
    fn counting_context(here: &'static [&'static str]) -> (AdmissionContext, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let path = request.uri().path();
            let name = path.rsplit('/').next().unwrap();
            let (code, answer) = match path {
                "/api" | "/apis" => {
                    let thing = json!({
                        "resource": "things", "responseKind": { "kind": "Thing" }, "scope": "Namespaced", "verbs": ["get"],
                    });
                    let versions = json!([{ "version": "v1", "resources": [thing] }]);
                    let group =
                        json!({ "metadata": { "name": "example.com" }, "versions": versions });
                    let items = if path == "/apis" {
                        json!([group])
                    } else {
                        json!([])
                    };
                    let kind = "APIGroupDiscoveryList";
                    let list = json!({ "kind": kind, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items });
                    (200, list)
                }
                _ if here.contains(&name) => {
                    let metadata = json!({ "name": name, "namespace": "shop", "uid": name });
                    let kind = "PartialObjectMetadata";
                    (
                        200,
                        json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata }),
                    )
                }
                _ => {
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                        "message": "no", "details": { "name": name, "group": "example.com", "kind": "things" },
                    });
                    (404, status)
                }
            };
            let body = Body::from(answer.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body);
            async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
        });
        let client = kube::Client::new(service, "default");
        (AdmissionContext::at_epoch(client), calls)
    }

    /// A Pod with owners of these names. The first owner is the controller, and each has its name as its UID.
    fn pod_with_owners(kind: &str, names: impl IntoIterator<Item = String>) -> Arc<Pod> {
        let mut pod = pod("a:1", &on_traffic(), &ready("True"));
        let owners = names.into_iter().enumerate();
        pod.metadata.owner_references = owners
            .map(|(n, name)| crate::domain::pod::Owner {
                api_version: "example.com/v1".to_owned(),
                kind: kind.to_owned(),
                uid: name.clone(),
                name,
                controller: n == 0,
            })
            .collect();
        Arc::new(pod)
    }

    /// The number of requests that an UPDATE sends, and the target of the claim that it needs.
    async fn update_cost(
        here: &'static [&'static str],
        old: &Arc<Pod>,
        new: &Pod,
    ) -> (usize, Option<Option<String>>) {
        let (context, calls) = counting_context(here);
        let soon = Instant::now() + std::time::Duration::from_secs(1);
        let found = update_disruptions(&context, old, new, soon).await;
        let target = found.into_iter().next().map(|d| d.detail.target);
        (calls.load(Ordering::Relaxed), target)
    }

    fn names(of: &str, count: usize) -> impl Iterator<Item = String> {
        (0..count).map(move |n| format!("{of}-{n}"))
    }

    #[tokio::test(start_paused = true)]
    async fn thousands_of_owners_cost_few_calls() {
        let bare = pod_with_owners("Thing", []);
        let most = 10;
        let replaced = Some(Some("new-0".to_owned()));
        for kind in ["Thing", "Invented"] {
            let new = pod_with_owners(kind, names("new", 4_000));
            let (calls, target) = update_cost(&[], &bare, &new).await;
            assert!(calls <= most, "{kind}: {calls}");
            assert_eq!(target, replaced, "{kind}");
        }
        let (old, new) = (names("old", 4_000), names("new", 4_000));
        let (old, new) = (pod_with_owners("Thing", old), pod_with_owners("Thing", new));
        let (calls, target) = update_cost(&["new-3"], &old, &new).await;
        assert!(calls <= most, "{calls}");
        assert_eq!(
            target,
            Some(None),
            "an old owner that is not looked up exists"
        );
        let (_, target) = update_cost(&["new-8"], &old, &new).await;
        assert_eq!(
            target, replaced,
            "a new owner that is not looked up does not exist"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn owner_that_was_looked_up_decides() {
        let [bare, old, new] =
            [("", 0), ("old", 1), ("new", 1)].map(|(of, n)| pod_with_owners("Thing", names(of, n)));
        assert_eq!(update_cost(&["new-0"], &bare, &new).await, (3, None));
        assert_eq!(update_cost(&["new-0"], &old, &new).await, (4, None));
        assert_eq!(
            update_cost(&["new-0", "old-0"], &old, &new).await,
            (4, Some(None))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn owner_is_gone_if_group_unserved_not_version_unserved() {
        let new = pod_with_owners("Thing", names("new", 1));
        for (api_version, target) in [
            ("none.test/v1", None),
            ("example.com/v0", Some(None)),
            ("v0", Some(None)),
        ] {
            let mut old = Pod::clone(&pod_with_owners("Thing", names("old", 1)));
            old.metadata.owner_references[0].api_version = api_version.to_owned();
            let (_, found) = update_cost(&["new-0"], &Arc::new(old), &new).await;
            assert_eq!(found, target, "{api_version}");
        }
    }
}
