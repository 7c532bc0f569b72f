//! What an uninstallation would remove and what would stay, in numbers for the person who decides.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::{Client, ResourceExt};

use super::finalizers::{crd_resource, for_each_page};
use super::leftovers;
use super::own_namespace::{self, NamespaceFate};
use super::running_server::RunningServer;
use crate::api::{crd, keys};
use crate::domain::messages;

/// What is in the cluster.
#[derive(Debug, Default)]
pub struct Survey {
    /// Plural and number of the objects of each kind that has objects.
    objects: Vec<(String, usize)>,
    /// Pods that a CollaSet owns.
    owned_pods: usize,
    /// The Deployment and the other servers that run.
    pub server: RunningServer,
    /// What becomes of the namespace of the server.
    namespace: NamespaceFate,
    /// Sentences about Pods and templates that need attention.
    warnings: Vec<String>,
}

/// Reads the cluster.
pub async fn survey(client: &Client, namespace: &str) -> anyhow::Result<Survey> {
    let mut found = Survey {
        server: RunningServer::find(client, namespace).await?,
        namespace: own_namespace::find_fate(client, namespace).await?,
        ..Survey::default()
    };
    for crd in crd::all_crds() {
        let mut count = 0;
        let visit = async |page: Vec<_>| {
            count += page.len();
            Ok(())
        };
        for_each_page(client, &crd_resource(&crd)?, &ListParams::default(), visit).await?;
        if count > 0 {
            found.objects.push((crd.spec.names.plural.clone(), count));
        }
    }
    let mut owned = 0;
    let visit = async |page: Vec<kube::core::PartialObjectMeta<_>>| {
        let owned_here = page.iter().filter(|pod| {
            let mut owners = pod.owner_references().iter();
            owners.any(|owner| owner.controller == Some(true) && owner.kind == "CollaSet")
        });
        owned += owned_here.count();
        Ok(())
    };
    let managed = ListParams::default().labels(keys::CONTROL_SELECTOR);
    for_each_page(client, &ApiResource::erase::<Pod>(&()), &managed, visit).await?;
    found.owned_pods = owned;
    // An error of this check must not prevent the uninstallation.
    found.warnings = leftovers::leftover_warnings(client).await.unwrap_or_else(|e| {
        vec![format!(
            "could not check which Pods and templates have the readiness gate of the lifecycle: {e:#}"
        )]
    });
    Ok(found)
}

impl Survey {
    /// The text for the person who decides, in lines.
    pub fn describe(&self, target: &str, namespace: &str, keep_crds: bool) -> String {
        let mut text = format!("operating uninstall, {target}, namespace {namespace}\n");
        let mut add = |line: &str| {
            text += line;
            text.push('\n');
        };
        add("goes:");
        for deployment in &self.server.deployments {
            add(&format!(
                "  the Pods of Deployment {namespace}/{deployment}, which is scaled to 0"
            ));
        }
        add(
            "  policies, webhook configurations, roles and bindings, Secret, Lease, labels of namespaces",
        );
        match (keep_crds, self.describe_objects()) {
            (false, None) => add("  CustomResourceDefinitions, without objects"),
            (false, Some(objects)) => {
                add(&format!(
                    "  CustomResourceDefinitions with all their objects: {objects}"
                ));
            }
            (true, _) => {}
        }
        add("  finalizers and marks of Operating on Pods and Services");
        if matches!(self.namespace, NamespaceFate::Goes { .. }) {
            add(&format!("  namespace {namespace} with all that is in it"));
        }
        add("stays:");
        if keep_crds {
            let objects = self.describe_objects();
            let objects = objects.map_or(String::new(), |objects| format!(": {objects}"));
            add(&format!(
                "  CustomResourceDefinitions and their objects{objects}"
            ));
        } else {
            add(&format!(
                "  {} of CollaSets, which run on without an owner",
                messages::count_pods(self.owned_pods)
            ));
        }
        match &self.namespace {
            NamespaceFate::Stays(reason) => add(&format!(
                "  namespace {namespace} with its Deployment, Service and certificates: {reason}"
            )),
            NamespaceFate::Goes { .. } | NamespaceFate::Absent => {}
        }
        add(
            "  PersistentVolumeClaims of users, labels of the lifecycle on Pods, members at load balancers",
        );
        for warning in &self.warnings {
            add(&format!("warning: {warning}"));
        }
        text
    }

    fn describe_objects(&self) -> Option<String> {
        let each = self.objects.iter();
        let each: Vec<_> = each
            .map(|(plural, count)| format!("{count} {plural}"))
            .collect();
        (!each.is_empty()).then(|| each.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_cluster_objects_and_deployment() {
        let survey = Survey {
            objects: vec![
                ("collasets".to_owned(), 2),
                ("podtransitionrules".to_owned(), 1),
            ],
            owned_pods: 1,
            server: RunningServer {
                deployments: vec!["operating".to_owned()],
                elsewhere: None,
            },
            namespace: NamespaceFate::Goes { uid: String::new() },
            warnings: vec!["something".to_owned()],
        };
        let text = survey.describe("context prod", "home", false);
        for part in [
            "context prod, namespace home",
            "Deployment home/operating",
            "namespace home with all that is in it",
            "2 collasets, 1 podtransitionrules",
            "1 Pod of CollaSets",
            "warning: something",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = survey.describe("context prod", "home", true);
        let (goes, stays) = text.split_once("stays:").unwrap_or_default();
        assert!(!goes.contains("CustomResource"), "{text}");
        assert!(stays.contains("objects: 2 collasets"), "{text}");
        assert!(!stays.contains("without an owner"), "{text}");
    }
}
