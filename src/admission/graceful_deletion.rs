//! GraceDelete (contract 4.4). With the feature gate, a deletion or an eviction starts the lifecycle of the Pod. The
//! request is denied until the lifecycle has taken the Pod off traffic, and is admitted then.

use std::sync::Arc;

use super::bypass::{BypassCheck, LifecycleBypassError};
use super::context::AdmissionContext;
use super::denial;
use super::exempt::CONTROLLER_MANAGER;
use super::review::Verdict;
use crate::api_request::{self, ApiFailure};
use crate::cluster::{pod_requests, scale_in};
use crate::domain::deletion::DeletionOptions;
use crate::domain::grace_delete::{self, DeletionRequest};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::rules_to_pass;
use crate::ledger::protocol::ClaimOperation;

/// Maximum number of attempts to write the label on a Pod that changes all the time.
const MAX_MARK_WRITES: u32 = 5;
/// Maximum number of rules that a denial names: as many as may hold a Pod ([`super::overlap`]). Any of them may be the
/// one that holds the Pod.
const MAX_NAMED: usize = 16;

/// Whether a deletion has to take this Pod through its lifecycle first, and the lifecycle does not permit the deletion
/// yet.
pub fn is_lifecycle_due(enabled: bool, pod: &Pod) -> bool {
    enabled && grace_delete::has_lifecycle(pod) && !grace_delete::permits_deletion(pod)
}

/// Whether a deletion or an eviction has already started the lifecycle of the Pod.
pub fn is_lifecycle_running(enabled: bool, pod: &Pod) -> bool {
    enabled && grace_delete::is_deletion_requested(pod)
}

/// The verdict on a deletion or an eviction for which [`is_lifecycle_due`] is true. A bypass admits the request. Every
/// other request starts the lifecycle, by the label for which the controller of deletions waits. `options` are the
/// options of the request.
pub async fn decide_deletion(
    bypass: &BypassCheck<'_>,
    pod: &Arc<Pod>,
    operation: ClaimOperation,
    options: DeletionOptions,
) -> Verdict {
    let context = bypass.context;
    let name = &pod.metadata.name;
    let mut note = None;
    if bypass.is_requested() {
        match bypass.bypass_lifecycle(pod, operation).await {
            Ok(approval) => {
                let verdict = match approval.claims.is_empty() {
                    true => Verdict::allow(),
                    false => Verdict::allow().with_audit("claimed", operation.as_str()),
                };
                return approval.audit_bypass(verdict, bypass);
            }
            Err(LifecycleBypassError::Denied(refused)) => {
                return refused.to_verdict(name, (context.now)());
            }
            Err(LifecycleBypassError::NotPermitted(text)) => note = text,
        }
    }
    if !pod.is_available()
        && !grace_delete::is_deletion_requested(pod)
        && let Err(refused) = bypass.admit_unavailable(pod).await
    {
        return refused.to_verdict(name, (context.now)());
    }
    let scaled_in_by = scaling_in_owner(bypass, pod);
    if scaled_in_by.is_some()
        && let Some(refused) = refuse_excess_scale_in(bypass, pod)
    {
        return refused;
    }
    let asked = DeletionRequest {
        scaled_in_by,
        options,
    };
    let wanted = DeletionOptions::from_pod(pod).merge_later(&asked.options);
    let is_change =
        !grace_delete::is_deletion_requested(pod) || wanted != DeletionOptions::from_pod(pod);
    if is_change
        && !bypass.dry_run
        && let Some(refused) = dry_run_deletion(bypass, pod, operation, &wanted).await
    {
        return refused;
    }
    let pod = match mark_for_deletion(bypass, pod, &asked).await {
        Ok(Some(pod)) => pod,
        Ok(None) => return Verdict::allow().with_audit("free", "pod-not-found"), // the API server answers 404
        Err(why) => {
            let message = format!(
                "the deletion of Pod {name} through its lifecycle could not be begun: {why}; try again in a moment"
            );
            return Verdict::deny(
                denial::TOO_MANY_REQUESTS.0,
                denial::TOO_MANY_REQUESTS.1,
                message,
            )
            .with_audit("held", "lifecycle-not-begun");
        }
    };
    let mut text = grace_delete::deletion_denial(&pod);
    if let Some(rules) = describe_rules(context, &pod) {
        text = format!("{text}; {rules}");
    }
    if operation == ClaimOperation::Evict {
        text = format!("Pod {name} is being drained: {text}");
    }
    if let Some(note) = note {
        text = format!("{text}; {note}");
    }
    Verdict::deny(
        denial::TOO_MANY_REQUESTS.0,
        denial::TOO_MANY_REQUESTS.1,
        text,
    )
    .with_audit("held", "lifecycle-under-way")
}

/// The rules that the deletion of the Pod has to pass, or why they are not known. `None` if there is no such rule, or
/// if the deletion has passed them.
fn describe_rules(context: &AdmissionContext, pod: &Pod) -> Option<String> {
    if !grace_delete::awaits_rules(pod) {
        return None;
    }
    let index = &context.index;
    if !index.listed_kinds().has_decision_kinds() || !index.decision_watches.rules.is_trusted_now()
    {
        return Some(
            "it is not known which rules it has to pass before that, because this replica has not yet read all \
             PodTransitionRules"
                .to_owned(),
        );
    }
    let state = index.read_state();
    let objects = state.namespace(&pod.metadata.namespace)?.rules.values();
    let mut rules =
        objects.flat_map(|entry| rules_to_pass(&entry.snapshot.rules, Stage::PreCheck, pod));
    let mut names: Vec<_> = rules.by_ref().take(MAX_NAMED).collect();
    if rules.next().is_some() {
        names.push("more rules".to_owned());
    }
    (!names.is_empty()).then(|| format!("before that, it has to pass {}", names.join(", ")))
}

/// The UID of the ReplicaSet or ReplicationController that asks for the deletion of its Pod in order to scale in. If
/// all controllers share one user name, the number of Pods tells whether the owner asks.
fn scaling_in_owner(bypass: &BypassCheck<'_>, pod: &Pod) -> Option<String> {
    let owner = pod.controller()?;
    let own = match owner.kind.as_str() {
        "ReplicaSet" => "system:serviceaccount:kube-system:replicaset-controller",
        "ReplicationController" => "system:serviceaccount:kube-system:replication-controller",
        _ => return None,
    };
    let asks = match bypass.request.user_info.username.as_str() {
        CONTROLLER_MANAGER => {
            let state = bypass.context.index.read_state();
            let namespace_index = state.namespace(&pod.metadata.namespace)?;
            grace_delete::scale_in_replica_set(pod) == Some(&owner.uid)
                || namespace_index.max_surplus_pods(&owner.uid) > 0
        }
        user => user == own,
    };
    asks.then(|| owner.uid.clone())
}

/// Denies the deletion of a Pod for which its owner asks, if the lifecycle already takes as many other Pods as the
/// owner has too many. The owner retries, perhaps with another Pod, and each further Pod would go off traffic for
/// nothing.
fn refuse_excess_scale_in(bypass: &BypassCheck<'_>, pod: &Pod) -> Option<Verdict> {
    let owner = pod.controller()?;
    if grace_delete::is_deletion_requested(pod) {
        return None;
    }
    let state = bypass.context.index.read_state();
    let namespace_index = state.namespace(&pod.metadata.namespace)?;
    let others =
        scale_in::excess_choices(namespace_index, &owner.uid, pod, bypass.context.now_nanos())?;
    let message = format!(
        "Pod {} stays: {} {} deletes as many Pods as it has too many, and {others} others go through their lifecycle for that",
        pod.metadata.name, owner.kind, owner.name
    );
    let (code, reason) = denial::TOO_MANY_REQUESTS;
    Some(Verdict::deny(code, reason, message).with_audit("held", "others-are-chosen"))
}

/// Denies a deletion that a policy or another webhook would refuse after the lifecycle has taken the Pod off traffic.
/// The dry run has the user name of the server, which such a policy or webhook may check.
async fn dry_run_deletion(
    bypass: &BypassCheck<'_>,
    pod: &Pod,
    operation: ClaimOperation,
    options: &DeletionOptions,
) -> Option<Verdict> {
    let client = &bypass.context.client;
    let ask = async {
        pod_requests::dry_run_delete_pod(client, pod, options).await?;
        // Policies and webhooks for evictions are not called for a DELETE. They also see the eviction only after this
        // program has answered, so ask them by a dry-run eviction.
        match operation {
            ClaimOperation::Evict => pod_requests::dry_run_evict_pod(client, pod).await,
            _ => Ok(()),
        }
    };
    let name = &pod.metadata.name;
    match api_request::by(bypass.deadline, ask).await {
        Ok(()) => None,
        // The Pod with this UID is deleted. The request itself fails for the same reason.
        Err(ApiFailure::Answered(status)) if matches!(status.code, 404 | 409) => None,
        Err(ApiFailure::Answered(status)) if (400..500).contains(&status.code) => {
            let message = format!(
                "Pod {name} can't be deleted through its lifecycle: {}",
                status.message
            );
            let denied = Verdict::deny(status.code, "Forbidden", message);
            Some(denied.with_audit("held", "deletion-refused-by-others"))
        }
        Err(failure) => {
            let why = failure.text();
            let message = format!(
                "the API server did not say whether Pod {name} may be deleted: {why}; try again in a moment"
            );
            let (code, reason) = denial::TOO_MANY_REQUESTS;
            Some(Verdict::deny(code, reason, message).with_audit("held", "lifecycle-not-begun"))
        }
    }
}

/// Labels the Pod as to be deleted, if it is not labelled yet. Returns the Pod after the write; `None` if the Pod is
/// deleted.
async fn mark_for_deletion(
    bypass: &BypassCheck<'_>,
    pod: &Arc<Pod>,
    asked: &DeletionRequest,
) -> Result<Option<Arc<Pod>>, String> {
    let context = bypass.context;
    let mut pod = Arc::clone(pod);
    for _ in 0..MAX_MARK_WRITES {
        let metadata = grace_delete::deletion_request_metadata(&pod, asked, context.now_nanos());
        let Some(metadata) = metadata.filter(|_| !bypass.dry_run) else {
            return Ok(Some(pod));
        };
        let write = pod_requests::patch_metadata(&context.client, &pod, metadata);
        match api_request::by(bypass.deadline, write).await {
            Ok(written) => return Ok(Some(Arc::new(written))),
            Err(failure) if failure.code() == Some(404) => return Ok(None),
            Err(failure) if failure.code() == Some(409) => {}
            Err(failure) => return Err(failure.text()),
        }
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let read = pod_requests::get_pod(&context.client, namespace, name);
        let found = api_request::by(bypass.deadline, read).await;
        match found.map_err(|failure| failure.text())? {
            Some(found) if found.metadata.uid == pod.metadata.uid => pod = Arc::new(found),
            Some(_) => return Err("another Pod has taken its name".to_owned()),
            None => return Ok(None),
        }
    }
    Err("the Pod changes too often".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use http::Response;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::api::keys::{self, Family};

    /// A replica that has read these rule objects of namespace `shop`, each with one budget.
    fn context_with_rules(objects: &[&str]) -> AdmissionContext {
        let service = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let context = AdmissionContext::at_epoch(Client::new(service, "default"));
        for name in objects {
            let rule = json!({
                "metadata": { "namespace": "shop", "name": name, "uid": name },
                "spec": { "selector": {}, "rules": [
                    { "name": "availability", "availablePolicy": { "maxUnavailableValue": 1 } },
                ] },
            });
            context
                .index
                .apply_rule(serde_json::from_value(rule).unwrap());
        }
        context
    }

    fn pod(labels: &[String]) -> Pod {
        let mut pod: Pod =
            serde_json::from_value(json!({ "metadata": { "namespace": "shop", "name": "web-1" } }))
                .unwrap();
        let control = (keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
        pod.metadata.labels = labels.iter().map(|key| (key.clone(), "1".into())).collect();
        pod.metadata.labels.extend([control]);
        pod
    }

    #[tokio::test]
    async fn denial_names_the_rules_that_a_deletion_has_to_pass() {
        let describe = |objects: &[&str]| {
            let context = context_with_rules(objects);
            context.index.mark_all_listed();
            context.index.decision_watches.trust_for_a_year();
            describe_rules(&context, &pod(&[]))
        };
        assert_eq!(describe(&[]), None);
        assert_eq!(
            describe(&["a"]).unwrap(),
            "before that, it has to pass rule availability of PodTransitionRule a"
        );
        let names: Vec<_> = (b'a'..=b'q').map(|c| char::from(c).to_string()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let most = describe(&names[..16]).unwrap();
        assert!(most.ends_with("PodTransitionRule p"), "{most}");
        let more = describe(&names).unwrap();
        assert!(more.ends_with("PodTransitionRule p, more rules"), "{more}");
    }

    #[tokio::test]
    async fn denial_says_if_the_rules_are_not_known() {
        let context = context_with_rules(&["a"]);
        let text = describe_rules(&context, &pod(&[])).unwrap();
        assert!(text.starts_with("it is not known which rules"), "{text}");
    }

    #[tokio::test]
    async fn deletion_that_passed_its_rules_names_none() {
        let context = context_with_rules(&["a"]);
        let passed = pod(&[Family::Preparing.key(grace_delete::DELETION_ID)]);
        assert_eq!(describe_rules(&context, &passed), None);
    }
}
