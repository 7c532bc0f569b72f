//! The kinds of owners of the matrix, and the requests by which a user changes them.

use std::fmt;

use kube::core::ApiResource;
use serde_json::{Value, json};
use testbed::observer::resource;

/// API group of the matrix's own kinds.
pub const GROUP: &str = "matrix.operating.test";
/// Name of the owner in its namespace, and value of the label `app` of its Pods.
pub const NAME: &str = "web";

/// A kind of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it all
pub enum Owner {
    Deployment,
    DeploymentSurge0,
    DeploymentRecreate,
    DeploymentSurge100,
    StatefulSetOrdered,
    StatefulSetParallel,
    DaemonSet,
    ReplicationController,
    Job,
    CollaSet,
    /// Pods without an owner.
    Bare,
    /// A custom resource with the subresource `scale`.
    Scaled,
    /// A custom resource without the subresource `scale`.
    Plain,
    /// A custom resource with `scale` that owns ReplicaSets, as an Argo Rollout does.
    Rollout,
}

impl Owner {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Deployment,
        Self::DeploymentSurge0,
        Self::DeploymentRecreate,
        Self::DeploymentSurge100,
        Self::StatefulSetOrdered,
        Self::StatefulSetParallel,
        Self::DaemonSet,
        Self::ReplicationController,
        Self::Job,
        Self::CollaSet,
        Self::Bare,
        Self::Scaled,
        Self::Plain,
        Self::Rollout,
    ];

    /// Name in the table and for `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::DeploymentSurge0 => "deployment-surge0",
            Self::DeploymentRecreate => "deployment-recreate",
            Self::DeploymentSurge100 => "deployment-surge100",
            Self::StatefulSetOrdered => "statefulset-ordered",
            Self::StatefulSetParallel => "statefulset-parallel",
            Self::DaemonSet => "daemonset",
            Self::ReplicationController => "replicationcontroller",
            Self::Job => "job",
            Self::CollaSet => "collaset",
            Self::Bare => "bare",
            Self::Scaled => "crd-scale",
            Self::Plain => "crd-plain",
            Self::Rollout => "crd-rollout",
        }
    }

    /// The kind; `None` for Pods without an owner.
    #[must_use]
    pub fn kind(self) -> Option<ApiResource> {
        let of = |group, version, kind| Some(resource(group, version, kind));
        match self {
            Self::Deployment
            | Self::DeploymentSurge0
            | Self::DeploymentRecreate
            | Self::DeploymentSurge100 => of("apps", "v1", "Deployment"),
            Self::StatefulSetOrdered | Self::StatefulSetParallel => of("apps", "v1", "StatefulSet"),
            Self::DaemonSet => of("apps", "v1", "DaemonSet"),
            Self::ReplicationController => of("", "v1", "ReplicationController"),
            Self::Job => of("batch", "v1", "Job"),
            Self::CollaSet => of("apps.kusionstack.io", "v1alpha1", "CollaSet"),
            Self::Bare => None,
            Self::Scaled => of(GROUP, "v1", "ScaledSet"),
            Self::Plain => of(GROUP, "v1", "PlainSet"),
            Self::Rollout => of(GROUP, "v1", "Rollout"),
        }
    }

    /// Number of Pods at the beginning of a cell.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            // With this number, the 25% of a default strategy are far more than the rule allows.
            Self::Deployment | Self::Rollout => 20,
            Self::DeploymentSurge0 | Self::DeploymentRecreate | Self::DeploymentSurge100 => 8,
            // A DaemonSet has a Pod for each node of a lane except one.
            Self::DaemonSet => 3,
            // The Job controller waits 10 s, 20 s, 40 s … before it replaces a Pod.
            Self::Job => 3,
            _ => 5,
        }
    }

    /// The owner with `replicas` Pods on the nodes of a lane.
    #[must_use]
    pub fn object(self, lane: usize, replicas: usize) -> Value {
        let mut template = template(lane, "web:1");
        let selector = json!({"matchLabels": {"app": NAME}});
        let mut spec = json!({"replicas": replicas});
        match self {
            Self::Deployment => {}
            Self::DeploymentSurge0 => {
                spec["strategy"] =
                    json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}});
            }
            Self::DeploymentRecreate => spec["strategy"] = json!({"type": "Recreate"}),
            Self::DeploymentSurge100 => {
                spec["strategy"] =
                    json!({"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "25%"}});
            }
            Self::StatefulSetOrdered | Self::StatefulSetParallel => {
                spec["serviceName"] = json!(NAME);
                if self == Self::StatefulSetParallel {
                    spec["podManagementPolicy"] = json!("Parallel");
                }
            }
            Self::DaemonSet => {
                spec = json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}});
                template["spec"]["nodeSelector"]["daemons"] = json!("true");
            }
            Self::ReplicationController => {}
            Self::Job => {
                spec = json!({
                    "parallelism": replicas, "completions": 10_000, "backoffLimit": 100_000,
                    "manualSelector": true,
                });
                template["spec"]["restartPolicy"] = json!("OnFailure");
            }
            // A kind without `scale` may use any name for the number.
            Self::Plain => spec = json!({"size": replicas}),
            Self::CollaSet | Self::Scaled | Self::Rollout | Self::Bare => {}
        }
        spec["selector"] = match self {
            Self::ReplicationController => selector["matchLabels"].clone(),
            _ => selector,
        };
        spec["template"] = template;
        json!({"metadata": {"name": NAME}, "spec": spec})
    }

    /// A merge patch that changes the number of Pods; `None` if this kind needs another request.
    #[must_use]
    pub fn scaled(self, replicas: usize) -> Option<Value> {
        match self {
            Self::Bare | Self::DaemonSet => None,
            Self::Job => Some(json!({"spec": {"parallelism": replicas}})),
            Self::Plain => Some(json!({"spec": {"size": replicas}})),
            _ => Some(json!({"spec": {"replicas": replicas}})),
        }
    }

    /// A merge patch that changes the image; `None` if the template cannot be changed.
    #[must_use]
    pub fn with_image(self, image: &str) -> Option<Value> {
        let containers = json!([{"name": "main", "image": image}]);
        match self {
            Self::Bare | Self::Job => None,
            _ => Some(json!({"spec": {"template": {"spec": {"containers": containers}}}})),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A managed Pod on the nodes of a lane, without a name.
#[must_use]
pub fn template(lane: usize, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": NAME, "kusionstack.io/control": "true"}},
        "spec": {
            "nodeSelector": {"lane": lane.to_string()},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image}],
        },
    })
}

/// The definitions of the matrix's own kinds.
#[must_use]
pub fn definitions() -> Vec<Value> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = |plural: &str, kind: &str, scale: bool| {
        let mut spec = open.clone();
        spec["properties"] = json!({"replicas": {"type": "integer"}});
        let mut subresources = json!({"status": {}});
        if scale {
            subresources["scale"] = json!({
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            });
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "properties": {"spec": spec, "status": open},
                    }},
                    "subresources": subresources,
                }],
            },
        })
    };
    vec![
        definition("scaledsets", "ScaledSet", true),
        definition("plainsets", "PlainSet", false),
        definition("rollouts", "Rollout", true),
    ]
}
