//! The labels, annotations, finalizers and conditions of the API that several modules use. Each comment states who
//! writes the key, and who reads it unless that is clear (contract 2).

/// API group of all kinds.
pub const GROUP: &str = "apps.kusionstack.io";
/// The only version, served and stored.
pub const VERSION: &str = "v1alpha1";

/// Opts an object into admission and controllers if its value is exactly [`CONTROL_VALUE`]. Written by
/// CollaSet and users.
pub const CONTROL: &str = "kusionstack.io/control";
/// The only effective value of [`CONTROL`].
pub const CONTROL_VALUE: &str = "true";
/// Label selector of the objects with [`CONTROL`].
pub const CONTROL_SELECTOR: &str = "kusionstack.io/control=true";

/// The availability signal, `<nanos>`. Added by the lifecycle controller only. Removed by the webhook when
/// `preparing` begins, and by the controller when the Pod is not Ready. If a user writes it on a Pod that is
/// not Ready, it is removed again; see [`REPLACES`].
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// CollaSet: a Pod created for the first time; removed together with adding [`SERVICE_AVAILABLE`].
pub const CREATING: &str = "podopslifecycle.kusionstack.io/creating";
/// CollaSet: a Pod recreated under its instance ID; removed together with adding [`SERVICE_AVAILABLE`].
pub const COMPLETING: &str = "podopslifecycle.kusionstack.io/completing";
/// User: keep the Pod offline.
pub const STAY_OFFLINE: &str = "podopslifecycle.kusionstack.io/stay-offline";
/// Operators: the next operation deletes the Pod, `<nanos>`.
pub const PREPARING_TO_DELETE: &str = "podopslifecycle.kusionstack.io/preparing-to-delete";
/// Users and controllers: delete this Pod through the lifecycle `pod-delete`.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";
/// Users and controllers: replace this Pod.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";
/// CollaSet, on the new half of a replace pair: name of the origin Pod.
pub const REPLACE_PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";
/// CollaSet, on the origin half of a replace pair: instance ID of the new Pod.
pub const REPLACE_PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";
/// CollaSet: instance ID of a Pod or PVC, decimal.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";
/// CollaSet, on Pods: name of the ControllerRevision from which the Pod was created or to which it was
/// updated.
pub const REVISION: &str = "controller-revision-hash";
/// User: update this Pod (strategy byLabel); removed by CollaSet when the update finishes.
pub const UPDATE_INCLUDED: &str = "collaset.kusionstack.io/update-included";
/// CollaSet, on the origin half of a replace pair: name of the revision that the new half gets.
pub const REPLACED_BY_REPLACE_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";
/// User: release this Pod from its CollaSet, as `podToExclude` does.
pub const TO_EXCLUDE: &str = "collaset.kusionstack.io/to-exclude";
/// CollaSet, on an excluded Pod and its PVCs, and on released PVCs: `true`; removed when the Pod is included
/// again.
pub const ORPHANED: &str = "collaset.kusionstack.io/orphaned";
/// CollaSet, on PVCs: name of the PVC template.
pub const PVC_TEMPLATE_NAME: &str = "collaset.kusionstack.io/pvc-template-name";
/// CollaSet, on PVCs: hash of the PVC template.
pub const PVC_TEMPLATE_HASH: &str = "collaset.kusionstack.io/pvc-template-hash";
/// Label on a PVC: UID of the CollaSet that uses the PVC without owning it, and never deletes it. The PVC
/// serves its instance like any other PVC, but the CollaSet releases it where it deletes others. Written by
/// CollaSet if it is not certain that the PVC belongs to a template of the spec; removed by CollaSet and by
/// users.
pub const KEPT_FOR: &str = "operating.kusionstack.io/kept-for";
/// Label on a PVC with [`KEPT_FOR`]: hash of the PVC template as whose PVC it serves, if the
/// PVC has no known hash of its own. Written and removed by CollaSet.
pub const KEPT_AS: &str = "operating.kusionstack.io/kept-as";
/// Prefix of the labels by which a CollaSet records the decorations of a Pod: the name of the PodDecoration follows,
/// and the value is the name of the revision. Written and read by CollaSet.
pub const DECORATION_PREFIX: &str = "poddecoration.kusionstack.io/pd-";
/// Prefix of all labels and annotations that record decorations. No selector and no decoration may contain them.
pub const DECORATION_DOMAIN: &str = "poddecoration.kusionstack.io/";
/// Annotation on a Pod: the decorations of the Pod, JSON `[{"name":"<PodDecoration>","revision":"<revision>"}]`. Written
/// by CollaSet for other programs.
pub const DECORATIONS: &str = "poddecoration.kusionstack.io/revisions";
/// Annotation on a PodDecoration: JSON `{"generation":<n>,"sets":{"<CollaSet>":<generation>}}`, the CollaSets whose Pods
/// Kuperator did not decorate because of their partition. Written and removed by the controller of PodDecorations.
pub const HELD_BACK: &str = "operating.kusionstack.io/held-back";
/// CollaSet, on ControllerRevisions: hash of the data.
pub const REVISION_DATA_HASH: &str = "controller.kubernetes.io/hash";
/// CollaSet, on ControllerRevisions: collision count that is part of the hash.
pub const REVISION_COLLISION: &str = "controller.kubernetes.io/collision";

/// JSON `{"expectedFinalizers":{"<Kind>/<ns>/<name>":"<finalizer>"}}`. Written by cooperators, read by the lifecycle.
pub const AVAILABLE_CONDITIONS: &str = "pod.kusionstack.io/available-conditions";
/// Prefix of all labels, annotations and finalizers of ResourceConsist on employers.
pub const CONSIST_PREFIX: &str = "resource-consist.kusionstack.io/";
/// Finalizer on an employer, such as a Service: its members have to be removed from the load balancer, and its marks from
/// Pods, before it goes. Written and removed by ResourceConsist.
pub const CLEAN_FINALIZER: &str = "resource-consist.kusionstack.io/clean-finalizer";
/// Prefix of the same finalizer in the form of earlier versions of Kuperator, before the name of the employer. Replaced
/// by [`CLEAN_FINALIZER`].
pub const OLD_CLEAN_FINALIZER_PREFIX: &str = "resource-consist.kusionstack.io/clean-";
/// Annotations on an employer in which Kuperator records names of Pods. Removed by ResourceConsist, which finds these
/// Pods by their marks.
pub const CONSIST_RECORDS: [&str; 2] = [
    "resource-consist.kusionstack.io/employees-expected-finalizer-added",
    "resource-consist.kusionstack.io/employees-lifecycle-finalizer-recorded",
];
/// Annotation on an employer: name of the adapter that manages its traffic. Written by users.
pub const CONSIST_ADAPTER: &str = "resource-consist.kusionstack.io/adapter";
/// Annotation on an employer: name of the adapter that may have registered members for it. Written and removed by
/// ResourceConsist.
pub const CONSIST_ADAPTER_IN_USE: &str = "resource-consist.kusionstack.io/adapter-in-use";
/// Annotation on an employer: seconds for which a Pod stays protected after new requests have stopped. Written by users.
pub const CONSIST_DRAIN_SECONDS: &str = "resource-consist.kusionstack.io/drain-seconds";
/// Annotation on an employer: counts of its members and what they wait for, JSON. Written by ResourceConsist.
pub const CONSIST_STATUS: &str = "resource-consist.kusionstack.io/status";
/// The annotations that the leader writes on employers.
pub const CONSIST_WRITTEN: [&str; 2] = [CONSIST_ADAPTER_IN_USE, CONSIST_STATUS];
/// Condition on a Service: whether the members of its load balancer are as its Pods need. Written by ResourceConsist.
pub const CONSIST_CONDITION: &str = "resource-consist.kusionstack.io/Consistent";
/// JSON `{"skipRules":["<rule name>"]}`. Written by users, read by rule evaluation.
pub const SKIP_RULE_CONDITIONS: &str = "podtransitionrule.kusionstack.io/skip-rule-conditions";
/// Reason for which a disruption of the Pod may exceed a budget. It must not be empty, and has an effect only
/// if the user who sends the request has the RBAC verb `bypass` on the rule. Written by users, read by
/// admission.
pub const BYPASS: &str = "podtransitionrule.kusionstack.io/bypass";
/// GraceDelete: time of the last deletion request, `<nanos>`. Written at admission, at most every 5 s
/// (contract 2.2).
pub const DELETE_TIMESTAMP: &str = "gracedelete.kusionstack.io/delete-timestamp";
/// Annotation of Kubernetes: a number, the cost of deleting the Pod when its workload is scaled in. Written by users,
/// read by CollaSet.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation on a Pod: number of seconds for which the Pod must have been Ready before it is available.
/// Written by CollaSet from `spec.minReadySeconds`, read by the lifecycle.
pub const MIN_READY_SECONDS: &str = "collaset.kusionstack.io/min-ready-seconds";
/// Annotation on a CollaSet: command for its rollout (`promote`, `promote-full`, `abort` or `retry`). Written
/// by users, read and removed by CollaSet.
pub const ROLLOUT: &str = "collaset.kusionstack.io/rollout";
/// JSON `{"containerStates":{"<container>":{"latestImage":"…","lastImageID":"…"}}}`: the state before an
/// in-place update. Written and removed by CollaSet.
pub const LAST_POD_STATUS: &str = "collaset.kusionstack.io/last-pod-status";
/// Annotation on a Pod: `<revision>@<generation>,…`, the revisions for which in-place updates resize the Pod,
/// each with the generation of the Pod before the resize. If an update changed only the resources, the
/// annotation shows that the resources of the Pod differ from those of its revision. Written, read and
/// removed by CollaSet.
pub const RESIZING: &str = "operating.kusionstack.io/resizing";
/// Annotation on the ControllerRevision of the template: name of the stable revision, as in
/// `status.currentRevision`. It survives if a CollaSet is deleted without its Pods and created again. Written
/// and read by CollaSet.
pub const STABLE_REVISION: &str = "operating.kusionstack.io/stable-revision";
/// Annotation on a Pod: time at which the leader last told the Pod's controller that a budget has room, or
/// that the controller may choose another Pod to delete, RFC 3339. The change wakes a controller that backs
/// off after a denied deletion. Written by the controllers of rules and of deletions, read by the controller
/// of deletions.
pub const CONTROLLER_WOKEN: &str = "operating.kusionstack.io/controller-woken";
/// Annotation on a Pod: JSON of the containers that an in-place change restarts, in their state before the
/// change (see [`crate::domain::lifecycle::restarts`]). The change was made while an operation kept the Pod
/// off traffic. Written and removed by the webhook alone. Read by the lifecycle, which does not return the
/// Pod to traffic before these containers have restarted.
pub const AWAITS_RESTART: &str = "operating.kusionstack.io/awaits-restart";
/// Annotation on the new half of a replace pair: name of the origin. The new half replaces it without being
/// Ready, because a user wrote [`SERVICE_AVAILABLE`]. Written by the webhook, read by CollaSet and removed
/// with the pair.
pub const REPLACES: &str = "operating.kusionstack.io/replaces";
/// Annotation on a Pod that was created to replace another Pod: UID of that Pod. It stays when the pair ends. Written
/// by CollaSet, read by OperationJob.
pub const REPLACED_UID: &str = "collaset.kusionstack.io/replaces";
/// Annotation on a Pod: JSON `{"job":"<UID>","progress":"Succeeded|Failed","message":"…"}`, the result of the action of
/// another program. Written by this program, read and removed by OperationJob.
pub const ACTION_RESULT: &str = "operationjob.kusionstack.io/result";
/// Annotation on a Pod: JSON `{"job":"<UID>","images":{"<container>":"<image>"}}`, the images before a restart by image
/// reference. Written together with the change of the images, and removed when the images are put back or the restart
/// has ended. Written, read and removed by OperationJob.
pub const FORMER_IMAGES: &str = "operationjob.kusionstack.io/former-images";
/// Annotation on an OperationJob with the action Restart: `auto`, `ContainerRecreateRequest` or `ImageReference`.
/// Written by users.
pub const RESTART_BY: &str = "operationjob.kusionstack.io/restart-by";
/// Annotation on a Pod: the value of its label [`TO_DELETE`] if its CollaSet wrote the label. The CollaSet
/// removes only a label that it wrote itself. Written, read and removed by CollaSet.
pub const SENT_AWAY: &str = "operating.kusionstack.io/sent-away";
/// Annotation on a Pod with the label [`TO_DELETE`]: options of the requested DELETE or eviction, as JSON,
/// see [`crate::domain::deletion::DeletionOptions`]. Written at admission, read and removed by the controller
/// of deletions.
pub const DELETE_OPTIONS: &str = "operating.kusionstack.io/delete-options";
/// Annotation on a Pod with the label [`TO_DELETE`]: the value of the label and the UID of the ReplicaSet or
/// ReplicationController, if only this controller requested the deletion, to have fewer Pods. Written at
/// admission, read and removed by the controller of deletions.
pub const SCALED_IN_BY: &str = "operating.kusionstack.io/scaled-in-by";
/// Annotation on a PVC: time at which its CollaSet last created a Pod that mounts the PVC, RFC 3339. The
/// write changes the resource version, which invalidates deletions that were sent before. Written by
/// CollaSet, read by nobody.
pub const HANDED_OUT: &str = "operating.kusionstack.io/handed-out";
/// Annotation on a CollaSet that is being deleted: its own UID, if the CollaSet leaves its Pods behind
/// (`--cascade=orphan`). The annotation remains after the garbage collector removes the finalizer `orphan`,
/// and has no effect on another CollaSet to which it is copied. Written by the webhook, read by CollaSet and
/// by all code that decides whether the deletion of a CollaSet frees its Pods.
pub const LEAVES_ITS_PODS: &str = "operating.kusionstack.io/leaves-its-pods";
/// Annotation that the kubelet writes on a mirror Pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation on a ReplicaSet: revision of its Deployment, a decimal number. The Deployment controller gives
/// the highest number to the ReplicaSet of the current template.
pub const DEPLOYMENT_REVISION: &str = "deployment.kubernetes.io/revision";
/// Label: hash of the template of the Deployment. The Deployment controller writes it on a ReplicaSet and its
/// Pods, and appends it to the name of the ReplicaSet.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Prefix of the finalizers by which cooperators protect a Pod from `operate`. Written and removed by cooperators,
/// read by the lifecycle.
pub const PROTECTION_FINALIZER_PREFIX: &str = "prot.podopslifecycle.kusionstack.io";
/// Finalizer on CollaSets. Written by CollaSet, and removed by it after it has reclaimed Pods, PVCs and instance IDs.
pub const PRE_RECLAIM_FINALIZER: &str = "apps.kusionstack.io/pre-reclaim";
/// Finalizer on PodTransitionRule, PodDecoration and OperationJob in Kuperator's format. Operating removes it from a
/// PodTransitionRule. It is added to a PodDecoration before the first Pod is decorated, and removed from a
/// PodDecoration that is being deleted once no Pod of a CollaSet has the decoration. It is added to an OperationJob
/// before the first target is changed, and removed once all targets are finished and released.
pub const PROTECTED_FINALIZER: &str = "finalizer.operating.kusionstack.io/protected";
/// Finalizer that Kuperator's OperationJobs put on Pods. Operating does not add it. An OperationJob removes it from its
/// targets, and `operating uninstall` removes it from all Pods.
pub const REPLACE_PROTECTED_FINALIZER: &str =
    "finalizer.operationjob.kusionstack.io/replace-protected";

/// Annotation on a CRD: the revision of its definition, decimal. CRDs of builds without revisions lack it. Written and
/// read by `install` and `serve --install`.
pub const CRD_REVISION: &str = "operating.kusionstack.io/crd-revision";
/// Annotation on a webhook configuration: the revision of its webhooks, decimal. Configurations of builds without
/// revisions lack it. Written by every way to install. The leader corrects only webhooks of its own revision.
pub const WEBHOOK_REVISION: &str = "operating.kusionstack.io/webhook-revision";
/// Annotation on a CRD that is being deleted, `<time>`. `operating uninstall` writes it so that the API server looks
/// again for remaining objects. Nobody reads it.
pub const DELETION_NUDGED: &str = "operating.kusionstack.io/deletion-nudged";

/// Readiness gate and condition of a Pod. The gate is added at admission of managed Pods. The condition is written at
/// admission and by the lifecycle controller, and read by the kubelet.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";

/// Label on a Namespace that holds at least one rule. The webhooks for DELETE and eviction select by it, so
/// that they are never called for namespaces without rules. Written at admission of a rule and by the rule
/// controller.
pub const NAMESPACE_ENFORCEMENT: &str = "podtransitionrule.kusionstack.io/enforced";
/// Value of [`NAMESPACE_ENFORCEMENT`] if a rule also protects unavailable Pods, so that the webhooks receive
/// their deletions, too.
pub const NAMESPACE_ENFORCEMENT_STRICT: &str = "strict";
/// Annotation on a Namespace: time at which a rule that needs the enforcement label was last admitted, and a
/// random number. The change gives the namespace a new resourceVersion, from which the leader knows that a
/// rule may be about to be stored. Written at admission of a rule, removed with the label, read by nobody.
pub const RULE_ADMITTED: &str = "operating.kusionstack.io/rule-admitted";
/// Annotation on a PodTransitionRule: JSON list of the names of its webhook rules whose `failurePolicy:
/// Ignore` was written while Operating reviewed the write. Kuperator stored `Ignore` in every rule but held
/// the Pods all the same. Written by admission; a user may add a name, and may write a single name without a
/// list.
pub const IGNORES_FAILURES: &str = "operating.kusionstack.io/ignores-failures";
/// Label that excludes a Namespace from every webhook. Written by cluster administrators.
pub const NAMESPACE_EXCLUDED: &str = "operating.kusionstack.io/exclude";

/// Namespaces whose objects are never sent to the server: those of the cluster itself, and the default
/// namespace of the server.
pub const EXCLUDED_NAMESPACES: [&str; 4] = [
    "kube-node-lease",
    "kube-public",
    "kube-system",
    "kusionstack-system",
];

/// Suffix shared by all labels of the form `<prefix>.podopslifecycle.kusionstack.io/<ID>`.
pub const LIFECYCLE_DOMAIN: &str = ".podopslifecycle.kusionstack.io/";

/// The thirteen label families. The part behind the slash is an ID, or a type for `operation-permission`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Operator: requests the operation, `<nanos>`; the removal of the label finishes it.
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
    /// Webhook: the Pod is being taken off traffic, `<nanos>`.
    Preparing,
    /// Webhook: the operation may proceed, `<nanos>`.
    Operate,
    /// Webhook: the operation is done, `<nanos>`.
    Operated,
    /// Webhook: previous value of the type.
    DoneOperationType,
    /// Webhook: waiting for PostCheck rules, `<nanos>`.
    PostCheck,
    /// Controller or webhook: PostCheck rules passed, `<nanos>`.
    PostChecked,
    /// Webhook: the Pod is being returned to traffic, `<nanos>`.
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
    fn key_parses_back_to_its_family() {
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
