//! Finds Pods that the readiness gate of Operating keeps off traffic, and templates whose new Pods are never Ready after
//! an uninstallation, because no controller sets the condition of the gate any more.

use std::fmt::Debug;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, PodSpec, ReplicationController};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::api::keys;
use crate::cli::install::request::retry_optional_request;

const PAGE_LIMIT: u32 = 500;
/// Largest number of names in a warning.
const MAX_NAMED_OBJECTS: usize = 5;

/// The objects of one warning, some of them by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct LeftoverObjects {
    /// `namespace/name`, at most [`MAX_NAMED_OBJECTS`].
    names: Vec<String>,
    /// Number of all objects.
    count: usize,
}

/// Warnings for the user before the first object is removed, each one sentence: Pods that are off traffic, and
/// templates whose new Pods never become Ready.
pub async fn leftover_warnings(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut pods = LeftoverObjects::default();
    let everything = ListParams::default();
    for_each_listed::<Pod>(client, "pods", everything, |pod| {
        pods.record_object(pod, is_off_traffic(pod))
    })
    .await?;

    let mut owners = LeftoverObjects::default();
    let all = ListParams::default;
    for_each_listed::<Deployment>(client, "deployments", all(), |owner| {
        let spec = owner.spec.as_ref().and_then(|s| s.template.spec.as_ref());
        owners.record_object(owner, has_readiness_gate(spec));
    })
    .await?;
    for_each_listed::<StatefulSet>(client, "statefulsets", all(), |owner| {
        let template = owner.spec.as_ref().map(|spec| &spec.template);
        owners.record_object(
            owner,
            has_readiness_gate(template.and_then(|t| t.spec.as_ref())),
        );
    })
    .await?;
    for_each_listed::<DaemonSet>(client, "daemonsets", all(), |owner| {
        let spec = owner.spec.as_ref().and_then(|s| s.template.spec.as_ref());
        owners.record_object(owner, has_readiness_gate(spec));
    })
    .await?;
    for_each_listed::<ReplicaSet>(client, "replicasets", all(), |owner| {
        let template = owner.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let mut controllers = owner.owner_references().iter();
        let is_own = !controllers.any(|c| c.kind == "Deployment"); // the Deployment has its own warning
        owners.record_object(
            owner,
            is_own && has_readiness_gate(template.and_then(|t| t.spec.as_ref())),
        );
    })
    .await?;
    for_each_listed::<ReplicationController>(client, "replicationcontrollers", all(), |owner| {
        let template = owner.spec.as_ref().and_then(|spec| spec.template.as_ref());
        owners.record_object(
            owner,
            has_readiness_gate(template.and_then(|t| t.spec.as_ref())),
        );
    })
    .await?;
    for_each_listed::<Job>(client, "jobs", all(), |owner| {
        let spec = owner.spec.as_ref().and_then(|s| s.template.spec.as_ref());
        owners.record_object(owner, has_readiness_gate(spec));
    })
    .await?;
    for_each_listed::<CronJob>(client, "cronjobs", all(), |owner| {
        let job = owner.spec.job_template.spec.as_ref();
        owners.record_object(
            owner,
            has_readiness_gate(job.and_then(|s| s.template.spec.as_ref())),
        );
    })
    .await?;

    let pods = pods.describe_leftovers().map(|(count, names)| {
        format!(
            "the readiness gate {} keeps Pods off traffic ({count}), for example because an operator works on them; they get \
             traffic again: {names}",
            keys::SERVICE_READY
        )
    });
    let owners = owners.describe_leftovers().map(|(count, names)| {
        format!(
            "new Pods of templates that name the readiness gate {} ({count}) are never Ready; take it out of \
             spec.template.spec.readinessGates: {names}",
            keys::SERVICE_READY
        )
    });
    Ok(pods.into_iter().chain(owners).collect())
}

/// Reads all objects of a kind, page by page. If the kind is not served, there are none.
pub async fn for_each_listed<K>(
    client: &Client,
    plural: &str,
    params: ListParams,
    mut visit: impl FnMut(&K),
) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let mut page = params.limit(PAGE_LIMIT);
    loop {
        let listed = retry_optional_request(&format!("list {plural}"), || api.list(&page)).await?;
        let Some(listed) = listed else {
            return Ok(());
        };
        listed.items.iter().for_each(&mut visit);
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Whether Operating's readiness gate keeps a Pod off traffic.
pub fn is_off_traffic(pod: &Pod) -> bool {
    let ends = pod.metadata.deletion_timestamp.is_some()
        || matches!(pod_phase(pod), Some("Succeeded" | "Failed"));
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let is_ready = conditions.any(|c| c.type_ == keys::SERVICE_READY && c.status == "True");
    !ends && !is_ready && has_readiness_gate(pod.spec.as_ref())
}

fn pod_phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn has_readiness_gate(spec: Option<&PodSpec>) -> bool {
    let mut gates = spec
        .into_iter()
        .flat_map(|s| s.readiness_gates.iter().flatten());
    gates.any(|gate| gate.condition_type == keys::SERVICE_READY)
}

impl LeftoverObjects {
    fn record_object(&mut self, object: &impl ResourceExt, is_found: bool) {
        if !is_found {
            return;
        }
        self.count += 1;
        if self.names.len() < MAX_NAMED_OBJECTS {
            let namespace = object.namespace().unwrap_or_default();
            self.names
                .push(format!("{namespace}/{}", object.name_any()));
        }
    }

    /// The number of objects, and some of their names. `None` if there are none.
    fn describe_leftovers(&self) -> Option<(usize, String)> {
        let more = self.count - self.names.len();
        let mut names = self.names.join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        (self.count > 0).then_some((self.count, names))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    fn pod(gate: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": "web-1" },
            "spec": { "containers": [], "readinessGates": [{ "conditionType": gate }] },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn pod_is_off_traffic_without_the_condition_of_our_gate() {
        let ready_condition = |status: &str| json!({ "conditions": [{ "type": keys::SERVICE_READY, "status": status }] });
        for (gate, status, is_found) in [
            (keys::SERVICE_READY, json!({}), true),
            (keys::SERVICE_READY, ready_condition("False"), true),
            (keys::SERVICE_READY, ready_condition("True"), false),
            (keys::SERVICE_READY, json!({ "phase": "Succeeded" }), false),
            ("example.com/other", json!({}), false),
        ] {
            assert_eq!(
                is_off_traffic(&pod(gate, &status)),
                is_found,
                "{gate} {status}"
            );
        }
    }

    #[test]
    fn few_are_named_and_all_are_counted() {
        let mut found = LeftoverObjects::default();
        assert_eq!(found.describe_leftovers(), None);
        let pod = pod(keys::SERVICE_READY, &json!({}));
        found.record_object(&pod, false);
        for _ in 0..MAX_NAMED_OBJECTS + 2 {
            found.record_object(&pod, true);
        }
        let (count, names) = found.describe_leftovers().unwrap();
        assert_eq!(count, MAX_NAMED_OBJECTS + 2);
        assert!(names.starts_with("shop/web-1, shop/web-1"), "{names}");
        assert!(names.ends_with("web-1 and 2 more"), "{names}");
    }
}
