//! Every label, annotation, finalizer and condition of the API, once, saying who writes it and who
//! reads it (contract 2).

/// API group of all kinds.
pub const GROUP: &str = "apps.kusionstack.io";
/// The only version, served and stored.
pub const VERSION: &str = "v1alpha1";

/// Opts an object into admission and controllers when exactly [`CONTROL_VALUE`]. Written by CollaSet and users.
pub const CONTROL: &str = "kusionstack.io/control";
/// The only value of [`CONTROL`] that counts.
pub const CONTROL_VALUE: &str = "true";

/// The availability signal, `<nanos>`. Added by the lifecycle controller (and by nobody else), removed by the
/// webhook when `preparing` begins and by the controller when the Pod is not Ready. Written by hand on a Pod that is not
/// Ready it is not kept; see [`REPLACES`].
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// CollaSet: a Pod created for the first time; removed together with adding [`SERVICE_AVAILABLE`].
pub const CREATING: &str = "podopslifecycle.kusionstack.io/creating";
/// CollaSet: a Pod created again under its instance ID; removed together with adding [`SERVICE_AVAILABLE`].
pub const COMPLETING: &str = "podopslifecycle.kusionstack.io/completing";
/// User: keep the Pod offline.
pub const STAY_OFFLINE: &str = "podopslifecycle.kusionstack.io/stay-offline";
/// Operators: the coming operation deletes the Pod, `<nanos>`.
pub const PREPARING_TO_DELETE: &str = "podopslifecycle.kusionstack.io/preparing-to-delete";
/// Users and controllers: delete this Pod through the lifecycle `pod-delete`.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// Users and controllers: replace this Pod.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// CollaSet, on the new half of a replace pair: name of the origin Pod.
pub const REPLACE_PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// CollaSet, on the origin half of a replace pair: instance ID of the new Pod.
pub const REPLACE_PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// CollaSet: instance ID of a Pod or claim, decimal.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// CollaSet, on Pods: name of the ControllerRevision that the Pod was made or changed to.
pub const REVISION: &str = "controller-revision-hash";
/// User: update this Pod (strategy byLabel); removed by CollaSet when the update finishes.
pub const UPDATE_INCLUDED: &str = "collaset.kusionstack.io/update-included";
/// CollaSet, on the origin half of a replace pair: name of the revision that the new half gets.
pub const REPLACED_BY_REPLACE_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";
/// User: release this Pod from its CollaSet, as `podToExclude` does.
pub const TO_EXCLUDE: &str = "collaset.kusionstack.io/to-exclude";
/// CollaSet, on an excluded Pod and its claims, and on claims that were kept and let go: `true`; removed when the Pod is included again.
pub const ORPHANED: &str = "collaset.kusionstack.io/orphaned";
/// CollaSet, on claims: name of the claim template.
pub const PVC_TEMPLATE_NAME: &str = "collaset.kusionstack.io/pvc-template-name";
/// CollaSet, on claims: hash of the claim template.
pub const PVC_TEMPLATE_HASH: &str = "collaset.kusionstack.io/pvc-template-hash";
/// Label on a claim: UID of the CollaSet that has the claim without owning it, and never deletes it. It serves its instance like any other, and where
/// others are deleted the set lets go of it. Written by CollaSet where it is not certain that a claim is of a template of the spec; removed by it and by users.
pub const KEPT_FOR: &str = "operating.kusionstack.io/kept-for";
/// Label on a claim that is kept: hash of the template that it serves as, where its own hash is not known. Written and removed by CollaSet.
pub const KEPT_AS: &str = "operating.kusionstack.io/kept-as";
/// CollaSet, on ControllerRevisions: hash of the data.
pub const REVISION_DATA_HASH: &str = "controller.kubernetes.io/hash";
/// CollaSet, on ControllerRevisions: collision count that went into the hash.
pub const REVISION_COLLISION: &str = "controller.kubernetes.io/collision";

/// JSON `{"expectedFinalizers":{"<Kind>/<ns>/<name>":"<finalizer>"}}`. Written by cooperators, read by the lifecycle.
pub const AVAILABLE_CONDITIONS: &str = "pod.kusionstack.io/available-conditions";
/// JSON `{"skipRules":["<rule name>"]}`. Written by users, read by rule evaluation.
pub const SKIP_RULE_CONDITIONS: &str = "podtransitionrule.kusionstack.io/skip-rule-conditions";
/// Why the one who disrupts the Pod may go beyond a budget: not empty, and without effect unless the very user of the
/// request has the RBAC verb `bypass` on the rule. Written by users, read by admission.
pub const BYPASS: &str = "podtransitionrule.kusionstack.io/bypass";
/// GraceDelete: when deletion was last asked for, `<nanos>`. Written at admission, at most every 5 s (contract 2.2).
pub const DELETE_TIMESTAMP: &str = "gracedelete.kusionstack.io/delete-timestamp";
/// Annotation: what the deletion of a Pod costs when a workload is scaled in, a number; Kubernetes' own.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation on a Pod: seconds for which it must have been Ready before it is available, a number. Written by CollaSet from
/// `spec.minReadySeconds`, read by the lifecycle.
pub const MIN_READY_SECONDS: &str = "collaset.kusionstack.io/min-ready-seconds";
/// Annotation on a CollaSet: what is to become of its rollout (`promote`, `promote-full`, `abort` or `retry`). Written by users,
/// read and removed by CollaSet.
pub const ROLLOUT: &str = "collaset.kusionstack.io/rollout";
/// JSON `{"containerStates":{"<container>":{"latestImage":"…","lastImageID":"…"}}}`: what ran before an in-place
/// update. Written and removed by CollaSet.
pub const LAST_POD_STATUS: &str = "collaset.kusionstack.io/last-pod-status";
/// Annotation on a Pod: `<revision>@<generation>,…`, the revisions for which updates in place resize it, and the generation that the Pod
/// had then, written before the resize. Where a resize is all that came of an update, it tells that the Pod has other resources than
/// those of its revision. Written, read and removed by CollaSet.
pub const RESIZING: &str = "operating.kusionstack.io/resizing";
/// Annotation on the ControllerRevision of the template: name of the revision that is kept stable, as `status.currentRevision` says. It
/// outlives the status of a set that is deleted without its Pods and made again. Written and read by CollaSet.
pub const STABLE_REVISION: &str = "operating.kusionstack.io/stable-revision";
/// Annotation on a Pod: when the leader last told the Pod's controller that a budget has room, or that it may choose another Pod to
/// delete, RFC 3339. Its change wakes a controller that backs off after a denied deletion. Written by the controllers of rules and of
/// deletions, read by the latter.
pub const CONTROLLER_WOKEN: &str = "operating.kusionstack.io/controller-woken";
/// Annotation on a Pod: JSON of the containers that an in-place change restarts, as they were before (see
/// [`crate::domain::lifecycle::restarts`]). The change was made while an operation kept the Pod off traffic. Written and
/// removed by the webhook alone, read by the lifecycle: the Pod is not put back on traffic before they have restarted.
pub const AWAITS_RESTART: &str = "operating.kusionstack.io/awaits-restart";
/// Annotation on the new half of a replace pair: name of the origin, whose place the Pod takes without being Ready, because
/// somebody wrote [`SERVICE_AVAILABLE`] by hand. Written by the webhook, read by CollaSet and removed with the pair.
pub const REPLACES: &str = "operating.kusionstack.io/replaces";
/// Annotation on a Pod: the value of its label [`TO_DELETE`] if its CollaSet wrote that. The set takes its own word back, and nobody
/// else's. Written, read and removed by CollaSet.
pub const SENT_AWAY: &str = "operating.kusionstack.io/sent-away";
/// Annotation on a Pod with the label [`TO_DELETE`]: options of the DELETE or eviction that asked for it, as JSON, see
/// [`crate::domain::deletion::DeletionOptions`]. Written at admission, read and removed by the controller of deletions.
pub const DELETE_OPTIONS: &str = "operating.kusionstack.io/delete-options";
/// Annotation on a Pod with the label [`TO_DELETE`]: the value of that, and the UID of the ReplicaSet, or ReplicationController, if
/// nobody but that has asked for the deletion, to have fewer Pods. Written at admission, read and removed by the controller of deletions.
pub const SCALED_IN_BY: &str = "operating.kusionstack.io/scaled-in-by";
/// Annotation on a claim: when its CollaSet last made a Pod that mounts it, RFC 3339. Deletions that were sent before are void by it, as
/// they name an older version. Written by CollaSet, read by nobody.
pub const HANDED_OUT: &str = "operating.kusionstack.io/handed-out";
/// Annotation on a CollaSet that is deleted: its own UID, if it leaves its Pods behind (`--cascade=orphan`). It outlives the finalizer
/// `orphan`, which the garbage collector takes off, and means nothing on another set that it is copied to. Written by the webhook, read
/// by CollaSet and wherever a set's deletion frees its Pods.
pub const LEAVES_ITS_PODS: &str = "operating.kusionstack.io/leaves-its-pods";
/// Annotation by which the kubelet marks a mirror Pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation on a ReplicaSet: which revision of its Deployment it is, a decimal number. The Deployment controller gives the
/// highest number to the ReplicaSet of the present template.
pub const DEPLOYMENT_REVISION: &str = "deployment.kubernetes.io/revision";
/// Label: hash of the template of the Deployment. The Deployment controller writes it into a ReplicaSet and its Pods, and
/// ends the ReplicaSet's name with it.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Prefix of the finalizers by which cooperators protect a Pod from `operate`.
pub const PROTECTION_FINALIZER_PREFIX: &str = "prot.podopslifecycle.kusionstack.io";
/// Finalizer on CollaSets; removed after Pods, claims and instance IDs are reclaimed.
pub const PRE_RECLAIM_FINALIZER: &str = "apps.kusionstack.io/pre-reclaim";
/// Finalizer on PodTransitionRule, PodDecoration and OperationJob in Kuperator's format. Ours adds none; it removes these.
pub const PROTECTED_FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";

/// Readiness gate and Pod condition.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";

/// Label on a Namespace that holds at least one rule: the webhooks for DELETE and eviction select by it, so that
/// namespaces without rules never notice them. Written at admission of a rule and by the rule controller.
pub const NAMESPACE_ENFORCEMENT: &str = "podtransitionrule.kusionstack.io/enforced";
/// Value of [`NAMESPACE_ENFORCEMENT`] where a rule holds unavailable Pods too: their deletions are sent as well.
pub const NAMESPACE_ENFORCEMENT_STRICT: &str = "strict";
/// Annotation on a Namespace: when a rule that needs the mark was last admitted, and a random number. Its change gives the
/// namespace another resourceVersion, by which the leader knows that a rule may be about to be stored. Written at admission
/// of a rule, removed with the mark, read by nobody.
pub const RULE_ADMITTED: &str = "operating.kusionstack.io/rule-admitted";
/// Annotation on a PodTransitionRule: JSON list of the names of its webhook rules whose `failurePolicy: Ignore` was written
/// while Operating judged the write. Kuperator stored `Ignore` in every rule and held its Pods all the same. Written by admission;
/// a user may add a name, and write a single one as it is.
pub const IGNORES_FAILURES: &str = "operating.kusionstack.io/ignores-failures";
/// Label that excludes a Namespace from every webhook. Written by cluster administrators.
pub const NAMESPACE_EXCLUDED: &str = "operating.kusionstack.io/exclude";

/// Namespaces whose objects are never sent to the server: the cluster's own, and the one that the server runs in by default.
pub const EXCLUDED_NAMESPACES: [&str; 4] = [
    "kube-node-lease",
    "kube-public",
    "kube-system",
    "kusionstack-system",
];

/// Suffix shared by all labels of the form `<prefix>.podopslifecycle.kusionstack.io/<ID>`.
pub const LIFECYCLE_DOMAIN: &str = ".podopslifecycle.kusionstack.io/";

/// The thirteen label families that carry an ID (for `operation-permission`: a type) behind the slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Operator: the operation is wanted, `<nanos>`; its removal is the finish signal.
    Operating,
    /// Operator: type of the operation.
    OperationType,
    /// Operator: cancel request, consumed in the same write.
    UndoOperationType,
    /// Webhook: waiting for PreCheck rules, `<nanos>`.
    PreCheck,
    /// Controller or webhook: PreCheck rules passed, `<nanos>`.
    PreChecked,
    /// Controller or webhook: permission, keyed by type, `<nanos>`.
    OperationPermission,
    /// Webhook: traffic is being taken off, `<nanos>`.
    Preparing,
    /// Webhook: the operation may proceed, `<nanos>`.
    Operate,
    /// Webhook: the operation is done, `<nanos>`.
    Operated,
    /// Webhook: former type value.
    DoneOperationType,
    /// Webhook: waiting for PostCheck rules, `<nanos>`.
    PostCheck,
    /// Controller or webhook: PostCheck rules passed, `<nanos>`.
    PostChecked,
    /// Webhook: traffic is being put back, `<nanos>`.
    Completing,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 13] = [
        Family::Operating,
        Family::OperationType,
        Family::UndoOperationType,
        Family::PreCheck,
        Family::PreChecked,
        Family::OperationPermission,
        Family::Preparing,
        Family::Operate,
        Family::Operated,
        Family::DoneOperationType,
        Family::PostCheck,
        Family::PostChecked,
        Family::Completing,
    ];

    /// Label prefix, without the slash.
    pub const fn prefix(self) -> &'static str {
        match self {
            Family::Operating => "operating.podopslifecycle.kusionstack.io",
            Family::OperationType => "operation-type.podopslifecycle.kusionstack.io",
            Family::UndoOperationType => "undo-operation-type.podopslifecycle.kusionstack.io",
            Family::PreCheck => "pre-check.podopslifecycle.kusionstack.io",
            Family::PreChecked => "pre-checked.podopslifecycle.kusionstack.io",
            Family::OperationPermission => "operation-permission.podopslifecycle.kusionstack.io",
            Family::Preparing => "preparing.podopslifecycle.kusionstack.io",
            Family::Operate => "operate.podopslifecycle.kusionstack.io",
            Family::Operated => "operated.podopslifecycle.kusionstack.io",
            Family::DoneOperationType => "done-operation-type.podopslifecycle.kusionstack.io",
            Family::PostCheck => "post-check.podopslifecycle.kusionstack.io",
            Family::PostChecked => "post-checked.podopslifecycle.kusionstack.io",
            Family::Completing => "completing.podopslifecycle.kusionstack.io",
        }
    }

    /// Label key of this family for `id` (a type for [`Family::OperationPermission`]).
    pub fn key(self, id: &str) -> String {
        format!("{}/{id}", self.prefix())
    }

    /// Splits a label key into family and ID; `None` if it belongs to no family.
    pub fn parse(key: &str) -> Option<(Family, &str)> {
        let (prefix, id) = key.split_once('/')?;
        prefix
            .ends_with("podopslifecycle.kusionstack.io")
            .then_some(())?;
        let family = Family::ALL.into_iter().find(|f| f.prefix() == prefix)?;
        Some((family, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_parses_back_to_its_family() {
        for family in Family::ALL {
            assert_eq!(Family::parse(&family.key("x")), Some((family, "x")));
        }
        assert_eq!(Family::parse(SERVICE_AVAILABLE), None);
        assert_eq!(
            Family::parse("operating.podopslifecycle.kusionstack.io"),
            None
        );
    }
}
