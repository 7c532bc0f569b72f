//! The rights of the server, as tables with least privilege. Each line is for requests that the code makes.

use crate::admission::{policies, routes};
use crate::api::keys;
use crate::cli::install::names;

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resources. Subresources follow a slash.
    pub resources: &'static [&'static str],
    /// Names of the objects that the rule is limited to. Empty for all objects.
    pub names: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

const fn allow_verbs(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
) -> AccessRule {
    AccessRule {
        group,
        resources,
        names: &[],
        verbs,
    }
}

/// The right to read the number of Pods of any owner, and nothing else of the owner. This is the only rule with
/// wildcards.
pub const READ_SCALES: AccessRule = allow_verbs("*", &["*/scale"], &["get"]);

/// Rights in the whole cluster that every server needs.
const SERVER_CLUSTER: &[AccessRule] = &[
    // For the cache, and for labels, finalizers and readiness of the lifecycle.
    allow_verbs("", &["pods"], &["get", "list", "watch", "patch"]),
    allow_verbs("", &["pods/status"], &["patch"]),
    // Rules. The patch of the object itself removes a finalizer of Kuperator.
    allow_verbs(
        keys::GROUP,
        &["podtransitionrules"],
        &["get", "list", "watch", "patch"],
    ),
    // For the namespace enforcement label, which a policy guards. The server does not have `bypass`, because it never
    // exceeds a budget.
    allow_verbs(
        keys::GROUP,
        &["podtransitionrules"],
        &[policies::ENFORCE_VERB],
    ),
    // For the ledgers of rules, by compare-and-swap, and for their gauges.
    allow_verbs(keys::GROUP, &["podtransitionrules/status"], &["patch"]),
    // For the bypass check of a user.
    allow_verbs(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
    // For Events.
    allow_verbs("", &["events"], &["create", "patch"]),
    // For the number of Pods that owners ask for: by watches, and by a live read if a watch seems to be late.
    allow_verbs(
        "apps",
        &["daemonsets", "deployments", "replicasets", "statefulsets"],
        &["get", "list", "watch"],
    ),
    // If a rule holds Pods of an old ReplicaSet, the server restores its number of replicas, so that the Deployment can
    // go on.
    allow_verbs("apps", &["replicasets/scale"], &["patch"]),
    allow_verbs("batch", &["jobs"], &["get", "list", "watch"]),
    allow_verbs(keys::GROUP, &["collasets"], &["get", "list", "watch"]),
    allow_verbs("", &["replicationcontrollers"], &["get", "list", "watch"]),
    // The same for owners of all other kinds.
    READ_SCALES,
    // To know whether the API server will refuse an eviction anyway.
    allow_verbs("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    // To find namespaces with rules, and to write the namespace enforcement label.
    allow_verbs("", &["namespaces"], &["list", "watch", "patch"]),
    // To check whether the Service of an expected finalizer still selects the Pod.
    allow_verbs("", &["services"], &["get"]),
    // To check whether the installed webhook configurations send what the rules need. The name also limits the watch to
    // one object.
    AccessRule {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[routes::MUTATING_CONFIGURATION],
        verbs: &["get", "list", "watch"],
    },
    AccessRule {
        group: "admissionregistration.k8s.io",
        resources: &["validatingwebhookconfigurations"],
        names: &[routes::VALIDATING_CONFIGURATION],
        verbs: &["get", "list", "watch"],
    },
];

/// Rights in the namespace of the server that every server needs. `create` cannot be limited to a name.
const SERVER_NAMESPACE: &[AccessRule] = &[
    allow_verbs("coordination.k8s.io", &["leases"], &["create"]),
    AccessRule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[names::LEASE],
        verbs: &["get", "update"],
    },
];

/// Rights that CollaSets, PodDecorations and OperationJobs need.
const COLLASETS_CLUSTER: &[AccessRule] = &[
    // For the Pods of CollaSets. A dry run of a Pod's creation checks a template.
    allow_verbs("", &["pods"], &["create", "delete"]),
    // For changes of resources in place.
    allow_verbs("", &["pods/resize"], &["patch"]),
    // For the finalizer, the status, and owner references that block the deletion of the CollaSet.
    allow_verbs(keys::GROUP, &["collasets"], &["patch"]),
    allow_verbs(keys::GROUP, &["collasets/status"], &["patch"]),
    allow_verbs(keys::GROUP, &["collasets/finalizers"], &["update"]),
    // For the finalizer and the status of PodDecorations, and owner references that block their deletion.
    allow_verbs(
        keys::GROUP,
        &["poddecorations"],
        &["list", "watch", "patch"],
    ),
    allow_verbs(keys::GROUP, &["poddecorations/status"], &["patch"]),
    allow_verbs(keys::GROUP, &["poddecorations/finalizers"], &["update"]),
    // For the finalizer, the status and the end of OperationJobs, and owner references that block their deletion.
    allow_verbs(
        keys::GROUP,
        &["operationjobs"],
        &["list", "watch", "patch", "delete"],
    ),
    allow_verbs(keys::GROUP, &["operationjobs/status"], &["patch"]),
    // For restarts of containers by OpenKruise.
    allow_verbs(
        "apps.kruise.io",
        &["containerrecreaterequests"],
        &["get", "create", "delete"],
    ),
    // For the revisions of CollaSets and PodDecorations, and the PVCs and instance IDs of CollaSets.
    allow_verbs(
        "apps",
        &["controllerrevisions"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    allow_verbs(
        "",
        &["persistentvolumeclaims"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    allow_verbs(
        keys::GROUP,
        &["resourcecontexts"],
        &["list", "watch", "create", "patch", "delete"],
    ),
];

/// Rights for deletions through the lifecycle: the server deletes the Pod when it is off traffic. Evictions are only
/// made as dry runs.
const GRACE_DELETE_CLUSTER: &[AccessRule] = &[
    allow_verbs("", &["pods"], &["delete"]),
    allow_verbs("", &["pods/eviction"], &["create"]),
];

/// Rights in the whole cluster for self-managed certificates: the `caBundle` of the two configurations.
const CERTIFICATES_CLUSTER: &[AccessRule] = &[
    AccessRule {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[routes::MUTATING_CONFIGURATION],
        verbs: &["get", "patch"],
    },
    AccessRule {
        group: "admissionregistration.k8s.io",
        resources: &["validatingwebhookconfigurations"],
        names: &[routes::VALIDATING_CONFIGURATION],
        verbs: &["get", "patch"],
    },
];

/// Rights in the whole cluster for the upkeep of the two webhook configurations. Without `create`, a configuration that
/// an administrator has deleted stays deleted.
const WEBHOOKS_CLUSTER: &[AccessRule] = CERTIFICATES_CLUSTER;

/// Rights in the namespace of the server for self-managed certificates.
const CERTIFICATES_NAMESPACE: &[AccessRule] = &[
    allow_verbs("", &["secrets"], &["create"]),
    AccessRule {
        group: "",
        resources: &["secrets"],
        names: &[names::SECRET],
        verbs: &["get", "update"],
    },
];

/// Rights that ResourceConsist needs. Kinds of employers other than Services need rights of their own, which whoever
/// configures such an adapter gives.
const TRAFFIC_CLUSTER: &[AccessRule] = &[
    // To find the Services whose traffic is managed, and for the finalizer and the report of such a Service.
    allow_verbs("", &["services"], &["get", "list", "watch", "patch"]),
    // For the condition of such a Service.
    allow_verbs("", &["services/status"], &["patch"]),
    // To see which Pods get requests.
    allow_verbs("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
];

/// Rights that are given and removed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermissionSet {
    /// Name of the roles and bindings.
    pub name: &'static str,
    /// Rights in the whole cluster, in a ClusterRole.
    pub cluster: &'static [AccessRule],
    /// Rights in the namespace of the server, in a Role.
    pub namespaced: &'static [AccessRule],
}

/// The rights that every server needs.
pub const SERVER: PermissionSet = PermissionSet {
    name: names::SERVICE_ACCOUNT,
    cluster: SERVER_CLUSTER,
    namespaced: SERVER_NAMESPACE,
};

/// The rights for the feature gate `CollaSets`.
pub const COLLASETS: PermissionSet = PermissionSet {
    name: "operating-collasets",
    cluster: COLLASETS_CLUSTER,
    namespaced: &[],
};

/// The rights for the feature gate `ResourceConsist`.
pub const TRAFFIC: PermissionSet = PermissionSet {
    name: "operating-traffic",
    cluster: TRAFFIC_CLUSTER,
    namespaced: &[],
};

/// The rights for the feature gate `GraceDeleteWebhook`.
pub const GRACE_DELETE: PermissionSet = PermissionSet {
    name: "operating-grace-delete",
    cluster: GRACE_DELETE_CLUSTER,
    namespaced: &[],
};

/// The rights for servers that keep their certificates themselves.
pub const CERTIFICATES: PermissionSet = PermissionSet {
    name: "operating-certificates",
    cluster: CERTIFICATES_CLUSTER,
    namespaced: CERTIFICATES_NAMESPACE,
};

/// The rights for servers that correct their webhook configurations.
pub const WEBHOOKS: PermissionSet = PermissionSet {
    name: "operating-webhooks",
    cluster: WEBHOOKS_CLUSTER,
    namespaced: &[],
};

/// Every permission set.
pub const PERMISSION_SETS: [PermissionSet; 6] = [
    SERVER,
    COLLASETS,
    TRAFFIC,
    GRACE_DELETE,
    CERTIFICATES,
    WEBHOOKS,
];
