//! The table of webhooks.

use super::{Condition, Route};

/// Requests for which a webhook is called: operations on one resource of one group and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookMatchRule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Resource, with its subresource after a slash.
    pub resource: &'static str,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operations: &'static [&'static str],
}

/// The namespaces for which a webhook is called. Excluded namespaces are never among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceScope {
    /// All namespaces.
    All,
    /// Namespaces with a rule ([`crate::api::keys::NAMESPACE_ENFORCEMENT`]).
    WithRules,
    /// Namespaces with a rule that also holds Pods which are not available
    /// ([`crate::api::keys::NAMESPACE_ENFORCEMENT_STRICT`]).
    WithStrictRules,
    /// Namespaces without a rule.
    WithoutRules,
}

/// One entry of a webhook configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Fully qualified name, unique in both configurations. The API server shows it in its messages.
    pub name: &'static str,
    /// The path that the API server calls.
    pub route: Route,
    /// The requests for which it is called.
    pub rules: &'static [WebhookMatchRule],
    /// Whether it is called only for objects with `kusionstack.io/control=true`, before or after the request.
    pub managed_only: bool,
    /// The namespaces for which it is called.
    pub namespaces: NamespaceScope,
    /// What happens to a request if the webhook does not answer: `true` denies it (`Fail`), `false` allows it
    /// (`Ignore`).
    pub must_answer: bool,
    /// Whether the handler may write (a claim, a label). The side effects are `NoneOnDryRun` then, and `None`
    /// otherwise.
    pub writes: bool,
    /// Whether the API server calls it again if a later webhook changed the object.
    pub reinvoke: bool,
    /// How long the API server waits, in seconds: 10 if the handler writes (a conflict costs a few round trips) or sends
    /// a dry run to the API server, and 5 otherwise.
    pub timeout_seconds: i32,
    /// The conditions of a call. All must be true.
    pub conditions: &'static [Condition],
}

const fn pod_rule(resource: &'static str, operations: &'static [&'static str]) -> WebhookMatchRule {
    WebhookMatchRule {
        group: "",
        version: "v1",
        resource,
        operations,
    }
}

/// Creations and updates of our own kinds, without subresources: controllers write the status, and the schema limits
/// the number in `scale`.
const fn own_kind_rule(resource: &'static str) -> WebhookMatchRule {
    WebhookMatchRule {
        group: crate::api::keys::GROUP,
        version: crate::api::keys::VERSION,
        resource,
        operations: &["CREATE", "UPDATE"],
    }
}

const TRANSITION_RULES: &[WebhookMatchRule] = &[own_kind_rule("podtransitionrules")];
const COLLASETS: &[WebhookMatchRule] = &[own_kind_rule("collasets")];
const COLLASETS_UPDATES: &[WebhookMatchRule] = &[WebhookMatchRule {
    operations: &["UPDATE"],
    ..own_kind_rule("collasets")
}];
const PODDECORATIONS: &[WebhookMatchRule] = &[own_kind_rule("poddecorations")];
const OPERATIONJOBS: &[WebhookMatchRule] = &[own_kind_rule("operationjobs")];
const PVC_DELETES: &[WebhookMatchRule] = &[WebhookMatchRule {
    group: "",
    version: "v1",
    resource: "persistentvolumeclaims",
    operations: &["DELETE"],
}];

/// Updates of Pods. A write to `pods/status` may also change labels and finalizers. The kubelet never does, so the
/// conditions keep its status writes away.
const POD_UPDATES: &[WebhookMatchRule] = &[
    pod_rule("pods", &["UPDATE"]),
    pod_rule("pods/status", &["UPDATE"]),
];

/// Every webhook, mutating webhooks first. The comments give the reasons of their settings.
pub const WEBHOOKS: &[Webhook] = &[
    // Adds the readiness gate. A Pod without the gate still works, so a server that is down must not block the creation
    // of Pods.
    Webhook {
        name: "pod-create.apps.kusionstack.io",
        route: Route::MutatePods,
        rules: &[pod_rule("pods", &["CREATE"])],
        managed_only: true,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[],
    },
    // Advances the lifecycle, and takes a claim when an operation begins. In a namespace with rules, no begin may pass
    // without a check. Another webhook may add the labels, so the API server must call this webhook again.
    Webhook {
        name: "pod-update.apps.kusionstack.io",
        route: Route::MutatePods,
        rules: POD_UPDATES,
        managed_only: true,
        namespaces: NamespaceScope::WithRules,
        must_answer: true,
        writes: true,
        reinvoke: true,
        timeout_seconds: 10,
        conditions: &[Condition::NotTerminating, Condition::LifecycleChanged],
    },
    // The same in a namespace without rules. There is no budget, and the controller makes up for a missed step, so a
    // server that is down blocks nothing.
    Webhook {
        name: "pod-update-unruled.apps.kusionstack.io",
        route: Route::MutatePods,
        rules: POD_UPDATES,
        managed_only: true,
        namespaces: NamespaceScope::WithoutRules,
        must_answer: false,
        writes: false,
        reinvoke: true,
        timeout_seconds: 5,
        conditions: &[Condition::NotTerminating, Condition::LifecycleChanged],
    },
    // When the readiness condition changes, the lifecycle advances within the same request, and a Pod that is Ready
    // again counts from then on. Idle Pods, which are neither in an operation nor about to become available, are never
    // sent. The controller makes up for a missed step, so a server that is down must not block a write. The controller
    // also advances the lifecycle after status writes of kubelets, in which admission may change no label. A write that
    // changes labels goes to the webhooks above. They may have changed the condition, so this webhook excludes such a
    // write.
    Webhook {
        name: "pod-status.apps.kusionstack.io",
        route: Route::MutatePods,
        rules: &[pod_rule("pods/status", &["UPDATE"])],
        managed_only: true,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[
            Condition::NotTerminating,
            Condition::NotNode,
            Condition::LabelsUnchanged,
            Condition::InFlight,
            Condition::ReadinessChanged,
        ],
    },
    // The delete behind an eviction calls no webhook, so the server must take the claim here. An objectSelector would
    // see the labels of the Eviction and not of the Pod, so only the namespaceSelector limits the calls. The webhook is
    // mutating, because it adds preconditions to the eviction of a Pod.
    Webhook {
        name: "pod-eviction.apps.kusionstack.io",
        route: Route::MutateEvictions,
        rules: &[pod_rule("pods/eviction", &["CREATE"])],
        managed_only: false,
        namespaces: NamespaceScope::WithRules,
        must_answer: true,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[],
    },
    // Labels the namespace before its first rule is stored. From then on, the API server calls the webhooks with
    // `WithRules` for it. If a rule were stored without the label, nothing would enforce it.
    Webhook {
        name: "podtransitionrule.apps.kusionstack.io",
        route: Route::MutatePodTransitionRules,
        rules: TRANSITION_RULES,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[Condition::RulesChanged],
    },
    // Sets defaults, and reports all errors before the schema reports some of them. Readers use the defaults of absent
    // fields, and the validating webhook checks everything, so a server that is down blocks nothing here.
    Webhook {
        name: "collaset.apps.kusionstack.io",
        route: Route::MutateCollaSets,
        rules: COLLASETS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[Condition::SpecChanged],
    },
    // The same for PodDecorations. Controllers use the same defaults for absent fields.
    Webhook {
        name: "poddecoration.apps.kusionstack.io",
        route: Route::MutatePodDecorations,
        rules: PODDECORATIONS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[Condition::SpecChanged],
    },
    // The same for OperationJobs, without a dry run.
    Webhook {
        name: "operationjob.apps.kusionstack.io",
        route: Route::MutateOperationJobs,
        rules: OPERATIONJOBS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[Condition::SpecChanged],
    },
    // Records that the deletion of a set leaves its Pods. Without the record, the set would delete its Pods once the
    // Kubernetes garbage collector has removed the finalizer `orphan`. The garbage collector retries, and without a
    // server no controller would complete the deletion anyway.
    Webhook {
        name: "collaset-leaving.apps.kusionstack.io",
        route: Route::MarkOrphaningCollaSets,
        rules: COLLASETS_UPDATES,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: true,
        timeout_seconds: 5,
        conditions: &[Condition::LeavesItsPods],
    },
    // Takes a claim or denies the deletion. The webhook is validating, so it runs after all mutating webhooks, and none
    // of them can refuse the request after the claim was taken. The conditions let all deletions pass that no budget
    // ever holds, even while the server is down. This includes the final delete of the kubelet.
    Webhook {
        name: "pod-delete.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: &[pod_rule("pods", &["DELETE"])],
        managed_only: true,
        namespaces: NamespaceScope::WithRules,
        must_answer: true,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[
            Condition::NotTerminating,
            Condition::NotFinished,
            Condition::Available,
            Condition::NotMirror,
            Condition::NotNamespaceController,
        ],
    },
    // All other Pods, in a namespace with a rule that lets even these go only while the budget is healthy.
    Webhook {
        name: "pod-delete-unavailable.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: &[pod_rule("pods", &["DELETE"])],
        managed_only: true,
        namespaces: NamespaceScope::WithStrictRules,
        must_answer: true,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[
            Condition::NotTerminating,
            Condition::NotFinished,
            Condition::Unavailable,
            Condition::NotMirror,
            Condition::NotNamespaceController,
        ],
    },
    // Label changes that would evade a rule, invalid lifecycle labels, and all other changes that end or restart a
    // running Pod: in-place changes, a deadline, another owner. The last group takes a claim.
    Webhook {
        name: "pod-update.validate.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: &[
            pod_rule("pods", &["UPDATE"]),
            pod_rule("pods/resize", &["UPDATE"]),
            pod_rule("pods/status", &["UPDATE"]),
        ],
        managed_only: true,
        namespaces: NamespaceScope::WithRules,
        must_answer: true,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[
            Condition::NotTerminating,
            Condition::LabelsOrDisruptiveFieldsChanged,
        ],
    },
    // Without a rule, only the form of the lifecycle labels is checked, which is no reason to block writes.
    Webhook {
        name: "pod-lifecycle.validate.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: POD_UPDATES,
        managed_only: true,
        namespaces: NamespaceScope::WithoutRules,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[Condition::NotTerminating, Condition::LabelsChanged],
    },
    // A rule that cannot be evaluated would hold its Pods forever, so it must be denied before it is stored.
    Webhook {
        name: "podtransitionrule.validate.apps.kusionstack.io",
        route: Route::ValidatePodTransitionRules,
        rules: TRANSITION_RULES,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[Condition::SpecChanged],
    },
    // A template from which no Pod can be created, or a changed selector, would affect every Pod, so it must be denied
    // before it is stored. Without a server no controller would act on the change anyway. Deletions, and changes of
    // finalizers, of the status and by `kubectl scale`, are never sent.
    Webhook {
        name: "collaset.validate.apps.kusionstack.io",
        route: Route::ValidateCollaSets,
        rules: COLLASETS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[Condition::SpecChanged],
    },
    // A PodDecoration with which no Pod can be created would hold every Pod that it selects, so it must be denied before
    // it is stored. Deletions, and changes of finalizers and of the status, are never sent.
    Webhook {
        name: "poddecoration.validate.apps.kusionstack.io",
        route: Route::ValidatePodDecorations,
        rules: PODDECORATIONS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[Condition::SpecChanged],
    },
    // The action and the targets of an OperationJob are immutable, so an unusable job must be denied before it is stored.
    // Without a server no controller would act on the job anyway. Deletions, and changes of finalizers and of the status,
    // are never sent.
    Webhook {
        name: "operationjob.validate.apps.kusionstack.io",
        route: Route::ValidateOperationJobs,
        rules: OPERATIONJOBS,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[Condition::SpecChanged],
    },
    // Controllers write the pools, and cope with invalid pools. This webhook checks changes by hand, and blocks no
    // controller.
    Webhook {
        name: "resourcecontext.validate.apps.kusionstack.io",
        route: Route::ValidateResourceContexts,
        rules: &[own_kind_rule("resourcecontexts")],
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[Condition::SpecChanged],
    },
    // Protects Pods that would wait for their volume forever. No guarantee depends on it, so a server that is down
    // blocks no deletion. Bound PVCs, which are nearly all, are never sent, and the deletion of a namespace is not
    // held.
    Webhook {
        name: "claim-delete.apps.kusionstack.io",
        route: Route::ValidatePvcDeletions,
        rules: PVC_DELETES,
        managed_only: true,
        namespaces: NamespaceScope::All,
        must_answer: false,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[
            Condition::NotTerminating,
            Condition::Pending,
            Condition::NotNamespaceController,
        ],
    },
    // Keeps the Kubernetes garbage collector from deleting a PVC that outlasts its CollaSet, until the set has released
    // it. The garbage collector retries, and without a server no controller would complete the deletion of the set
    // anyway. Deletions by other users, and of objects that no CollaSet owns, are never sent. The label of managed
    // objects is not required, because a PVC that has lost it still has its owner.
    Webhook {
        name: "claim-collected.apps.kusionstack.io",
        route: Route::ValidatePvcCollections,
        rules: PVC_DELETES,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: false,
        timeout_seconds: 5,
        conditions: &[
            Condition::NotTerminating,
            Condition::ByGarbageCollector,
            Condition::OfCollaSet,
        ],
    },
];

/// Further webhooks with the feature gate `GraceDeleteWebhook`, for the deletions and evictions that [`WEBHOOKS`]
/// leaves out. No budget holds them, so they pass while the server is down: the Pod is deleted at once, as without the
/// feature gate.
pub const GRACEFUL_DELETION_WEBHOOKS: &[Webhook] = &[
    // Pods that are not available. They are off traffic, but cooperators may still have to release them.
    Webhook {
        name: "pod-delete-grace.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: &[pod_rule("pods", &["DELETE"])],
        managed_only: true,
        namespaces: NamespaceScope::WithRules,
        must_answer: false,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[
            Condition::NotTerminating,
            Condition::NotFinished,
            Condition::Unavailable,
            Condition::HasReadinessGate,
            Condition::NotMirror,
            Condition::NotNamespaceController,
        ],
    },
    Webhook {
        name: "pod-delete-grace-unruled.apps.kusionstack.io",
        route: Route::ValidatePods,
        rules: &[pod_rule("pods", &["DELETE"])],
        managed_only: true,
        namespaces: NamespaceScope::WithoutRules,
        must_answer: false,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[
            Condition::NotTerminating,
            Condition::NotFinished,
            Condition::HasReadinessGate,
            Condition::NotMirror,
            Condition::NotNamespaceController,
        ],
    },
    // Includes Pods that are not managed, because the API server cannot select evictions by the labels of the Pod.
    Webhook {
        name: "pod-eviction-unruled.apps.kusionstack.io",
        route: Route::MutateEvictions,
        rules: &[pod_rule("pods/eviction", &["CREATE"])],
        managed_only: false,
        namespaces: NamespaceScope::WithoutRules,
        must_answer: false,
        writes: true,
        reinvoke: false,
        timeout_seconds: 10,
        conditions: &[],
    },
];
