//! The conditions of a rule object, such as `Enforced` and `Matched`, and the warnings when a user applies the object.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::enforcement::NamespaceEnforcement;
use super::registration;
use super::{AvailabilityLimits, ExpectedPods, RuleKind, RuleSet, Stage};
use crate::api::int_or_percent::IntOrPercent;
use crate::api::keys;

/// A condition for `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionFinding {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What the finding means, and what to do. The message contains no counts, because each change of a count would
    /// cause a write.
    pub message: String,
}

pub(super) fn new_finding(
    status: &'static str,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionFinding {
    ConditionFinding {
        status,
        reason,
        message: message.into(),
    }
}

/// Why the API server sends no requests of a namespace to the server, as a clause. `None` if the namespace is not
/// excluded.
///
/// `own_namespace` is the namespace that the server runs in, if it is known. `labels` are the labels of the namespace.
pub fn exclusion_reason(
    namespace: &str,
    labels: Option<&BTreeMap<String, String>>,
    own_namespace: Option<&str>,
) -> Option<String> {
    if keys::EXCLUDED_NAMESPACES.contains(&namespace) || own_namespace == Some(namespace) {
        return Some(format!(
            "namespace {namespace} is always excluded from the webhooks"
        ));
    }
    let key = keys::NAMESPACE_EXCLUDED;
    labels
        .is_some_and(|labels| labels.contains_key(key))
        .then(|| format!("namespace {namespace} is excluded from the webhooks by its label {key}"))
}

/// The state of the namespace of a rule object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceState {
    /// Why the namespace is excluded: the clause of [`exclusion_reason`].
    pub excluded: Option<String>,
    /// The namespace enforcement label that the rules need, if the namespace has none or a lower one.
    pub missing_enforcement: Option<NamespaceEnforcement>,
    /// What the webhook configurations do not send of the namespace: the clause of
    /// [`RequiredConfiguration::configuration_gap`](super::registration::RequiredConfiguration::configuration_gap).
    pub unregistered: Option<String>,
}

/// The condition `Enforced`. `grace_delete` is whether deletions and evictions go through the lifecycle first.
pub fn enforced_condition(
    rules: &RuleSet,
    namespace_state: &NamespaceState,
    grace_delete: bool,
) -> ConditionFinding {
    let namespace = &rules.namespace;
    if let Some(reason) = &namespace_state.excluded {
        let label = keys::NAMESPACE_EXCLUDED;
        return new_finding(
            "False",
            "NamespaceExcluded",
            format!(
                "nothing is held: {reason}; move the Pods and this rule to another namespace, or have an administrator \
                 remove the label {label} if the namespace carries it"
            ),
        );
    }
    if let Some(enforcement) = namespace_state.missing_enforcement {
        let (key, value) = (
            keys::NAMESPACE_ENFORCEMENT,
            enforcement.label_value().unwrap_or_default(),
        );
        return new_finding(
            "False",
            "NotEnforced",
            format!(
                "the API server does not send all that the rules hold: namespace {namespace} lacks the label {key}={value}; \
                 the server sets it, so see in its log why it cannot"
            ),
        );
    }
    if let Some(gap) = &namespace_state.unregistered {
        return new_finding(
            "False",
            "NotRegistered",
            format!(
                "the API server does not send all that the rules hold: {gap}; {}",
                registration::CONFIGURATION_REMEDY
            ),
        );
    }
    let unreadable: Vec<&str> = unreadable_fields(rules).collect();
    if !unreadable.is_empty() {
        let fields = unreadable.join("; ");
        let effect = match (
            has_unreadable_limit(rules),
            grace_delete && has_pre_check_rule(rules),
        ) {
            (true, _) => "the Pods are held until this is corrected",
            (false, true) => {
                "operations on the Pods are held until this is corrected, and so are deletions and evictions of Pods with the \
                 readiness gate; those of other Pods are not held by it"
            }
            (false, false) => {
                "operations on the Pods are held until this is corrected, deletions and evictions are not held by it"
            }
        };
        return new_finding("False", "Invalid", format!("{effect}: {fields}"));
    }
    if let Some(gap) = enforcement_gap(rules, grace_delete) {
        return gap;
    }
    new_finding(
        "True",
        "Enforced",
        "deletions, evictions, operations and in-place changes of the selected Pods are admitted only as far as the rules \
         allow",
    )
}

/// Whether a rule or a selector that can't be read may be a limit, so that it holds deletions and evictions, too.
fn has_unreadable_limit(rules: &RuleSet) -> bool {
    let mut enabled = rules.rules.iter();
    let is_limit = |rule: &super::CompiledRule| {
        matches!(
            rule.kind,
            RuleKind::Broken {
                may_limit: true,
                ..
            }
        )
    };
    enabled.any(is_limit) || rules.selector.is_err() && rules.may_limit
}

/// For each part of the spec that can't be read: the field and the remedy.
fn unreadable_fields(rules: &RuleSet) -> impl Iterator<Item = &str> {
    let selector = rules.selector.as_ref().err().map(String::as_str);
    selector
        .into_iter()
        .chain(rules.rules.iter().filter_map(|rule| match &rule.kind {
            RuleKind::Broken { reason, .. } => Some(reason.as_str()),
            _ => None,
        }))
}

/// What a readable object does not hold because of its rules. `None` if a rule limits how many Pods are unavailable.
fn enforcement_gap(rules: &RuleSet, grace_delete: bool) -> Option<ConditionFinding> {
    if unreadable_fields(rules).next().is_some() || rules.availability_limits().next().is_some() {
        return None;
    }
    if rules.rules.is_empty() {
        return Some(new_finding(
            "False",
            "NoRules",
            "nothing is held: spec.rules has no enabled rule; add one, or set disabled of one to false",
        ));
    }
    let post_check_alone = rules.rules.iter().all(|rule| {
        matches!(rule.kind, RuleKind::Availability(_)) && rule.stage == Stage::PostCheck
    });
    if post_check_alone {
        return Some(new_finding(
            "False",
            "NoRules",
            "nothing is held: an availablePolicy in stage PostCheck lets every Pod pass; set its stage to PreCheck",
        ));
    }
    let message = match (grace_delete, has_pre_check_rule(rules)) {
        (_, false) => {
            "operations wait at their end until the rules let them pass; deletions and evictions are not held: a rule with \
             availablePolicy in stage PreCheck would hold them"
        }
        (true, true) => {
            "operations wait until the rules let them pass, and so do deletions and evictions of Pods with the readiness gate; \
             those of other Pods are not held: a rule with availablePolicy in stage PreCheck would hold them"
        }
        (false, true) => {
            "operations wait until the rules let them pass; deletions and evictions are not held: a rule with availablePolicy \
             in stage PreCheck would hold them. Or turn the feature gate GraceDeleteWebhook on: then a deletion or eviction of a \
             Pod with the readiness gate is an operation, and waits too"
        }
    };
    Some(new_finding("True", "LifecycleOnly", message))
}

/// Whether a rule applies before an operation. A deletion never reaches the end of an operation, where PostCheck rules
/// apply.
fn has_pre_check_rule(rules: &RuleSet) -> bool {
    rules.selector.is_err() || rules.rules.iter().any(|rule| rule.stage == Stage::PreCheck)
}

/// The Pods that the selector of a rule object matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorMatches {
    /// Managed Pods, or a workload that will create some.
    Managed,
    /// Managed Pods, but the filters of all rules with an `availablePolicy` leave all of them out.
    FilteredOut,
    /// Pods, none of which is managed. The name of one of them.
    Unmanaged(String),
    /// No Pod.
    Nothing,
    /// No managed Pod. It is not known whether there are other Pods.
    NotManaged,
}

/// The condition `Matched`.
pub fn matched_condition(rules: &RuleSet, matches: &SelectorMatches) -> ConditionFinding {
    if rules.selector.is_err() {
        let message = match rules.narrowed {
            None => "spec.selector can't be read, so every managed Pod of the namespace is held",
            Some(_) => {
                "the spec can't be read, so every managed Pod that spec.selector matches is held"
            }
        };
        return new_finding("Unknown", "Invalid", message);
    }
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    match matches {
        SelectorMatches::Managed => {
            new_finding("True", "PodsMatched", "spec.selector matches managed Pods")
        }
        SelectorMatches::FilteredOut => {
            new_finding("False", "FilterMatchesNothing", filtered_out_message(rules))
        }
        SelectorMatches::Unmanaged(_) => new_finding(
            "False",
            "NoManagedPods",
            format!(
                "spec.selector matches Pods, and none of them carries the label {key}: \"{value}\", so none is held; add \
                 the label to the Pods and to the template that they are made from"
            ),
        ),
        SelectorMatches::Nothing => new_finding(
            "False",
            "NoPodsMatched",
            "spec.selector matches no Pod of the namespace; Pods that match later are held",
        ),
        SelectorMatches::NotManaged => new_finding(
            "False",
            "NoPodsMatched",
            format!(
                "spec.selector matches no Pod with the label {key}: \"{value}\"; Pods that match later are held"
            ),
        ),
    }
}

/// The message about rules whose filters leave out every Pod that the selector matches.
fn filtered_out_message(rules: &RuleSet) -> String {
    let limiting = rules.limiting_rules().map(|rule| rule.id.clone());
    let ids = join_names(limiting.collect()).unwrap_or_default();
    format!(
        "no deletion or eviction is held by a budget: spec.selector matches managed Pods, and the filter of no rule with an \
         availablePolicy ({ids}) matches one of them; correct filter.labelSelector, or label the Pods and the template that \
         they are made from"
    )
}

/// Largest number of owners that a message names.
const MAX_NAMES: usize = 3;
/// Follows the names if there are more owners.
pub(super) const AND_OTHERS: &str = " and others";

/// The first [`MAX_NAMES`] of some names, sorted and without duplicates, as text. `None` if there are no names.
pub(super) fn join_names(mut names: Vec<String>) -> Option<String> {
    names.sort();
    names.dedup();
    let suffix = if names.len() > MAX_NAMES {
        AND_OTHERS
    } else {
        ""
    };
    names.truncate(MAX_NAMES);
    (!names.is_empty()).then(|| format!("{}{suffix}", names.join(", ")))
}

/// The condition `Matched` of an object that selects fewer Pods of an owner than the owner asks for, because it does
/// not select the Pods that the owner creates from its template. Each owner is given as `Kind name`. `None` if there
/// are no such owners.
pub fn partly_matched_condition(owners: Vec<String>) -> Option<ConditionFinding> {
    let owners = join_names(owners)?;
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    Some(new_finding(
        "True",
        "TemplateNotMatched",
        format!(
            "fewer Pods of {owners} are selected than asked for, and the template there makes Pods that lack the label {key}: \
             \"{value}\" or that spec.selector does not match. Pods that are not selected count as expected and never as \
             available, whether they run or not, so that they use up the budget. Label the template too. Or relax or \
             delete this rule first, and then take the labels off the Pods that carry them"
        ),
    ))
}

/// Owners that do not tell how many Pods they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownReplicasOwners {
    /// Owners that can't be read, each as a clause: `Kind name can't be read: cause`.
    pub unreadable: Vec<String>,
    /// Owners with a scale subresource that does not contain the number, each as `Kind name`.
    pub unset: Vec<String>,
    /// Owners without a scale subresource, each as `Kind name`.
    pub unknown: Vec<String>,
    /// Whether there are selected Pods, and none of them has an owner.
    pub ownerless: bool,
}

impl UnknownReplicasOwners {
    /// Whether the object denies every disruption of an available Pod because of these owners.
    pub fn denies_all(&self) -> bool {
        !self.unreadable.is_empty() || !self.unset.is_empty()
    }
}

/// Reasons of the condition `ExpectedKnown` for which every disruption of an available Pod is denied; see
/// [`UnknownReplicasOwners::denies_all`].
pub const DENYING_REASONS: [&str; 2] = [OWNER_UNREADABLE, REPLICAS_NOT_SET];
const OWNER_UNREADABLE: &str = "OwnerUnreadable";
const REPLICAS_NOT_SET: &str = "ReplicasNotSet";
const EXPECTED_UNKNOWN: &str = "ExpectedUnknown";

/// The condition `ExpectedKnown` of an object whose Pods have such owners. `None` if there are no such owners, or the
/// object has no limits.
pub fn expected_known_condition(
    rules: &RuleSet,
    owners: UnknownReplicasOwners,
) -> Option<ConditionFinding> {
    rules.availability_limits().next()?;
    if let Some(causes) = join_names(owners.unreadable) {
        let message = format!(
            "it is not known how many Pods there should be: {causes}. Every disruption of an available Pod of this rule is \
             denied until the owner can be read. Correct the cause, such as the APIService of the group or the server's role \
             (apply the current manifests/rbac.yaml), or take the owner reference off the Pods that name an owner that does \
             not exist"
        );
        return Some(new_finding("False", OWNER_UNREADABLE, message));
    }
    if let Some(owners) = join_names(owners.unset) {
        let message = format!(
            "the scale subresource of {owners} has no number of replicas, so every disruption of an available Pod of this \
             rule is denied. Set the number there, usually spec.replicas"
        );
        return Some(new_finding("False", REPLICAS_NOT_SET, message));
    }
    let ownerless = owners.ownerless;
    let subject = match join_names(owners.unknown) {
        // Names of objects contain no space, so the separator shows that there are several names.
        Some(subjects) if subjects.contains(", ") => {
            format!("{subjects} have no scale subresource")
        }
        Some(subject) => format!("{subject} has no scale subresource"),
        None if ownerless => "none of the selected Pods has an owner".to_owned(),
        None => return None,
    };
    let remedy = match (has_only_absolute_minimums(rules), ownerless) {
        (true, _) => "The rule still holds: its minAvailableValue is a number",
        (false, true) => "Use minAvailableValue with a number",
        (false, false) => {
            "Use minAvailableValue with a number, or give the kind a scale subresource"
        }
    };
    Some(new_finding(
        "False",
        EXPECTED_UNKNOWN,
        format!(
            "{subject}, so the Pods that live count as expected and each deletion makes the set smaller: maxUnavailable holds \
             other Pods only until the deletion of the first begins. {remedy}"
        ),
    ))
}

/// Whether all limits are absolute numbers of Pods that must be available. Such limits do not depend on the expected
/// Pods.
fn has_only_absolute_minimums(rules: &RuleSet) -> bool {
    rules.availability_limits().all(|limits| {
        limits.max_unavailable.is_none()
            && matches!(limits.min_available, Some(IntOrPercent::Int(_)))
    })
}

/// A warning for a user who applies an object whose limits depend on the number of expected Pods, if no owner tells
/// this number. `None` if an owner does, or if the server does not know the owners well enough.
pub fn expected_unknown_warning(rules: &RuleSet, owners: UnknownReplicasOwners) -> Option<String> {
    let finding = expected_known_condition(rules, owners)
        .filter(|finding| finding.reason == EXPECTED_UNKNOWN)?;
    (!has_only_absolute_minimums(rules))
        .then(|| format!("PodTransitionRule {}: {}", rules.name, finding.message))
}

/// Whether the API server stores the ledger of an object as the server writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerStorage {
    /// No write has shown a loss.
    #[default]
    Unproven,
    /// The API server drops fields of the ledger, or the whole ledger.
    Dropped,
    /// The API server dropped fields before, but stores them now.
    Restored,
}

impl LedgerStorage {
    /// The state by `is_stored`, which is whether the last write was stored completely (`None`: there was no write), and by
    /// the stored conditions.
    pub fn from_last_write(is_stored: Option<bool>, conditions: &[Condition]) -> LedgerStorage {
        let has_reason = |reason| {
            let mut of_ledger = conditions.iter().filter(|c| c.type_ == LEDGER_USABLE);
            of_ledger.any(|c| c.reason == reason)
        };
        let was_dropped = has_reason(LEDGER_NOT_STORED);
        match is_stored {
            Some(false) => LedgerStorage::Dropped,
            None if was_dropped => LedgerStorage::Dropped,
            _ if was_dropped || has_reason(LEDGER_STORED) => LedgerStorage::Restored,
            _ => LedgerStorage::Unproven,
        }
    }
}

/// Why the API server may drop a field of the status, and the remedy.
pub const FIELD_DROPPED_MESSAGE: &str = "the PodTransitionRule definition in this cluster drops the field, or another webhook does. Apply the \
                           CustomResourceDefinitions of this version: `operating crds | kubectl apply -f -`";

/// Type of the condition of [`ledger_usable_condition`].
pub const LEDGER_USABLE: &str = "LedgerUsable";
const LEDGER_NOT_STORED: &str = "LedgerNotStored";
const LEDGER_STORED: &str = "LedgerStored";

/// The condition `LedgerUsable`. `None` if the ledger is usable and was not repaired. `fault` is why the ledger can't
/// be used, `repair` is how it was repaired.
pub fn ledger_usable_condition(
    fault: Option<&str>,
    storage: LedgerStorage,
    repair: Option<&str>,
) -> Option<ConditionFinding> {
    if let Some(fault) = fault {
        let message =
            format!("every disruption of an available Pod of this rule is denied: {fault}");
        return Some(new_finding("False", "LedgerUnusable", message));
    }
    if storage == LedgerStorage::Dropped {
        let message = format!(
            "every disruption of an available Pod of this rule is denied, because the API server does not store status.ledger as \
             it is written: {FIELD_DROPPED_MESSAGE}"
        );
        return Some(new_finding("False", LEDGER_NOT_STORED, message));
    }
    if storage == LedgerStorage::Restored && repair.is_none() {
        let message = "the API server stores status.ledger again as it is written".to_owned();
        return Some(new_finding("True", LEDGER_STORED, message));
    }
    let repair = repair?;
    let message = format!(
        "the ledger was repaired: {repair}. Such a ledger is forged, or was restored from another cluster: find out who \
         writes the status of this rule"
    );
    Some(new_finding("True", "LedgerMended", message))
}

/// A warning for a user who applies an object that lets no Pod go while all Pods are needed. `None` if the object lets
/// some go. `expected` are the expected Pods at this moment.
pub fn zero_budget_warning(rules: &RuleSet, expected: ExpectedPods) -> Option<String> {
    let zero_cause =
        |limits: &AvailabilityLimits| match (limits.max_unavailable, limits.min_available) {
            (Some(max @ (IntOrPercent::Int(0) | IntOrPercent::Percent(0))), _) => {
                Some((format!("maxUnavailableValue is {max}"), "raise the limit"))
            }
            (_, Some(min @ IntOrPercent::Percent(100..))) => Some((
                format!("minAvailableValue is {min}"),
                "lower minAvailableValue",
            )),
            (_, Some(min)) if expected.total > 0 && limits.desired(expected) >= expected.total => {
                Some((
                    format!(
                        "minAvailableValue is {min}, and {} Pods are expected at this moment",
                        expected.total
                    ),
                    "lower minAvailableValue, or scale up,",
                ))
            }
            _ => None,
        };
    let mut limited = rules.rules.iter().filter_map(|rule| match &rule.kind {
        RuleKind::Availability(limits) if rule.stage == Stage::PreCheck => Some((rule, limits)),
        _ => None,
    });
    let (rule, (zero_cause, remedy)) =
        limited.find_map(|(rule, limits)| Some((rule, zero_cause(limits)?)))?;
    Some(format!(
        "PodTransitionRule {}: rule {} lets no Pod go ({zero_cause}): while all of its Pods are needed, none of them can be deleted, \
         evicted or updated, so that drains, deletions and rollouts that do not make new Pods first wait; {remedy} unless this \
         is intended",
        rules.name, rule.id
    ))
}

/// All warnings for a user who applies an object. `matches` is `None` if the Pods could not be read in time.
/// `grace_delete` is as in [`enforced_condition`].
pub fn rule_warnings(
    rules: &RuleSet,
    matches: Option<&SelectorMatches>,
    grace_delete: bool,
) -> Vec<String> {
    let name = &rules.name;
    let mut warnings = Vec::new();
    if let Some(gap) = enforcement_gap(rules, grace_delete) {
        warnings.push(format!("PodTransitionRule {name}: {}", gap.message));
    }
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    match matches {
        Some(SelectorMatches::Unmanaged(pod)) => warnings.push(format!(
            "PodTransitionRule {name} holds no Pod: spec.selector matches Pods such as {pod}, and none of them carries the \
             label {key}: \"{value}\"; add the label to the Pods and to the template that they are made from"
        )),
        Some(SelectorMatches::Nothing) => warnings.push(format!(
            "PodTransitionRule {name} holds no Pod yet: spec.selector matches no Pod of namespace {}; Pods that match later \
             are held if they carry the label {key}: \"{value}\"",
            rules.namespace
        )),
        Some(SelectorMatches::FilteredOut) => {
            warnings.push(format!("PodTransitionRule {name}: {}", filtered_out_message(rules)));
        }
        Some(SelectorMatches::Managed | SelectorMatches::NotManaged) | None => {}
    }
    warnings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn rules(rules: Value) -> RuleSet {
        let object = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "selector": {}, "rules": rules },
        });
        RuleSet::compile(&serde_json::from_value(object).unwrap())
    }

    fn budget() -> Value {
        json!({ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } })
    }

    fn enforced_status(
        rules_: Value,
        namespace_state: &NamespaceState,
    ) -> (&'static str, &'static str) {
        let finding = enforced_condition(&rules(rules_), namespace_state, false);
        (finding.status, finding.reason)
    }

    #[test]
    fn excluded_namespaces_hold_nothing() {
        let excluded = [(keys::NAMESPACE_EXCLUDED.to_owned(), String::new())].into();
        assert!(exclusion_reason("shop", Some(&excluded), None).is_some());
        assert!(exclusion_reason(keys::EXCLUDED_NAMESPACES[0], None, None).is_some());
        assert!(exclusion_reason("home", None, Some("home")).is_some());
        assert_eq!(
            exclusion_reason("shop", Some(&BTreeMap::new()), Some("home")),
            None
        );
        let namespace_state = NamespaceState {
            excluded: exclusion_reason("shop", Some(&excluded), None),
            missing_enforcement: Some(NamespaceEnforcement::Ruled),
            ..NamespaceState::default()
        };
        assert_eq!(
            enforced_status(json!([budget()]), &namespace_state),
            ("False", "NamespaceExcluded")
        );
    }

    #[test]
    fn a_namespace_without_its_mark_is_not_enforced() {
        let namespace_state = NamespaceState {
            missing_enforcement: Some(NamespaceEnforcement::Strict),
            ..NamespaceState::default()
        };
        let finding = enforced_condition(&rules(json!([budget()])), &namespace_state, false);
        assert_eq!((finding.status, finding.reason), ("False", "NotEnforced"));
        assert!(
            finding
                .message
                .contains("podtransitionrule.kusionstack.io/enforced=strict"),
            "{}",
            finding.message
        );
    }

    #[test]
    fn gap_in_the_webhook_configurations_is_told_with_the_remedy() {
        let namespace_state = NamespaceState {
            unregistered: Some("ValidatingWebhookConfiguration ours does not exist".to_owned()),
            ..NamespaceState::default()
        };
        let finding = enforced_condition(&rules(json!([budget()])), &namespace_state, false);
        assert_eq!((finding.status, finding.reason), ("False", "NotRegistered"));
        assert!(
            finding.message.contains("ours does not exist")
                && finding.message.contains(
                    "`operating install` with the flags of the first time (`--webhook-url`"
                ),
            "{}",
            finding.message
        );
    }

    #[test]
    fn only_a_budget_is_said_to_hold_deletions() {
        let namespace_state = NamespaceState::default();
        let labels =
            json!({ "name": "l", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } });
        let ask =
            json!({ "name": "w", "webhook": { "clientConfig": { "url": "https://example.com" } } });
        let mut disabled = budget();
        disabled["disabled"] = json!(true);
        let mut post = budget();
        post["stage"] = json!("PostCheck");
        for (rules, status, reason) in [
            (json!([budget()]), "True", "Enforced"),
            (json!([budget(), labels.clone()]), "True", "Enforced"),
            (json!([]), "False", "NoRules"),
            (json!([disabled.clone()]), "False", "NoRules"),
            (json!([post.clone()]), "False", "NoRules"),
            (json!([labels]), "True", "LifecycleOnly"),
            (json!([ask, post, disabled]), "True", "LifecycleOnly"),
            (json!([{ "name": "a" }]), "False", "Invalid"),
        ] {
            assert_eq!(
                enforced_status(rules.clone(), &namespace_state),
                (status, reason),
                "{rules}"
            );
        }
    }

    #[test]
    fn deletions_are_operations_only_under_the_gate() {
        let labels =
            json!({ "name": "l", "labelCheck": { "requires": { "matchLabels": { "a": "b" } } } });
        let unreadable = json!({ "name": "l", "labelCheck": { "requires": 5 } });
        let message = |rule: &Value, gate| {
            enforced_condition(&rules(json!([rule])), &NamespaceState::default(), gate).message
        };
        let mut at_the_end = labels.clone();
        at_the_end["stage"] = json!("PostCheck");
        assert_eq!(message(&at_the_end, true), message(&at_the_end, false));
        for rule in [labels, unreadable] {
            let message = |gate| message(&rule, gate);
            let (without, with) = (message(false), message(true));
            assert!(
                without.contains("deletions and evictions are not held"),
                "{without}"
            );
            assert!(
                with.contains("of Pods with the readiness gate")
                    && with.contains("those of other Pods are not held"),
                "{with}"
            );
        }
    }

    #[test]
    fn matched_condition_reports_why_no_pod_is_covered() {
        let set = rules(json!([budget()]));
        let status_and_reason = |matches: SelectorMatches| {
            let finding = matched_condition(&set, &matches);
            (finding.status, finding.reason)
        };
        assert_eq!(
            status_and_reason(SelectorMatches::Managed),
            ("True", "PodsMatched")
        );
        assert_eq!(
            status_and_reason(SelectorMatches::Nothing),
            ("False", "NoPodsMatched")
        );
        assert_eq!(
            status_and_reason(SelectorMatches::NotManaged),
            ("False", "NoPodsMatched")
        );
        let unmanaged = SelectorMatches::Unmanaged("web-0".to_owned());
        assert_eq!(
            status_and_reason(unmanaged.clone()),
            ("False", "NoManagedPods")
        );
        let warnings = rule_warnings(&set, Some(&unmanaged), false);
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("web-0")
                && warnings[0].contains("kusionstack.io/control: \"true\""),
            "{warnings:?}"
        );
    }

    #[test]
    fn filter_matching_no_selected_pod_is_reported_with_rule() {
        let set = rules(json!([{
            "name": "front", "filter": { "labelSelector": { "matchLabels": { "tier": "frnt" } } },
            "availablePolicy": { "maxUnavailableValue": 1 },
        }]));
        let finding = matched_condition(&set, &SelectorMatches::FilteredOut);
        assert_eq!(
            (finding.status, finding.reason),
            ("False", "FilterMatchesNothing")
        );
        let warnings = rule_warnings(&set, Some(&SelectorMatches::FilteredOut), false);
        for text in [&finding.message, &warnings[0]] {
            assert!(
                text.contains("no deletion or eviction is held by a budget")
                    && text.contains("(front)"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_rule_that_matches_and_limits_is_not_warned_of() {
        assert_eq!(
            rule_warnings(
                &rules(json!([budget()])),
                Some(&SelectorMatches::Managed),
                false
            ),
            [""; 0]
        );
        assert_eq!(
            rule_warnings(&rules(json!([budget()])), None, false),
            [""; 0]
        );
        assert_eq!(
            rule_warnings(&rules(json!([])), Some(&SelectorMatches::Nothing), false).len(),
            2
        );
    }

    #[test]
    fn rule_that_lets_no_pod_go_is_warned_of() {
        let warning = |policy: Value, expected: u32| {
            let set = rules(json!([{ "name": "none", "availablePolicy": policy }]));
            zero_budget_warning(&set, expected.into())
        };
        for (policy, expected, part, remedy) in [
            (
                json!({ "maxUnavailableValue": 0 }),
                0,
                "(maxUnavailableValue is 0)",
                "raise the limit unless",
            ),
            (
                json!({ "maxUnavailableValue": "0%" }),
                9,
                "(maxUnavailableValue is 0%)",
                "raise the limit unless",
            ),
            (
                json!({ "minAvailableValue": "100%" }),
                9,
                "(minAvailableValue is 100%)",
                "lower minAvailableValue unless",
            ),
            (
                json!({ "minAvailableValue": 5 }),
                5,
                "5, and 5 Pods are expected",
                "lower minAvailableValue, or scale up, unless",
            ),
            (
                json!({ "minAvailableValue": 5 }),
                3,
                "5, and 3 Pods are expected",
                "lower minAvailableValue, or scale up, unless",
            ),
        ] {
            let text = warning(policy.clone(), expected).unwrap_or_default();
            assert!(
                text.contains(part)
                    && text.contains("rule none lets no Pod go")
                    && text.contains(remedy),
                "{policy}: {text}"
            );
        }
        for (policy, expected) in [
            (json!({ "maxUnavailableValue": 1 }), 1),
            (json!({ "maxUnavailableValue": "1%" }), 1),
            (json!({ "minAvailableValue": "99%" }), 10),
            (json!({ "minAvailableValue": 5 }), 6),
            (json!({ "minAvailableValue": 5 }), 0),
        ] {
            assert_eq!(warning(policy.clone(), expected), None, "{policy}");
        }
        let mut post = budget();
        post["stage"] = json!("PostCheck");
        assert_eq!(zero_budget_warning(&rules(json!([post])), 5.into()), None);
    }

    #[test]
    fn owner_whose_template_is_not_selected_is_named() {
        assert_eq!(partly_matched_condition(Vec::new()), None);
        let finding = partly_matched_condition(vec!["ReplicaSet web-1".to_owned()]).unwrap();
        assert_eq!(
            (finding.status, finding.reason),
            ("True", "TemplateNotMatched")
        );
        assert!(
            finding
                .message
                .contains("fewer Pods of ReplicaSet web-1 are selected"),
            "{}",
            finding.message
        );
    }

    #[test]
    fn owners_without_scale_are_named_where_a_budget_counts_them() {
        let budget = rules(json!([budget()]));
        let check = rules(json!([{ "name": "check", "labelCheck": { "requires": {} } }]));
        let owners = |n: usize| (0..n).rev().map(|n| format!("Game g{n}")).collect();
        let silent = |n| UnknownReplicasOwners {
            unknown: owners(n),
            ..UnknownReplicasOwners::default()
        };
        assert_eq!(expected_known_condition(&budget, silent(0)), None);
        assert_eq!(expected_known_condition(&check, silent(1)), None);
        let finding = expected_known_condition(&budget, silent(5)).unwrap();
        assert_eq!(
            (finding.status, finding.reason),
            ("False", "ExpectedUnknown")
        );
        let subjects = "Game g0, Game g1, Game g2 and others have no";
        assert!(finding.message.starts_with(subjects), "{}", finding.message);
        let finding = expected_known_condition(&budget, silent(1)).unwrap();
        assert!(
            finding.message.starts_with("Game g0 has no scale"),
            "{}",
            finding.message
        );
    }

    #[test]
    fn pods_without_any_owner_are_told_with_the_way_out() {
        let by_count = json!([{ "name": "a", "availablePolicy": { "minAvailableValue": 2 } }]);
        let ownerless = || UnknownReplicasOwners {
            ownerless: true,
            ..UnknownReplicasOwners::default()
        };
        let by_percent =
            json!([{ "name": "a", "availablePolicy": { "minAvailableValue": "50%" } }]);
        for (set, warned) in [
            (json!([budget()]), true),
            (by_percent, true),
            (by_count, false),
        ] {
            let set = rules(set);
            let finding = expected_known_condition(&set, ownerless()).unwrap();
            assert_eq!(
                (finding.status, finding.reason),
                ("False", "ExpectedUnknown")
            );
            assert!(
                finding
                    .message
                    .starts_with("none of the selected Pods has an owner")
                    && finding.message.contains("minAvailableValue"),
                "{}",
                finding.message
            );
            assert_eq!(
                expected_unknown_warning(&set, ownerless()).is_some(),
                warned,
                "{}",
                finding.message
            );
            assert_eq!(
                expected_unknown_warning(&set, UnknownReplicasOwners::default()),
                None
            );
        }
        let check = rules(json!([{ "name": "check", "labelCheck": { "requires": {} } }]));
        assert_eq!(expected_known_condition(&check, ownerless()), None);
    }

    #[test]
    fn owners_that_set_no_replicas_are_named_first() {
        let budget = rules(json!([budget()]));
        let mut owners = UnknownReplicasOwners {
            unset: vec!["Rollout web".to_owned()],
            unknown: vec!["Game g".to_owned()],
            ..UnknownReplicasOwners::default()
        };
        assert!(owners.denies_all());
        let finding = expected_known_condition(&budget, owners.clone()).unwrap();
        assert_eq!(
            (finding.status, finding.reason),
            ("False", "ReplicasNotSet")
        );
        assert!(
            finding.message.contains("of Rollout web has"),
            "{}",
            finding.message
        );
        owners.unreadable = vec!["Game h can't be read: HTTP 403 at /apis".to_owned()];
        let finding = expected_known_condition(&budget, owners.clone()).unwrap();
        assert_eq!(
            (finding.status, finding.reason),
            ("False", "OwnerUnreadable")
        );
        assert!(
            finding
                .message
                .contains("Game h can't be read: HTTP 403 at /apis")
                && finding.message.contains("take the owner reference off"),
            "{}",
            finding.message
        );
        let unknown = UnknownReplicasOwners {
            unknown: owners.unknown,
            ..UnknownReplicasOwners::default()
        };
        assert!(!unknown.denies_all());
    }
}
