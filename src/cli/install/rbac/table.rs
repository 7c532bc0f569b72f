//! The rights of the server, as tables: least privilege, a line for each thing that the code calls.

use crate::admission::{policies, routes};
use crate::api::keys;
use crate::cli::install::names;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resources, subresources behind a slash.
    pub resources: &'static [&'static str],
    /// Only objects of these names; empty for all.
    pub names: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
}

const fn all(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
) -> Access {
    Access {
        group,
        resources,
        names: &[],
        verbs,
    }
}

/// The number of Pods that any owner is asked to have, and nothing else of it. The only wildcards.
pub const SCALES: Access = all("*", &["*/scale"], &["get"]);

/// What every server needs, cluster-wide.
const SERVER_CLUSTER: &[Access] = &[
    // The cache; labels, finalizers and readiness of the lifecycle.
    all("", &["pods"], &["get", "list", "watch", "patch"]),
    all("", &["pods/status"], &["patch"]),
    // Rules; a patch of the object itself takes off a finalizer that Kuperator left.
    all(
        keys::GROUP,
        &["podtransitionrules"],
        &["get", "list", "watch", "patch"],
    ),
    // The mark of namespaces with rules, which a policy guards. Not `bypass`: the server goes beyond no budget.
    all(
        keys::GROUP,
        &["podtransitionrules"],
        &[policies::ENFORCE_VERB],
    ),
    // Their ledger, by compare-and-swap, and their gauges.
    all(keys::GROUP, &["podtransitionrules/status"], &["patch"]),
    // Whether a user may go beyond the budget of a rule.
    all(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
    // What users should know.
    all("", &["events"], &["create", "patch"]),
    // How many Pods their owners want: by watches, and by a live read where a watch seems to trail.
    all(
        "apps",
        &["daemonsets", "deployments", "replicasets", "statefulsets"],
        &["get", "list", "watch"],
    ),
    // An old ReplicaSet whose Pods a rule holds gets its number back, so that its Deployment goes on.
    all("apps", &["replicasets/scale"], &["patch"]),
    all("batch", &["jobs"], &["get", "list", "watch"]),
    all(keys::GROUP, &["collasets"], &["get", "list", "watch"]),
    all("", &["replicationcontrollers"], &["get", "list", "watch"]),
    // The same for owners of all other kinds.
    SCALES,
    // Whether the API server is going to refuse an eviction anyway.
    all("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    // Which namespaces hold rules; the label that says so.
    all("", &["namespaces"], &["list", "watch", "patch"]),
    // Whether the Service of an expected finalizer still selects the Pod.
    all("", &["services"], &["get"]),
    // Whether our own two configurations send what the rules need. A name limits a watch of one object too.
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[routes::MUTATING_CONFIGURATION],
        verbs: &["get", "list", "watch"],
    },
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["validatingwebhookconfigurations"],
        names: &[routes::VALIDATING_CONFIGURATION],
        verbs: &["get", "list", "watch"],
    },
];

/// What every server needs in its own namespace. A name cannot limit `create`.
const SERVER_HOME: &[Access] = &[
    all("coordination.k8s.io", &["leases"], &["create"]),
    Access {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[names::LEASE],
        verbs: &["get", "update"],
    },
];

/// What CollaSets need.
const COLLASETS_CLUSTER: &[Access] = &[
    // Their Pods; a template is tried by a dry-run of the creation of a Pod.
    all("", &["pods"], &["create", "delete"]),
    // Resources that are changed in place.
    all("", &["pods/resize"], &["patch"]),
    // The finalizer, the status, and references to them that block their deletion.
    all(keys::GROUP, &["collasets"], &["patch"]),
    all(keys::GROUP, &["collasets/status"], &["patch"]),
    all(keys::GROUP, &["collasets/finalizers"], &["update"]),
    // Their revisions, claims and instance IDs.
    all(
        "apps",
        &["controllerrevisions"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    all(
        "",
        &["persistentvolumeclaims"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    all(
        keys::GROUP,
        &["resourcecontexts"],
        &["list", "watch", "create", "patch", "delete"],
    ),
];

/// What deletions through the lifecycle need: the Pod is deleted when it is off traffic. Evictions are only tried by a dry run.
const GRACE_DELETE_CLUSTER: &[Access] = &[
    all("", &["pods"], &["delete"]),
    all("", &["pods/eviction"], &["create"]),
];

/// What self-managed certificates need, cluster-wide: the `caBundle` of our own two configurations.
const CERTIFICATES_CLUSTER: &[Access] = &[
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[routes::MUTATING_CONFIGURATION],
        verbs: &["get", "patch"],
    },
    Access {
        group: "admissionregistration.k8s.io",
        resources: &["validatingwebhookconfigurations"],
        names: &[routes::VALIDATING_CONFIGURATION],
        verbs: &["get", "patch"],
    },
];

/// What self-managed certificates need in the own namespace.
const CERTIFICATES_HOME: &[Access] = &[
    all("", &["secrets"], &["create"]),
    Access {
        group: "",
        resources: &["secrets"],
        names: &[names::SECRET],
        verbs: &["get", "update"],
    },
];

/// Rights that are given and taken away together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Name of its roles and bindings.
    pub name: &'static str,
    /// In the whole cluster: a ClusterRole.
    pub cluster: &'static [Access],
    /// In the namespace of the server: a Role.
    pub home: &'static [Access],
}

/// What every server needs.
pub const SERVER: Grant = Grant {
    name: names::SERVICE_ACCOUNT,
    cluster: SERVER_CLUSTER,
    home: SERVER_HOME,
};

/// With CollaSets.
pub const COLLASETS: Grant = Grant {
    name: "operating-collasets",
    cluster: COLLASETS_CLUSTER,
    home: &[],
};

/// With the feature gate `GraceDeleteWebhook`.
pub const GRACE_DELETE: Grant = Grant {
    name: "operating-grace-delete",
    cluster: GRACE_DELETE_CLUSTER,
    home: &[],
};

/// With certificates that the servers keep themselves.
pub const CERTIFICATES: Grant = Grant {
    name: "operating-certificates",
    cluster: CERTIFICATES_CLUSTER,
    home: CERTIFICATES_HOME,
};

/// Every grant.
pub const GRANTS: [Grant; 4] = [SERVER, COLLASETS, GRACE_DELETE, CERTIFICATES];
