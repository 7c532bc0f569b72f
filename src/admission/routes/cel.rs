//! The CEL expressions of the matchConditions.
//!
//! An expression that fails to evaluate denies the request if the failurePolicy is `Fail`. None of these expressions
//! can fail. They replace an absent map or list by an empty one before they read it, because the API server drops empty
//! fields from the objects that it passes to CEL. The operations of each webhook exclude `null` objects (`object` of a
//! DELETE, `oldObject` of a CREATE). The cost of each expression grows only linearly with the size of the object.

use crate::admission::exempt::{CONTROLLER_MANAGER, GARBAGE_COLLECTOR, NAMESPACE_CONTROLLER};
use crate::admission::review::NODES_GROUP;
use crate::api::keys::{self, Family};

/// A matchCondition. The API server calls a webhook only if all of its conditions are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The stored Pod is not being deleted. For a terminating Pod, neither the lifecycle nor a budget matters.
    NotTerminating,
    /// A field that drives the lifecycle changed: labels, finalizers, the expected finalizers in
    /// [`keys::AVAILABLE_CONDITIONS`], the restart record [`keys::AWAITS_RESTART`], or the bypass reason
    /// [`keys::BYPASS`]. Also an image of a Pod that is not available, is in an operation, or waits for the restart of
    /// an earlier image. Changes of other annotations do not count.
    LifecycleChanged,
    /// No label changed. A write that changes labels is sent to the webhooks with [`Condition::LifecycleChanged`].
    LabelsUnchanged,
    /// A field that the validation of Pods reads changed: labels or expected finalizers.
    LabelsChanged,
    /// The same as [`Condition::LabelsChanged`], or a field changed that may end or restart the Pod: an image,
    /// resources of a container or of the Pod, the deadline, the owners.
    LabelsOrDisruptiveFieldsChanged,
    /// The Pod waits to be taken off traffic or to come back (`preparing/…`, `completing/…`), or is Ready and not yet
    /// available.
    InFlight,
    /// `Ready` or [`keys::SERVICE_READY`] changed.
    ReadinessChanged,
    /// The Pod has neither succeeded nor failed.
    NotFinished,
    /// The Pod has the label [`keys::SERVICE_AVAILABLE`], or is Ready, so that the leader will soon add the label. The
    /// deletion of any other Pod takes nothing from a budget.
    Available,
    /// The opposite of [`Condition::Available`].
    Unavailable,
    /// The Pod has the readiness gate [`keys::SERVICE_READY`], by which the lifecycle takes it off traffic.
    HasReadinessGate,
    /// The Pod is not a mirror Pod of a static Pod, by [`Pod::is_mirror`](crate::domain::pod::Pod::is_mirror).
    NotMirror,
    /// The user is not the namespace controller, which deletes only objects of a terminating namespace, so that a
    /// namespace can always be deleted. (The namespace controller has this user name if each controller has its own
    /// service account, as with kubeadm. In other clusters its requests are sent to the server, which allows them.)
    NotNamespaceController,
    /// The user is not a node. NodeRestriction refuses a status write of a node if admission changes a label in it.
    NotNode,
    /// A CREATE, or an UPDATE that changes `spec`. Changes of finalizers and other metadata never need the server.
    SpecChanged,
    /// The same as [`Condition::SpecChanged`], or the annotation [`keys::IGNORES_FAILURES`] changed.
    RulesChanged,
    /// The stored CollaSet is being deleted and leaves its Pods, by [`crate::domain::collaset::orphans_its_pods`].
    LeavesItsPods,
    /// The stored PVC is not bound to a volume yet.
    Pending,
    /// The user is the Kubernetes garbage collector, by its own user name or by that of all controllers.
    ByGarbageCollector,
    /// The stored object has a CollaSet among its owners.
    OfCollaSet,
}

impl Condition {
    /// Name of the condition, a DNS label. The API server shows it in its messages.
    pub const fn name(self) -> &'static str {
        match self {
            Condition::NotTerminating => "not-terminating",
            Condition::LifecycleChanged => "lifecycle-changed",
            Condition::LabelsUnchanged => "labels-unchanged",
            Condition::LabelsChanged => "labels-changed",
            Condition::LabelsOrDisruptiveFieldsChanged => "labels-or-disruptive-fields-changed",
            Condition::InFlight => "in-flight",
            Condition::ReadinessChanged => "readiness-changed",
            Condition::NotFinished => "not-finished",
            Condition::Available => "available",
            Condition::Unavailable => "unavailable",
            Condition::HasReadinessGate => "has-readiness-gate",
            Condition::NotMirror => "not-mirror",
            Condition::NotNamespaceController => "not-namespace-controller",
            Condition::NotNode => "not-node",
            Condition::SpecChanged => "spec-changed",
            Condition::RulesChanged => "rules-changed",
            Condition::LeavesItsPods => "leaves-its-pods",
            Condition::Pending => "pending",
            Condition::ByGarbageCollector => "by-garbage-collector",
            Condition::OfCollaSet => "of-collaset",
        }
    }

    /// The CEL expression; its type is bool.
    pub fn expression(self) -> String {
        match self {
            Condition::NotTerminating => "!has(oldObject.metadata.deletionTimestamp)".into(),
            Condition::LifecycleChanged => any_of([
                changed_expression(labels),
                changed_expression(finalizers),
                changed_expression(|o| annotation(o, keys::AVAILABLE_CONDITIONS)),
                changed_expression(|o| annotation(o, keys::AWAITS_RESTART)),
                changed_expression(|o| annotation(o, keys::BYPASS)),
                image_changed_off_traffic(),
            ]),
            Condition::LabelsUnchanged => format!("!({})", changed_expression(labels)),
            Condition::LabelsChanged => any_of([
                changed_expression(labels),
                changed_expression(|o| annotation(o, keys::AVAILABLE_CONDITIONS)),
            ]),
            Condition::LabelsOrDisruptiveFieldsChanged => any_of([
                Condition::LabelsChanged.expression(),
                changed_expression(|o| each_container(o, "containers")),
                changed_expression(|o| each_container(o, "initContainers")),
                changed_expression(|o| or_empty(o, &["spec", "resources"], "{}")),
                changed_expression(|o| or_empty(o, &["spec", "activeDeadlineSeconds"], "0")),
                changed_expression(|o| or_empty(o, &["metadata", "ownerReferences"], "[]")),
            ]),
            Condition::InFlight => {
                let [preparing, completing] =
                    [Family::Preparing, Family::Completing].map(Family::prefix);
                let labels = labels("object");
                let in_flight = format!(
                    "{labels}.exists(k, k.startsWith('{preparing}/') || k.startsWith('{completing}/'))"
                );
                let back = format!(
                    "!('{}' in {labels}) && {}",
                    keys::SERVICE_AVAILABLE,
                    ready("object")
                );
                any_of([in_flight, back])
            }
            Condition::ReadinessChanged => changed_expression(readiness),
            Condition::NotFinished => {
                format!(
                    "!({} in ['Succeeded', 'Failed'])",
                    or_empty("oldObject", &["status", "phase"], "''")
                )
            }
            Condition::Available => any_of([has_serving_label(), ready("oldObject")]),
            Condition::Unavailable => {
                format!("!({})", Condition::Available.expression())
            }
            Condition::HasReadinessGate => {
                let gates = or_empty("oldObject", &["spec", "readinessGates"], "[]");
                let type_ = or_empty("g", &["conditionType"], "''");
                format!("{gates}.exists(g, {type_} == '{}')", keys::SERVICE_READY)
            }
            Condition::NotMirror => {
                let owners = or_empty("oldObject", &["metadata", "ownerReferences"], "[]");
                let [version, kind, controller] = [
                    ("apiVersion", "''"),
                    ("kind", "''"),
                    ("controller", "false"),
                ]
                .map(|(field, empty)| or_empty("o", &[field], empty));
                format!(
                    "!('{}' in {} && {owners}.exists(o, {version} == 'v1' && {kind} == 'Node' && {controller} == true))",
                    keys::MIRROR,
                    annotations("oldObject")
                )
            }
            Condition::NotNamespaceController => {
                format!(
                    "{} != '{NAMESPACE_CONTROLLER}'",
                    or_empty("request", &["userInfo", "username"], "''")
                )
            }
            Condition::NotNode => {
                format!(
                    "!('{NODES_GROUP}' in {})",
                    or_empty("request", &["userInfo", "groups"], "[]")
                )
            }
            Condition::RulesChanged => any_of([
                Condition::SpecChanged.expression(),
                format!(
                    "oldObject != null && ({})",
                    changed_expression(|o| annotation(o, keys::IGNORES_FAILURES))
                ),
            ]),
            Condition::SpecChanged => {
                format!(
                    "oldObject == null || {}",
                    changed_expression(|o| or_empty(o, &["spec"], "{}"))
                )
            }
            Condition::LeavesItsPods => format!(
                "has(oldObject.metadata.deletionTimestamp) && ('orphan' in {} || {} != '')",
                finalizers("oldObject"),
                annotation("oldObject", keys::LEAVES_ITS_PODS)
            ),
            Condition::Pending => {
                let phase = or_empty("oldObject", &["status", "phase"], "''");
                format!("{phase} == 'Pending'")
            }
            Condition::ByGarbageCollector => {
                let user = or_empty("request", &["userInfo", "username"], "''");
                format!("{user} in ['{GARBAGE_COLLECTOR}', '{CONTROLLER_MANAGER}']")
            }
            Condition::OfCollaSet => {
                let owners = or_empty("oldObject", &["metadata", "ownerReferences"], "[]");
                let [version, kind] =
                    ["apiVersion", "kind"].map(|field| or_empty("o", &[field], "''"));
                let group = keys::GROUP;
                format!(
                    "{owners}.exists(o, {kind} == 'CollaSet' && {version}.startsWith('{group}/'))"
                )
            }
        }
    }
}

/// An expression that is true if the value that `of` reads differs between the new object and the stored object.
fn changed_expression(of: impl Fn(&str) -> String) -> String {
    format!("{} != {}", of("object"), of("oldObject"))
}

fn any_of<const N: usize>(terms: [String; N]) -> String {
    terms.join(" || ")
}

/// The field at `path` below `object`, or `empty` if the field or one of its parents is absent. `metadata` is never
/// absent.
fn or_empty(object: &str, path: &[&str], empty: &str) -> String {
    let mut at = object.to_owned();
    let mut present = Vec::with_capacity(path.len());
    for field in path {
        at = format!("{at}.{field}");
        if *field != "metadata" {
            present.push(format!("has({at})"));
        }
    }
    format!("({} ? {at} : {empty})", present.join(" && "))
}

fn labels(object: &str) -> String {
    or_empty(object, &["metadata", "labels"], "{}")
}

fn annotations(object: &str) -> String {
    or_empty(object, &["metadata", "annotations"], "{}")
}

fn finalizers(object: &str) -> String {
    or_empty(object, &["metadata", "finalizers"], "[]")
}

fn annotation(object: &str, key: &str) -> String {
    format!(
        "(has({object}.metadata.annotations) && '{key}' in {object}.metadata.annotations \
         ? {object}.metadata.annotations['{key}'] : '')"
    )
}

/// Image and resources of each container in `list`, in their order. No update can change the order.
fn each_container(object: &str, list: &str) -> String {
    let list = or_empty(object, &["spec", list], "[]");
    format!(
        "{list}.map(c, [{}, {}])",
        or_empty("c", &["image"], "''"),
        or_empty("c", &["resources"], "{}")
    )
}

/// Whether a container changed and the lifecycle may have to wait for its restart: the Pod is off traffic, in an
/// operation, or already waits for a restart.
fn image_changed_off_traffic() -> String {
    format!(
        "(({} || {}) && (!({}) || {}.exists(k, k.contains('{}')) || {} != ''))",
        changed_expression(|o| each_container(o, "containers")),
        changed_expression(|o| each_container(o, "initContainers")),
        has_serving_label(),
        labels("oldObject"),
        keys::LIFECYCLE_DOMAIN,
        annotation("oldObject", keys::AWAITS_RESTART),
    )
}

/// Whether the stored Pod has the label of an available Pod.
fn has_serving_label() -> String {
    format!("'{}' in {}", keys::SERVICE_AVAILABLE, labels("oldObject"))
}

/// Whether an object is Ready.
fn ready(object: &str) -> String {
    let list = or_empty(object, &["status", "conditions"], "[]");
    let status = or_empty("c", &["status"], "''");
    format!("{list}.exists(c, c.type == 'Ready' && {status} == 'True')")
}

/// Type and status of the two conditions for which the lifecycle waits, without their times and messages.
fn readiness(object: &str) -> String {
    let list = or_empty(object, &["status", "conditions"], "[]");
    format!(
        "{list}.filter(c, c.type in ['Ready', '{}']).map(c, [c.type, {}])",
        keys::SERVICE_READY,
        or_empty("c", &["status"], "''")
    )
}
