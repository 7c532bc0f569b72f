//! The table of webhooks.

use super::{Condition, Route};

/// What a webhook asks to see: operations on one resource of one group and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookMatchRule {
    /// API group; empty for core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Resource, with its subresource behind a slash.
    pub resource: &'static str,
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub operations: &'static [&'static str],
}

/// Which namespaces a webhook is called for; the excluded ones never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceScope {
    /// All of them.
    All,
    /// Those that hold a rule ([`crate::api::keys::NAMESPACE_HAS_RULES`]).
    WithRules,
    /// Those that hold a rule which holds unavailable Pods too
    /// ([`crate::api::keys::NAMESPACE_HAS_STRICT_RULES`]).
    WithStrictRules,
    /// Those that do not hold a rule.
    WithoutRules,
}

/// One entry of a webhook configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Fully qualified name, unique in both configurations; part of the API server's messages.
    pub name: &'static str,
    /// Where it is sent.
    pub route: Route,
    /// What it is sent for.
    pub rules: &'static [WebhookMatchRule],
    /// Whether only objects with `kusionstack.io/control=true`, before or after the request, are sent.
    pub managed_only: bool,
    /// Where it is sent from.
    pub namespaces: NamespaceScope,
    /// What a dead webhook does to the request: `true` denies it (`Fail`), `false` lets it through (`Ignore`).
    pub must_answer: bool,
    /// Whether answering may write something (a claim, a label); then `NoneOnDryRun`, else `None`.
    pub writes: bool,
    /// Whether to ask again when a later webhook changed the object.
    pub reinvoke: bool,
    /// How long the API server waits, in seconds. Ten where a claim is written (a conflict costs a few round trips) or
    /// the API server itself is asked for a dry-run, five otherwise.
    pub timeout_seconds: i32,
    /// All must hold.
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

/// Creations and changes of objects of our own. Not of their subresources: status is the controllers', and `scale`
/// changes a number that the schema bounds.
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
const CLAIM_DELETES: &[WebhookMatchRule] = &[WebhookMatchRule {
    group: "",
    version: "v1",
    resource: "persistentvolumeclaims",
    operations: &["DELETE"],
}];

/// A write to `pods/status` may carry labels and finalizers too, and they are stored. The kubelet's never do, so the
/// conditions keep status traffic away all the same.
const POD_UPDATES: &[WebhookMatchRule] = &[
    pod_rule("pods", &["UPDATE"]),
    pod_rule("pods/status", &["UPDATE"]),
];

/// Every webhook, mutating ones first, each with the reason of its choices.
pub const WEBHOOKS: &[Webhook] = &[
    // Adds the readiness gate. A Pod that missed it is handled without, so a dead webhook must not stop Pods from
    // being created.
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
    // Steps the lifecycle, and takes the claim when one begins. Where a rule stands, a begin must not slip through
    // unseen. Another webhook may add the labels: asked again then.
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
    // The same without a rule: no budget to hold, and the reconciler makes a missed step, so a dead webhook stops
    // nothing.
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
    // A changed readiness condition lets the lifecycle go on within the same request, and a Pod that is Ready again counts from
    // then on. Idle Pods are never sent. The reconciler makes a missed step, so a dead webhook must not stop anybody. It makes those
    // of what kubelets write, too, in whose writes no label may change.
    // Not a second time after an entry above, which may have changed the condition.
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
    // The delete behind an eviction calls no webhook: claim here or never. An objectSelector would see the labels of
    // the Eviction, not of the Pod, so the namespace alone keeps the blast radius small. Mutating, because the
    // eviction of an unavailable Pod is made conditional by preconditions.
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
    // Labels the namespace before its first rule is stored: from then on the entries above and below see it. A rule
    // that is stored unseen would promise what nobody holds.
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
    // Writes defaults into the object, and says all that is wrong before the schema says a part of it. What is absent
    // reads as its default, and the validation behind sees everything, so a dead webhook stops nothing here.
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
    // Notes that a deleted set leaves its Pods. Unseen, the set would take them along once the garbage collector has removed
    // the finalizer that says so. The collector tries again, and without a server nobody would end the set anyway.
    Webhook {
        name: "collaset-leaving.apps.kusionstack.io",
        route: Route::NoteLeavingCollaSets,
        rules: COLLASETS_UPDATES,
        managed_only: false,
        namespaces: NamespaceScope::All,
        must_answer: true,
        writes: false,
        reinvoke: true,
        timeout_seconds: 5,
        conditions: &[Condition::LeavesItsPods],
    },
    // Claims, or denies. Validating, so that nothing after us can still refuse what a claim was taken for. The
    // conditions let through all that no budget ever holds, a dead webhook or not: the kubelet's last delete too.
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
    // The rest of the Pods, where a rule says that even they go only while the budget is healthy.
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
    // Label edits that would dodge a rule, malformed lifecycle labels, and whatever else ends or restarts a running Pod:
    // in-place changes, a deadline, another owner. Those take a claim.
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
    // Without a rule only the form of the lifecycle's own labels is checked; not worth stopping anyone for.
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
    // A rule that cannot be evaluated would hold its Pods for ever: refused before it is stored.
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
    // A template that no Pod can be made of, or another selector, would be rolled out to every Pod: refused before it is
    // stored. With a dead server nobody would act on the change anyway. Deletion, finalizers, status and `kubectl scale`
    // are never sent.
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
    // Pools are written by controllers, which cope with odd ones; this is for edits by hand, and stops no controller.
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
    // A kindness to Pods that would wait for their volume for ever; no guarantee rests on it, so a dead webhook stops no
    // deletion. Bound claims, nearly all, are never sent, nor is a namespace held that is going.
    Webhook {
        name: "claim-delete.apps.kusionstack.io",
        route: Route::ValidateClaims,
        rules: CLAIM_DELETES,
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
    // Keeps the garbage collector from what outlasts a CollaSet until the set has released it. The collector tries again, and without a
    // server nobody would end the set anyway. Deletions by anybody else, and of what no CollaSet owns, are never sent. Not by the label: a claim
    // that has lost it is owned as well.
    Webhook {
        name: "claim-collected.apps.kusionstack.io",
        route: Route::ValidateCollectedClaims,
        rules: CLAIM_DELETES,
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

/// What comes on top with the feature gate `GraceDeleteWebhook`: the deletions and evictions that [`WEBHOOKS`] leaves out.
/// No budget holds these, so a dead webhook lets them pass: the Pod goes at once, as it does without the gate.
pub const GRACEFUL_DELETION_WEBHOOKS: &[Webhook] = &[
    // Not available: taken off traffic already or never on it, but cooperators may have yet to let it go.
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
    // Of Pods that are not managed too: their labels can't be seen.
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
