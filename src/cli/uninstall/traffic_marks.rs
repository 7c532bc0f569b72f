//! Removes what ResourceConsist has written on Services, and on Pods of all employers, so that both can be deleted
//! without a server. Members stay registered at their load balancers, because an uninstallation must not take Pods off
//! traffic. An employer of another kind can't be read, because the marks on Pods do not say its API group: the user gets
//! the command that removes its finalizer.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod as CorePod, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Map, Value, json};

use super::finalizers::for_each_page;
use crate::api::keys;
use crate::cli::install::request::retry_optional_request;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::{EmployerName, SERVICE, is_clean_finalizer};
use crate::domain::traffic::pod_marks::{self, PodMarks};

/// The annotations of a Service that ResourceConsist writes. Those that users write stay.
const OWN_ANNOTATIONS: [&str; 4] = [
    keys::CONSIST_WRITTEN[0],
    keys::CONSIST_WRITTEN[1],
    keys::CONSIST_RECORDS[0],
    keys::CONSIST_RECORDS[1],
];

/// Most employers of other kinds that the text for the user names.
const MAX_NAMED_EMPLOYERS: usize = 20;

/// What was released.
#[derive(Debug, Default)]
pub struct ReleasedTraffic {
    services: usize,
    pods: usize,
    /// Employers of other kinds, which may still have their finalizer.
    others: BTreeSet<EmployerName>,
}

impl ReleasedTraffic {
    /// A text for the user. Empty if nothing was released.
    pub fn describe(&self) -> String {
        let mut text = match (self.services, self.pods) {
            (0, 0) => String::new(),
            (services, pods) => format!(
                "the traffic of Services ({services}) is not managed any more, and Pods ({pods}) are not protected; their \
                 members stay registered at load balancers\n"
            ),
        };
        for employer in self.others.iter().take(MAX_NAMED_EMPLOYERS) {
            let EmployerName {
                kind,
                namespace,
                name,
            } = employer;
            text += &format!(
                "{kind} {namespace}/{name} may still have the finalizer {}, which keeps it when it is deleted; if it is the \
                 first of its finalizers, this removes it: {}\n",
                keys::CLEAN_FINALIZER,
                removal_command(employer)
            );
        }
        match self.others.len().saturating_sub(MAX_NAMED_EMPLOYERS) {
            0 => text,
            more => text + &format!("{more} more employers of other kinds may have it too\n"),
        }
    }
}

/// The command that removes the finalizer of an employer, and changes nothing if another finalizer is at its place.
fn removal_command(employer: &EmployerName) -> String {
    let path = "/metadata/finalizers/0";
    let patch = json!([
        { "op": "test", "path": path, "value": keys::CLEAN_FINALIZER }, { "op": "remove", "path": path },
    ]);
    format!(
        "kubectl patch {} {} -n {} --type=json -p '{patch}'",
        employer.kind, employer.name, employer.namespace
    )
}

/// The Services of the cluster.
#[derive(Default)]
struct Services {
    /// All Services.
    all: BTreeSet<EmployerName>,
    /// Those whose traffic is managed.
    ours: BTreeSet<EmployerName>,
}

impl Services {
    /// Whether no program but ResourceConsist removes the marks of this employer. A Service that does not exist has no
    /// other program. Whether an employer of another kind has one can't be known, so its Pods are released too.
    fn releases(&self, employer: &EmployerName) -> bool {
        employer.kind != SERVICE || self.ours.contains(employer) || !self.all.contains(employer)
    }
}

/// Removes the marks of employers from Pods, and then the finalizer, the annotations and the condition from the
/// Services. The order lets an interrupted run be repeated: a Service is known as ours until its Pods are released.
pub async fn release_traffic(client: &Client) -> anyhow::Result<ReleasedTraffic> {
    let mut released = ReleasedTraffic::default();
    let mut services = Services::default();
    let everything = ListParams::default();
    let resource = ApiResource::erase::<Service>(&());
    let sort = async |page: Vec<PartialObjectMeta<DynamicObject>>| {
        for object in page {
            let name = EmployerName::new(
                SERVICE,
                &object.namespace().unwrap_or_default(),
                &object.name_any(),
            );
            if own_metadata_change(object.meta()).is_some() {
                services.ours.insert(name.clone());
            }
            services.all.insert(name);
        }
        Ok(())
    };
    for_each_page(client, &resource, &everything, sort).await?;
    let resource = ApiResource::erase::<CorePod>(&());
    let release = async |page: Vec<PartialObjectMeta<DynamicObject>>| {
        for object in page {
            if let Some(change) = pod_change(object.meta(), &services) {
                let others = change.employers.into_iter().filter(|e| e.kind != SERVICE);
                released.others.extend(others);
                release_pod(client, object.meta(), &services).await?;
                released.pods += 1;
            }
        }
        Ok(())
    };
    for_each_page(client, &resource, &everything, release).await?;
    for name in &services.ours {
        release_service(client, name).await?;
    }
    released.services = services.ours.len();
    Ok(released)
}

/// A Pod to be released.
struct PodChange {
    /// The employers whose marks are removed.
    employers: Vec<EmployerName>,
    /// The change of the metadata.
    metadata: Value,
}

/// The change of a Pod that removes the marks of employers. `None` if the Pod has none.
fn pod_change(metadata: &ObjectMeta, services: &Services) -> Option<PodChange> {
    let is_candidate = metadata.finalizers.is_some() || metadata.annotations.is_some();
    let object = is_candidate.then(|| json!({ "metadata": metadata }))?;
    let mut pod: Pod = serde_json::from_value(object).ok()?;
    let mut employers = pod_marks::marking_employers(&pod);
    // A Pod without the entry may still have the finalizer.
    let namespace = pod.metadata.namespace.clone();
    let of_namespace = services.ours.iter().filter(|e| e.namespace == namespace);
    let has_protection = |f: &String| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX);
    if pod.metadata.finalizers.iter().any(has_protection) {
        let marked = of_namespace.filter(|employer| PodMarks::of(employer, &pod).protected);
        let marked: Vec<_> = marked.cloned().collect();
        employers.extend(marked);
    }
    employers.retain(|employer| services.releases(employer));
    let mut change = Map::new();
    for employer in &employers {
        // Another employer of the same name keeps the finalizer.
        let is_shared = pod_marks::sharing_employer(employer, &pod).is_some();
        let present = PodMarks::of(employer, &pod);
        let wanted = PodMarks {
            expected: false,
            protected: present.protected && is_shared,
        };
        if let Some(Value::Object(step)) = pod_marks::change(employer, &pod, wanted) {
            apply_change(&mut pod, &step);
            for (key, value) in step {
                change.insert(key, value);
            }
        }
    }
    (!change.is_empty()).then_some(PodChange {
        employers,
        metadata: Value::Object(change),
    })
}

/// Makes a change of the metadata in the parsed Pod, so that the next change contains it.
fn apply_change(pod: &mut Pod, change: &Map<String, Value>) {
    if let Some(finalizers) = change.get("finalizers") {
        pod.metadata.finalizers = serde_json::from_value(finalizers.clone()).unwrap_or_default();
    }
    if let Some(annotations) = change.get("annotations") {
        let key = keys::AVAILABLE_CONDITIONS;
        match annotations.get(key).and_then(Value::as_str) {
            Some(text) => {
                let annotations = &mut pod.metadata.annotations;
                annotations.insert(key.to_owned(), text.to_owned());
            }
            None => {
                pod.metadata.annotations.remove(key);
            }
        }
    }
}

async fn release_pod(
    client: &Client,
    object: &ObjectMeta,
    services: &Services,
) -> anyhow::Result<()> {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let name = object.name.as_deref().unwrap_or_default();
    let api: Api<CorePod> = Api::namespaced(client.clone(), namespace);
    // Each attempt reads the Pod again, because after a conflict the Pod has changed.
    let step = || async {
        let now = api.get_metadata(name).await?;
        match pod_change(now.meta(), services) {
            None => Ok(()),
            Some(change) => patch_metadata(&api, now.meta(), change.metadata).await,
        }
    };
    let description = format!("remove the marks of employers from Pod {namespace}/{name}");
    retry_optional_request(&description, step).await?;
    Ok(())
}

/// The change of a Service's metadata that removes what ResourceConsist has written. `None` if there is nothing.
fn own_metadata_change(metadata: &ObjectMeta) -> Option<Value> {
    let mut change = Map::new();
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    let others: Vec<_> = finalizers
        .iter()
        .filter(|f| !is_clean_finalizer(f))
        .collect();
    if others.len() < finalizers.len() {
        change.insert("finalizers".to_owned(), json!(others));
    }
    let annotations = metadata.annotations.iter().flatten();
    let ours = annotations.filter(|(key, _)| OWN_ANNOTATIONS.contains(&key.as_str()));
    let ours: Map<_, _> = ours.map(|(key, _)| (key.clone(), Value::Null)).collect();
    if !ours.is_empty() {
        change.insert("annotations".to_owned(), Value::Object(ours));
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

async fn release_service(client: &Client, employer: &EmployerName) -> anyhow::Result<()> {
    let EmployerName {
        namespace, name, ..
    } = employer;
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let step = || async {
        let now = api.get(name).await?;
        let conditions = now.status.as_ref().and_then(|s| s.conditions.as_ref());
        let is_ours = |type_: &str| type_ == keys::CONSIST_CONDITION;
        if let Some(all) = conditions.filter(|all| all.iter().any(|c| is_ours(&c.type_))) {
            let others: Vec<_> = all.iter().filter(|c| !is_ours(&c.type_)).collect();
            let body = json!({
                "metadata": { "resourceVersion": now.resource_version() },
                "status": { "conditions": others },
            });
            let patch = Patch::Merge(&body);
            api.patch_status(name, &PatchParams::default(), &patch)
                .await?;
        }
        let now = api.get_metadata(name).await?;
        match own_metadata_change(now.meta()) {
            None => Ok(()),
            Some(change) => patch_metadata(&api, now.meta(), change).await,
        }
    };
    let description = format!("release the traffic of Service {namespace}/{name}");
    retry_optional_request(&description, step).await?;
    Ok(())
}

/// Merge-patches the metadata of an object on condition of its resourceVersion.
async fn patch_metadata<K>(api: &Api<K>, read: &ObjectMeta, mut change: Value) -> kube::Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    change["resourceVersion"] = json!(read.resource_version);
    let body = json!({ "metadata": change });
    let name = read.name.as_deref().unwrap_or_default();
    let patch = Patch::Merge(&body);
    let params = PatchParams::default();
    api.patch_metadata(name, &params, &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn service(name: &str) -> EmployerName {
        EmployerName::new(SERVICE, "shop", name)
    }

    fn services(all: &[&str], ours: &[&str]) -> Services {
        Services {
            all: all.iter().map(|name| service(name)).collect(),
            ours: ours.iter().map(|name| service(name)).collect(),
        }
    }

    /// A Pod with these entries, and with the finalizers of Services and of others.
    fn pod(entries: &Value, finalizers: &[String]) -> ObjectMeta {
        let text = json!({ "expectedFinalizers": entries }).to_string();
        serde_json::from_value(json!({
            "namespace": "shop", "name": "web-0", "uid": "u", "resourceVersion": "5",
            "annotations": { (keys::AVAILABLE_CONDITIONS): text }, "finalizers": finalizers,
        }))
        .unwrap()
    }

    /// The change of the metadata that releases a Pod.
    fn released(metadata: &ObjectMeta, services: &Services) -> Option<Value> {
        pod_change(metadata, services).map(|change| change.metadata)
    }

    #[test]
    fn marks_of_several_services_go_in_one_change() {
        let (web, api) = (service("web"), service("api"));
        let slb = "prot.podopslifecycle.kusionstack.io/slb".to_owned();
        let entries = json!({
            (web.key()): web.finalizer(), (api.key()): api.finalizer(), "Slb/shop/x": slb,
        });
        let marked = pod(&entries, &[web.finalizer(), slb.clone(), api.finalizer()]);
        let change = released(&marked, &services(&["web", "api"], &["web", "api"])).unwrap();
        assert_eq!(change["finalizers"], json!([slb]));
        let text = change["annotations"][keys::AVAILABLE_CONDITIONS].as_str();
        let left = json!({ "expectedFinalizers": { "Slb/shop/x": slb } });
        assert_eq!(text.unwrap(), left.to_string());
    }

    #[test]
    fn marks_of_missing_services_go_and_those_of_others_stay() {
        let web = service("web");
        let marked = pod(&json!({ (web.key()): web.finalizer() }), &[web.finalizer()]);
        assert!(released(&marked, &services(&[], &[])).is_some());
        assert_eq!(released(&marked, &services(&["web"], &[])), None);
        let foreign = pod(
            &json!({ (web.key()): "prot/slb" }),
            &["prot/slb".to_owned()],
        );
        assert_eq!(released(&foreign, &services(&[], &[])), None);
    }

    #[test]
    fn finalizer_without_an_entry_goes_with_its_service() {
        let web = service("web");
        let marked = pod(&json!({}), &[web.finalizer()]);
        let change = released(&marked, &services(&["web"], &["web"])).unwrap();
        assert_eq!(change, json!({ "finalizers": [] }));
        assert_eq!(released(&marked, &services(&["web"], &[])), None);
    }

    #[test]
    fn marks_of_employers_of_other_kinds_go() {
        let gateway = EmployerName::new("Gateway", "shop", "edge");
        let entries = json!({ (gateway.key()): gateway.finalizer() });
        let marked = pod(
            &entries,
            &[gateway.finalizer(), "example.com/keep".to_owned()],
        );
        let change = pod_change(&marked, &services(&["edge"], &[])).unwrap();
        let wanted = json!({
            "finalizers": ["example.com/keep"], "annotations": { (keys::AVAILABLE_CONDITIONS): null },
        });
        assert_eq!(change.metadata, wanted);
        assert_eq!(change.employers, [gateway]);
    }

    #[test]
    fn finalizer_of_employers_of_one_name_stays_for_the_program_that_is_left() {
        let web = service("web");
        let entries = json!({
            (web.key()): web.finalizer(), "Gateway/shop/web": web.finalizer(),
        });
        let marked = pod(&entries, &[web.finalizer()]);
        let all_go = released(&marked, &services(&["web"], &["web"])).unwrap();
        assert_eq!(all_go["finalizers"], json!([]));
        // The Service belongs to another program.
        let change = released(&marked, &services(&["web"], &[])).unwrap();
        assert_eq!(change.get("finalizers"), None);
        let text = change["annotations"][keys::AVAILABLE_CONDITIONS].as_str();
        assert!(!text.unwrap().contains("Gateway"));
    }

    #[test]
    fn user_gets_the_command_for_employers_of_other_kinds() {
        let mut released = ReleasedTraffic::default();
        assert_eq!(released.describe(), "");
        let names = (0..MAX_NAMED_EMPLOYERS + 2).map(|n| format!("edge-{n:02}"));
        released.others = names
            .map(|name| EmployerName::new("Gateway", "shop", &name))
            .collect();
        let text = released.describe();
        let command = "kubectl patch Gateway edge-00 -n shop --type=json -p '[{\"op\":\"test\"";
        assert!(text.contains(command), "{text}");
        assert!(text.ends_with("2 more employers of other kinds may have it too\n"));
    }

    #[test]
    fn services_lose_both_forms_of_the_finalizer_and_keep_the_rest() {
        let metadata = |value: Value| serde_json::from_value::<ObjectMeta>(value).unwrap();
        let change = own_metadata_change(&metadata(json!({
            "finalizers": [
                "example.com/keep", keys::CLEAN_FINALIZER, "resource-consist.kusionstack.io/clean-web",
            ],
            "annotations": { (keys::CONSIST_STATUS): "{}", (keys::CONSIST_ADAPTER): "edge" },
        })));
        let wanted = json!({
            "finalizers": ["example.com/keep"], "annotations": { (keys::CONSIST_STATUS): null },
        });
        assert_eq!(change.unwrap(), wanted);
        let users = json!({ "annotations": { (keys::CONSIST_ADAPTER): "edge" } });
        assert_eq!(own_metadata_change(&metadata(users)), None);
    }
}
