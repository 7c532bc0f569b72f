//! The CEL of the matchConditions, in one place.
//!
//! An expression that fails to evaluate rejects the request where failurePolicy is `Fail`. None of these can: an
//! absent map or list is replaced by an empty one before it is looked into (the API server drops empty fields from
//! the objects it hands to CEL), `null` objects (`object` of a DELETE, `oldObject` of a CREATE) are ruled out by the
//! operations of the entry, and the cost grows only linearly with the object.

use crate::admission::exempt::{CONTROLLER_MANAGER, GARBAGE_COLLECTOR, NAMESPACE_CONTROLLER};
use crate::admission::review::NODES_GROUP;
use crate::api::keys::{self, Family};

/// A matchCondition: the webhook is called only if all of its conditions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The stored Pod is not being deleted: nobody waits for a lifecycle or a budget on it any more.
    NotTerminating,
    /// What drives the lifecycle changed: labels, finalizers, or the expected finalizers in
    /// [`keys::AVAILABLE_CONDITIONS`]. Also an image of a Pod that is not available, is in an operation, or waits for the
    /// restart of an earlier image, and the record of that, [`keys::AWAITS_RESTART`]; and the reason of a bypass,
    /// [`keys::BYPASS`]. No other annotation counts.
    LifecycleChanged,
    /// No label changed: of such a write the entries with [`Condition::LifecycleChanged`] are asked.
    LabelsUnchanged,
    /// What the validation of Pods looks at changed: labels, expected finalizers.
    LabelsChanged,
    /// As [`Condition::LabelsChanged`], or something changed that may end or restart the Pod: an image, resources of a
    /// container or of the Pod, the deadline, the owners.
    LabelsOrDisruptiveFieldsChanged,
    /// The Pod waits to be taken off or put back on traffic (`preparing/…`, `completing/…`), or is Ready and not yet available.
    InFlight,
    /// `Ready` or [`keys::SERVICE_READY`] changed.
    ReadinessChanged,
    /// The Pod has not run to its end.
    NotFinished,
    /// The Pod carries [`keys::SERVICE_AVAILABLE`], or is Ready: then the leader is about to add the label. One that is neither
    /// takes nothing from a budget by going away.
    Available,
    /// Not [`Condition::Available`].
    Unavailable,
    /// The Pod has the readiness gate [`keys::SERVICE_READY`], by which it can be taken off traffic.
    HasReadinessGate,
    /// The Pod is not the API server's image of a static Pod, as [`Pod::is_mirror`](crate::domain::pod::Pod::is_mirror) says.
    NotMirror,
    /// Not the namespace controller, which deletes only what a terminating namespace holds: a namespace can always go.
    /// (Its user name is this one where controllers have service accounts of their own, as kubeadm sets them up;
    /// elsewhere its requests are sent and allowed there.)
    NotNamespaceController,
    /// Not a node. NodeRestriction refuses a node's write of a status if admission changes a label in it.
    NotNode,
    /// A CREATE, or an UPDATE that changes `spec`; finalizers and other metadata never depend on us.
    SpecChanged,
    /// As [`Condition::SpecChanged`], or the annotation [`keys::IGNORES_FAILURES`] changed.
    RulesChanged,
    /// The stored CollaSet is deleted and leaves its Pods, as [`crate::domain::collaset::leaves_its_pods`] says.
    LeavesItsPods,
    /// The stored PersistentVolumeClaim is not bound to a volume yet.
    Pending,
    /// The garbage collector, under its own name or that of all controllers.
    ByGarbageCollector,
    /// The stored object has a CollaSet among its owners.
    OfCollaSet,
}

impl Condition {
    /// Name of the condition, a DNS label; shows in the API server's messages.
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

    /// The expression, a bool.
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

/// Whether the value that `of` reads differs between the object and the stored one.
fn changed_expression(of: impl Fn(&str) -> String) -> String {
    format!("{} != {}", of("object"), of("oldObject"))
}

fn any_of<const N: usize>(terms: [String; N]) -> String {
    terms.join(" || ")
}

/// The field at `path` below `object`, or `empty` if it or one of its parents is absent; `metadata` never is.
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

/// Image and resources of each container in `list`, in their order, which no update can change.
fn each_container(object: &str, list: &str) -> String {
    let list = or_empty(object, &["spec", list], "[]");
    format!(
        "{list}.map(c, [{}, {}])",
        or_empty("c", &["image"], "''"),
        or_empty("c", &["resources"], "{}")
    )
}

/// Whether a container changed that the lifecycle may have to see restart: in an operation, or while a restart is awaited.
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

/// Whether the stored Pod carries the label of those that serve.
fn has_serving_label() -> String {
    format!("'{}' in {}", keys::SERVICE_AVAILABLE, labels("oldObject"))
}

/// Whether an object is Ready.
fn ready(object: &str) -> String {
    let list = or_empty(object, &["status", "conditions"], "[]");
    let status = or_empty("c", &["status"], "''");
    format!("{list}.exists(c, c.type == 'Ready' && {status} == 'True')")
}

/// Type and status of the two conditions that the lifecycle waits for; their times and messages do not matter.
fn readiness(object: &str) -> String {
    let list = or_empty(object, &["status", "conditions"], "[]");
    format!(
        "{list}.filter(c, c.type in ['Ready', '{}']).map(c, [c.type, {}])",
        keys::SERVICE_READY,
        or_empty("c", &["status"], "''")
    )
}
