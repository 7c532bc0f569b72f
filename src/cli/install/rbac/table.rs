//! The rights of the server, as tables: least privilege, a line for each thing that the code calls.

use crate::admission::{policies, routes};
use crate::api::keys;
use crate::cli::install::names;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resources, subresources behind a slash.
    pub resources: &'static [&'static str],
    /// Only objects of these names; empty for all.
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

/// The number of Pods that any owner is asked to have, and nothing else of it. The only wildcards.
pub const READ_SCALES: AccessRule = allow_verbs("*", &["*/scale"], &["get"]);

/// What every server needs, cluster-wide.
const SERVER_CLUSTER: &[AccessRule] = &[
    // The cache; labels, finalizers and readiness of the lifecycle.
    allow_verbs("", &["pods"], &["get", "list", "watch", "patch"]),
    allow_verbs("", &["pods/status"], &["patch"]),
    // Rules; a patch of the object itself takes off a finalizer that Kuperator left.
    allow_verbs(
        keys::GROUP,
        &["podtransitionrules"],
        &["get", "list", "watch", "patch"],
    ),
    // The mark of namespaces with rules, which a policy guards. Not `bypass`: the server goes beyond no budget.
    allow_verbs(
        keys::GROUP,
        &["podtransitionrules"],
        &[policies::ENFORCE_VERB],
    ),
    // Their ledger, by compare-and-swap, and their gauges.
    allow_verbs(keys::GROUP, &["podtransitionrules/status"], &["patch"]),
    // Whether a user may go beyond the budget of a rule.
    allow_verbs(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
    // What users should know.
    allow_verbs("", &["events"], &["create", "patch"]),
    // How many Pods their owners want: by watches, and by a live read where a watch seems to trail.
    allow_verbs(
        "apps",
        &["daemonsets", "deployments", "replicasets", "statefulsets"],
        &["get", "list", "watch"],
    ),
    // An old ReplicaSet whose Pods a rule holds gets its number back, so that its Deployment goes on.
    allow_verbs("apps", &["replicasets/scale"], &["patch"]),
    allow_verbs("batch", &["jobs"], &["get", "list", "watch"]),
    allow_verbs(keys::GROUP, &["collasets"], &["get", "list", "watch"]),
    allow_verbs("", &["replicationcontrollers"], &["get", "list", "watch"]),
    // The same for owners of all other kinds.
    READ_SCALES,
    // Whether the API server is going to refuse an eviction anyway.
    allow_verbs("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    // Which namespaces hold rules; the label that says so.
    allow_verbs("", &["namespaces"], &["list", "watch", "patch"]),
    // Whether the Service of an expected finalizer still selects the Pod.
    allow_verbs("", &["services"], &["get"]),
    // Whether our own two configurations send what the rules need. A name limits a watch of one object too.
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

/// What every server needs in its own namespace. A name cannot limit `create`.
const SERVER_NAMESPACE: &[AccessRule] = &[
    allow_verbs("coordination.k8s.io", &["leases"], &["create"]),
    AccessRule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[names::LEASE],
        verbs: &["get", "update"],
    },
];

/// What CollaSets need.
const COLLASETS_CLUSTER: &[AccessRule] = &[
    // Their Pods; a template is tried by a dry-run of the creation of a Pod.
    allow_verbs("", &["pods"], &["create", "delete"]),
    // Resources that are changed in place.
    allow_verbs("", &["pods/resize"], &["patch"]),
    // The finalizer, the status, and references to them that block their deletion.
    allow_verbs(keys::GROUP, &["collasets"], &["patch"]),
    allow_verbs(keys::GROUP, &["collasets/status"], &["patch"]),
    allow_verbs(keys::GROUP, &["collasets/finalizers"], &["update"]),
    // Their revisions, claims and instance IDs.
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

/// What deletions through the lifecycle need: the Pod is deleted when it is off traffic. Evictions are only tried by a dry run.
const GRACE_DELETE_CLUSTER: &[AccessRule] = &[
    allow_verbs("", &["pods"], &["delete"]),
    allow_verbs("", &["pods/eviction"], &["create"]),
];

/// What self-managed certificates need, cluster-wide: the `caBundle` of our own two configurations.
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

/// What self-managed certificates need in the own namespace.
const CERTIFICATES_NAMESPACE: &[AccessRule] = &[
    allow_verbs("", &["secrets"], &["create"]),
    AccessRule {
        group: "",
        resources: &["secrets"],
        names: &[names::SECRET],
        verbs: &["get", "update"],
    },
];

/// Rights that are given and taken away together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermissionSet {
    /// Name of its roles and bindings.
    pub name: &'static str,
    /// In the whole cluster: a ClusterRole.
    pub cluster: &'static [AccessRule],
    /// In the namespace of the server: a Role.
    pub home: &'static [AccessRule],
}

/// What every server needs.
pub const SERVER: PermissionSet = PermissionSet {
    name: names::SERVICE_ACCOUNT,
    cluster: SERVER_CLUSTER,
    home: SERVER_NAMESPACE,
};

/// With CollaSets.
pub const COLLASETS: PermissionSet = PermissionSet {
    name: "operating-collasets",
    cluster: COLLASETS_CLUSTER,
    home: &[],
};

/// With the feature gate `GraceDeleteWebhook`.
pub const GRACE_DELETE: PermissionSet = PermissionSet {
    name: "operating-grace-delete",
    cluster: GRACE_DELETE_CLUSTER,
    home: &[],
};

/// With certificates that the servers keep themselves.
pub const CERTIFICATES: PermissionSet = PermissionSet {
    name: "operating-certificates",
    cluster: CERTIFICATES_CLUSTER,
    home: CERTIFICATES_NAMESPACE,
};

/// Every grant.
pub const PERMISSION_SETS: [PermissionSet; 4] = [SERVER, COLLASETS, GRACE_DELETE, CERTIFICATES];
