//! ValidatingAdmissionPolicies, which the API server evaluates by itself and therefore also enforces while the server
//! is down.
//!
//! An expression that fails to evaluate denies the request if the failure policy is `Fail`. None of these expressions
//! can fail, because they read every field that may be absent as an optional.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};

use crate::api::keys;

/// Name of the policy and its binding that protect the labels which decide whether a namespace is enforced.
pub const NAMESPACE_LABELS: &str = "namespace-labels.operating.kusionstack.io";
/// Name of the policy and its binding that protect the status of rules, which contains the ledger.
pub const RULE_STATUS: &str = "rule-status.operating.kusionstack.io";
/// Name of the policy and its binding that protect the labels and annotations by which the server deletes a Pod.
pub const PODS_TO_DELETE: &str = "pods-to-delete.operating.kusionstack.io";
/// Name of the policy and its binding that warn of Deployments which no rule lets roll out.
pub const RECREATE_DEPLOYMENTS: &str = "recreate-deployments.operating.kusionstack.io";
/// Name of the policy and its binding that warn of rules in namespaces that are excluded from the webhooks.
pub const EXCLUDED_NAMESPACE_RULES: &str = "excluded-namespaces.operating.kusionstack.io";
/// All policies and bindings, in the order in which they are applied.
pub const POLICY_NAMES: [&str; 5] = [
    NAMESPACE_LABELS,
    RULE_STATUS,
    PODS_TO_DELETE,
    RECREATE_DEPLOYMENTS,
    EXCLUDED_NAMESPACE_RULES,
];

/// The RBAC verb on `podtransitionrules` in the whole cluster that a user needs to change the enforcement label or the
/// exclusion label of a namespace, or the status of a rule.
pub const ENFORCE_VERB: &str = "enforce";

/// Every policy with its binding.
pub fn policies() -> [(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding); 5] {
    [
        namespace_labels_policy(),
        rule_status_policy(),
        pods_to_delete_policy(),
        recreate_policy(),
        excluded_namespaces_policy(),
    ]
}

/// The check has no `.namespace()` on purpose. With it, a tenant who has all verbs on all resources of one namespace
/// would pass the check.
fn may_enforce_expression() -> String {
    format!(
        "authorizer.group('{}').resource('podtransitionrules').check('{ENFORCE_VERB}').allowed()",
        keys::GROUP
    )
}

/// Denies users who do not have the verb.
fn require_enforce_verb(message: String) -> Validation {
    Validation {
        expression: may_enforce_expression(),
        message: Some(message),
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    }
}

/// Without this policy, a user who may patch a namespace could switch off its rules: without the namespace enforcement
/// label, or with the exclusion label, the API server does not call the webhooks.
fn namespace_labels_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let [enforcement, exclude] = [keys::NAMESPACE_ENFORCEMENT, keys::NAMESPACE_EXCLUDED];
    let label = |object: &str, key: &str| format!("{object}.metadata.?labels[?'{key}']");
    let changed = |key| format!("{} != {}", label("object", key), label("oldObject", key));
    // A new namespace may be created with the enforcement label. If it has no rules, the leader removes the label.
    let matched = format!(
        "request.operation == 'CREATE' ? {}.hasValue() : {} || {}",
        label("object", exclude),
        changed(enforcement),
        changed(exclude)
    );
    let message = format!(
        "the labels {enforcement} and {exclude} of a namespace decide whether its PodTransitionRules are enforced: changing \
         them needs the RBAC verb {ENFORCE_VERB} on podtransitionrules.{} in the whole cluster (a ClusterRoleBinding), which \
         cluster administrators have; leave these labels as they are, or ask an administrator",
        keys::GROUP
    );
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(match_resource_rules(
            "",
            &["namespaces", "namespaces/status", "namespaces/finalize"],
            "Cluster",
        )),
        match_conditions: Some(vec![match_condition(
            "labels-of-enforcement-changed",
            matched,
        )]),
        validations: Some(vec![require_enforce_verb(message)]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    (
        build_policy(NAMESPACE_LABELS, spec),
        build_binding(NAMESPACE_LABELS, "Deny", None),
    )
}

/// The status contains the claims. A user who may write it could remove claims, so that more Pods go than the rule
/// allows, or invent claims, so that no Pod goes. A role over all resources of the API group, which tenants often have,
/// includes the status.
fn rule_status_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let mut constraints =
        match_resource_rules(keys::GROUP, &["podtransitionrules/status"], "Namespaced");
    for rule in constraints.resource_rules.iter_mut().flatten() {
        rule.api_versions = Some(vec![keys::VERSION.to_owned()]);
    }
    let message = format!(
        "the status of a PodTransitionRule holds the claims that keep its budget: writing it needs the RBAC verb {ENFORCE_VERB} on \
         podtransitionrules.{} in the whole cluster (a ClusterRoleBinding), which the server and cluster administrators have; \
         to let more Pods go, edit spec.rules",
        keys::GROUP
    );
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(constraints),
        validations: Some(vec![require_enforce_verb(message)]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    (
        build_policy(RULE_STATUS, spec),
        build_binding(RULE_STATUS, "Deny", None),
    )
}

/// The server deletes Pods with these labels by its own rights (contract 3.5, contract 6.6). Without this policy, a
/// user who may only patch Pods could delete them.
fn pods_to_delete_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let labels = [keys::TO_DELETE, keys::TO_REPLACE];
    let has = |object: &str, key: &str| format!("{object}.metadata.?labels[?'{key}'].hasValue()");
    // Another value of the label counts as set, too: a CollaSet removes only the value that it has written itself. The
    // annotation records this value.
    let value =
        |object: &str, key: &str| format!("{object}.metadata.?labels[?'{key}'].orValue('')");
    let set = labels.map(|key| {
        let same = format!("{} == {}", value("object", key), value("oldObject", key));
        let before = format!("oldObject != null && {} && {same}", has("oldObject", key));
        format!("{} && !({before})", has("object", key))
    });
    let word = |object: &str| {
        let key = keys::SENT_AWAY;
        format!("{object}.metadata.?annotations[?'{key}'].orValue('')")
    };
    let of_a_set = format!(
        "{} && oldObject != null && {} != '' && {} != {}",
        has("object", keys::TO_DELETE),
        word("oldObject"),
        word("object"),
        word("oldObject")
    );
    // These annotations have the options of the deletion and the owner that asked for it. With a grace period of 0, the
    // API server forgets the Pod while its containers may still run.
    let noted = [keys::DELETE_OPTIONS, keys::SCALED_IN_BY].map(|key| {
        let note = |object: &str| format!("{object}.metadata.?annotations[?'{key}'].orValue('')");
        let before = format!("oldObject == null ? '' : {}", note("oldObject"));
        format!("{} != ({before})", note("object"))
    });
    let set = set
        .into_iter()
        .chain([of_a_set])
        .chain(noted)
        .map(|term| format!("({term})"));
    let set: Vec<String> = set.collect();
    let mut both = match_resource_rules("", &["pods", "pods/status"], "Namespaced");
    // The API server copies the labels of a binding to the Pod.
    let of_bindings =
        match_resource_rules("", &["pods/binding", "bindings"], "Namespaced").resource_rules;
    let rules = both.resource_rules.get_or_insert_default();
    for rule in rules.iter_mut() {
        // Only UPDATE: a user may create a Pod with these labels, because it is the user's own Pod.
        rule.operations = Some(vec!["UPDATE".to_owned()]);
    }
    rules.extend(of_bindings.into_iter().flatten().map(|mut rule| {
        rule.operations = Some(vec!["CREATE".to_owned()]);
        rule
    }));
    let constraints = both;
    let message = format!(
        "the labels {} have the Pod deleted through its lifecycle, in the way that the annotations {}, {} and {} say: \
         setting one of these labels, or setting, changing or removing one of these annotations, needs the RBAC verb \
         delete on pods, as deleting the Pod does",
        labels.join(" and "),
        keys::DELETE_OPTIONS,
        keys::SCALED_IN_BY,
        keys::SENT_AWAY
    );
    let may_delete = "authorizer.group('').resource('pods').namespace(request.namespace).name(request.name).check('delete').allowed()";
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(constraints),
        match_conditions: Some(vec![match_condition("label-is-set", set.join(" || "))]),
        validations: Some(vec![Validation {
            expression: may_delete.to_owned(),
            message: Some(message),
            reason: Some("Forbidden".to_owned()),
            ..Validation::default()
        }]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    (
        build_policy(PODS_TO_DELETE, spec),
        build_binding(PODS_TO_DELETE, "Deny", None),
    )
}

/// A Deployment with `Recreate` deletes all Pods before it creates new ones. Under a rule, it may delete only as many
/// Pods as the budget allows. Without new Pods, the budget never becomes free again.
fn recreate_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let recreates = "object.spec.?strategy.?type.orValue('') == 'Recreate'";
    let managed = format!(
        "object.spec.template.?metadata.?labels[?'{}'].orValue('') == '{}'",
        keys::CONTROL,
        keys::CONTROL_VALUE
    );
    let changed = "request.operation == 'CREATE' || object.spec != oldObject.spec";
    let message = "strategy.type Recreate deletes all Pods before it creates new ones: where a PodTransitionRule \
        covers them, a rollout deletes as many as the budget allows and then waits forever. Use RollingUpdate with \
        maxSurge of 1 or more, or a CollaSet";
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Ignore".to_owned()),
        match_constraints: Some(match_resource_rules("apps", &["deployments"], "Namespaced")),
        match_conditions: Some(vec![
            match_condition("spec-changed", changed.to_owned()),
            match_condition("managed", managed),
        ]),
        validations: Some(vec![Validation {
            expression: format!("!({recreates})"),
            message: Some(message.to_owned()),
            ..Validation::default()
        }]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let requirement = |key: &str, operator: &str| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: None,
    };
    let enforced = LabelSelector {
        match_expressions: Some(vec![
            requirement(keys::NAMESPACE_ENFORCEMENT, "Exists"),
            requirement(keys::NAMESPACE_EXCLUDED, "DoesNotExist"),
        ]),
        match_labels: None,
    };
    (
        build_policy(RECREATE_DEPLOYMENTS, spec),
        build_binding(RECREATE_DEPLOYMENTS, "Warn", Some(enforced)),
    )
}

/// The API server does not call the webhooks for a rule in an excluded namespace either, so only a policy can warn of
/// the rule.
fn excluded_namespaces_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let names = keys::EXCLUDED_NAMESPACES
        .map(|name| format!("'{name}'"))
        .join(", ");
    let excluded = format!(
        "request.namespace in [{names}] || namespaceObject.metadata.?labels[?'{}'].hasValue()",
        keys::NAMESPACE_EXCLUDED
    );
    let message = format!(
        "this PodTransitionRule holds nothing: its namespace is excluded from the webhooks (kube-system, kube-public, \
         kube-node-lease, the server's own, and those labelled {}). Move the Pods and the rule to another namespace",
        keys::NAMESPACE_EXCLUDED
    );
    let mut constraints = match_resource_rules(keys::GROUP, &["podtransitionrules"], "Namespaced");
    for rule in constraints.resource_rules.iter_mut().flatten() {
        rule.api_versions = Some(vec![keys::VERSION.to_owned()]);
    }
    let changed = "request.operation == 'CREATE' || object.spec != oldObject.spec";
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Ignore".to_owned()),
        match_constraints: Some(constraints),
        match_conditions: Some(vec![match_condition("spec-changed", changed.to_owned())]),
        validations: Some(vec![Validation {
            expression: format!("!({excluded})"),
            message: Some(message),
            ..Validation::default()
        }]),
        ..ValidatingAdmissionPolicySpec::default()
    };
    (
        build_policy(EXCLUDED_NAMESPACE_RULES, spec),
        build_binding(EXCLUDED_NAMESPACE_RULES, "Warn", None),
    )
}

fn build_policy(name: &str, spec: ValidatingAdmissionPolicySpec) -> ValidatingAdmissionPolicy {
    ValidatingAdmissionPolicy {
        metadata: metadata(name),
        spec: Some(spec),
        ..ValidatingAdmissionPolicy::default()
    }
}

fn build_binding(
    policy: &str,
    action: &str,
    namespaces: Option<LabelSelector>,
) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: metadata(policy),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: policy.to_owned(),
            validation_actions: vec![action.to_owned()],
            match_resources: namespaces.map(|selector| MatchResources {
                match_policy: Some("Equivalent".to_owned()),
                namespace_selector: Some(selector),
                object_selector: Some(LabelSelector::default()),
                ..MatchResources::default()
            }),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        },
    }
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([("app.kubernetes.io/name".to_owned(), "operating".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// Matches CREATE and UPDATE of resources in version `v1` of an API group.
fn match_resource_rules(group: &str, resources: &[&str], scope: &str) -> MatchResources {
    let owned = |list: &[&str]| Some(list.iter().map(|s| (*s).to_owned()).collect());
    MatchResources {
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        resource_rules: Some(vec![NamedRuleWithOperations {
            api_groups: owned(&[group]),
            api_versions: owned(&["v1"]),
            operations: owned(&["CREATE", "UPDATE"]),
            resources: owned(resources),
            scope: Some(scope.to_owned()),
            ..NamedRuleWithOperations::default()
        }]),
        ..MatchResources::default()
    }
}

fn match_condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition {
        name: name.to_owned(),
        expression,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn right_is_checked_for_the_whole_cluster() {
        for (policy, binding) in [namespace_labels_policy(), rule_status_policy()] {
            let spec = policy.spec.unwrap();
            let expression = &spec.validations.unwrap()[0].expression;
            assert!(!expression.contains(".namespace("), "{expression}");
            assert_eq!(spec.failure_policy.unwrap(), "Fail");
            assert_eq!(binding.spec.validation_actions, ["Deny"]);
            assert_eq!(binding.spec.match_resources, None);
        }
    }

    #[test]
    fn names_of_policies_and_bindings_are_listed() {
        let names = policies().map(|(policy, binding)| {
            let bound = binding.spec.policy_name;
            assert_eq!(policy.metadata.name.as_ref(), Some(&bound));
            assert_eq!(binding.metadata.name.as_ref(), Some(&bound));
            bound
        });
        assert_eq!(names, POLICY_NAMES);
    }
}
