//! Checks whether the API server sends all requests that the rules hold to the server, by comparing the stored webhook
//! configurations with the required ones.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, RuleWithOperations};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use crate::api::selector::Selector;

/// The remedy for a gap in the webhook configurations.
pub const CONFIGURATION_REMEDY: &str = "restore the webhook configurations with the command that installed them: `operating install` with the flags of \
     the first time (`--webhook-url` where the server runs outside the cluster), or `kubectl apply -k manifests`";

/// A ValidatingWebhookConfiguration or MutatingWebhookConfiguration, with the fields that decide which requests are
/// sent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct WebhookConfiguration {
    /// The webhooks of the configuration.
    pub webhooks: Vec<ConfiguredWebhook>,
}

/// One webhook of a configuration. Absent fields have the API server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfiguredWebhook {
    /// Fully qualified name.
    pub name: String,
    failure_policy: Option<String>,
    namespace_selector: LabelSelector,
    object_selector: LabelSelector,
    match_conditions: Vec<MatchCondition>,
    rules: Vec<RuleWithOperations>,
    client_config: Value,
}

impl WebhookConfiguration {
    /// The `clientConfig` of each webhook.
    pub fn client_configs(&self) -> impl Iterator<Item = &Value> {
        self.webhooks.iter().map(|hook| &hook.client_config)
    }
}

/// A configuration that the rules need, with those of its webhooks that hold Pods.
#[derive(Clone, Debug, PartialEq)]
pub struct RequiredConfiguration {
    /// `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
    pub kind: &'static str,
    /// Name of the object.
    pub name: &'static str,
    webhooks: Vec<ConfiguredWebhook>,
}

impl RequiredConfiguration {
    /// Reads a configuration that the server would install. Keeps only the webhooks that get requests about Pods and
    /// have the failurePolicy `Fail`, because budgets depend on no others.
    ///
    /// # Errors
    /// If `object` is not a webhook configuration.
    pub fn from_installed(
        kind: &'static str,
        name: &'static str,
        object: Value,
    ) -> serde_json::Result<RequiredConfiguration> {
        let mut configuration: WebhookConfiguration = serde_json::from_value(object)?;
        configuration
            .webhooks
            .retain(|hook| !hook.fails_open() && hook.sees_pods());
        Ok(RequiredConfiguration {
            kind,
            name,
            webhooks: configuration.webhooks,
        })
    }

    /// Requests of a namespace with these labels that the stored configuration does not send: a clause that names the
    /// first gap. `stored` is `None` if the configuration does not exist. The result is `None` if all requests are
    /// sent.
    pub fn configuration_gap(
        &self,
        stored: Option<&WebhookConfiguration>,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        let RequiredConfiguration { kind, name, .. } = self;
        let mut needed_hooks = self.webhooks.iter().filter(|hook| hook.selects(labels));
        let Some(stored) = stored else {
            return needed_hooks
                .next()
                .map(|_| format!("{kind} {name} does not exist"));
        };
        needed_hooks.find_map(|needed| {
            let hook = &needed.name;
            let Some(stored_hook) = stored
                .webhooks
                .iter()
                .find(|stored_hook| stored_hook.name == *hook)
            else {
                return Some(format!("{kind} {name} has no webhook {hook}"));
            };
            let gap = needed.missing_in_stored(stored_hook, labels)?;
            Some(format!("webhook {hook} of {kind} {name} {gap}"))
        })
    }
}

impl ConfiguredWebhook {
    fn fails_open(&self) -> bool {
        self.failure_policy.as_deref() == Some("Ignore")
    }

    fn sees_pods(&self) -> bool {
        let resources = self.rules.iter().filter_map(|rule| rule.resources.as_ref());
        resources
            .flatten()
            .any(|resource| resource == "pods" || resource.starts_with("pods/"))
    }

    /// Whether the namespace selector matches these labels. An unreadable selector counts as matching, because the API
    /// server does not store such a selector.
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        Selector::compile(&self.namespace_selector).map_or(true, |s| s.matches(labels))
    }

    /// Requests of a namespace that this webhook sends and the `stored` one does not.
    fn missing_in_stored(
        &self,
        stored: &ConfiguredWebhook,
        labels: &BTreeMap<String, String>,
    ) -> Option<String> {
        if stored.fails_open() {
            return Some(
                "has failurePolicy Ignore, so that requests pass while no server answers"
                    .to_owned(),
            );
        }
        if !stored.selects(labels) {
            return Some("does not select the namespace (namespaceSelector)".to_owned());
        }
        let everything = LabelSelector::default();
        if stored.object_selector != everything && stored.object_selector != self.object_selector {
            return Some("has another objectSelector, which may leave out Pods".to_owned());
        }
        if let Some(missing) = self
            .rules
            .iter()
            .find_map(|rule| first_uncovered_request(rule, stored))
        {
            return Some(missing);
        }
        let is_needed = |condition: &&MatchCondition| {
            let mut needed_conditions = self.match_conditions.iter();
            needed_conditions.any(|needed| needed.expression.trim() == condition.expression.trim())
        };
        let unknown_condition = stored.match_conditions.iter().find(|c| !is_needed(c))?;
        Some(format!(
            "has a matchCondition {} of another text, which may leave out requests",
            unknown_condition.name
        ))
    }
}

/// The first request of a rule that no rule of the stored webhook covers.
fn first_uncovered_request(
    rule: &RuleWithOperations,
    stored: &ConfiguredWebhook,
) -> Option<String> {
    let values = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let covered = |operation: &str, resource: &str| {
        stored.rules.iter().any(|stored_rule| {
            contains_or_wildcard(&stored_rule.operations, operation)
                && values(&rule.api_groups)
                    .iter()
                    .all(|group| contains_or_wildcard(&stored_rule.api_groups, group))
                && values(&rule.api_versions)
                    .iter()
                    .all(|version| contains_or_wildcard(&stored_rule.api_versions, version))
                && values(&stored_rule.resources)
                    .iter()
                    .any(|pattern| resource_covers(pattern, resource))
                && matches!(
                    stored_rule.scope.as_deref(),
                    None | Some("*" | "Namespaced")
                )
        })
    };
    let operations = values(&rule.operations);
    values(&rule.resources).into_iter().find_map(|resource| {
        let mut operations = operations.iter();
        let operation = operations.find(|operation| !covered(operation, &resource))?;
        Some(format!(
            "does not ask for {operation} of {resource} (rules)"
        ))
    })
}

fn contains_or_wildcard(list: &Option<Vec<String>>, value: &str) -> bool {
    let mut list = list.iter().flatten();
    list.any(|item| item == "*" || item == value)
}

/// Whether an entry of `resources` covers a resource. `*` covers every resource without subresources, `*/*` covers all
/// resources and subresources, `pods/*` all subresources of Pods, `*/scale` the subresource of every resource
/// (`RuleWithOperations` in the Kubernetes API).
fn resource_covers(pattern: &str, resource: &str) -> bool {
    let (resource_name, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    match pattern.split_once('/') {
        None => subresource.is_empty() && (pattern == "*" || pattern == resource_name),
        Some(("*", "*")) => true,
        Some((main_pattern, sub_pattern)) => {
            (main_pattern == "*" || main_pattern == resource_name)
                && !subresource.is_empty()
                && (sub_pattern == "*" || sub_pattern == subresource)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    const KIND: &str = "ValidatingWebhookConfiguration";

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(owned).collect()
    }

    /// Two webhooks that hold Pods, the second only in strict namespaces, and two that do not.
    fn installed() -> Value {
        let hook = |name: &str, policy: &str, value: Option<&str>, resources: Value| {
            let operator = if value.is_some() { "In" } else { "Exists" };
            let values = value.map(|value| [value]);
            json!({
                "name": name, "failurePolicy": policy,
                "namespaceSelector": { "matchExpressions": [{ "key": "enforced", "operator": operator, "values": values }] },
                "objectSelector": { "matchLabels": { "control": "true" } },
                "matchConditions": [{ "name": "fresh", "expression": "a == b" }],
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE", "DELETE"],
                            "resources": resources, "scope": "Namespaced" }],
            })
        };
        json!({ "webhooks": [
            hook("delete", "Fail", None, json!(["pods", "pods/resize"])),
            hook("strict", "Fail", Some("strict"), json!(["pods"])),
            hook("status", "Ignore", None, json!(["pods/status"])),
            hook("rules", "Fail", None, json!(["podtransitionrules"])),
        ] })
    }

    /// The gap after a JSON merge patch of one webhook, in a namespace whose label `enforced` has the value `label_value`.
    fn gap(entry: usize, patch: Value, label_value: &str) -> Option<String> {
        let needed = RequiredConfiguration::from_installed(KIND, "ours", installed()).unwrap();
        let mut stored = installed();
        json_patch::merge(&mut stored["webhooks"][entry], &patch);
        let stored = serde_json::from_value(stored).unwrap();
        needed.configuration_gap(Some(&stored), &labels(&[("enforced", label_value)]))
    }

    #[test]
    fn installed_configuration_has_no_gap() {
        assert_eq!(gap(0, json!({}), "true"), None);
        assert_eq!(gap(0, json!({}), "strict"), None);
    }

    #[test]
    fn deleted_configuration_is_named() {
        let needed = RequiredConfiguration::from_installed(KIND, "ours", installed()).unwrap();
        let gap_text = needed.configuration_gap(None, &labels(&[("enforced", "true")]));
        assert_eq!(
            gap_text.unwrap(),
            "ValidatingWebhookConfiguration ours does not exist"
        );
        assert_eq!(
            needed.configuration_gap(None, &labels(&[])),
            None,
            "nothing is needed"
        );
        let gap_text = gap(0, json!({ "name": "mutating-pod" }), "true").unwrap();
        assert_eq!(
            gap_text,
            "ValidatingWebhookConfiguration ours has no webhook delete"
        );
    }

    #[test]
    fn entry_that_sends_less_is_named_with_the_field() {
        let fewer_operations = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                                 "resources": ["pods", "pods/resize"] }]);
        for (patch, part) in [
            (json!({ "failurePolicy": "Ignore" }), "failurePolicy Ignore"),
            (
                json!({ "namespaceSelector": { "matchLabels": { "team": "a" } } }),
                "(namespaceSelector)",
            ),
            (
                json!({ "objectSelector": { "matchLabels": { "team": "a" } } }),
                "objectSelector",
            ),
            (
                json!({ "matchConditions": [{ "name": "night", "expression": "false" }] }),
                "matchCondition night",
            ),
            (
                json!({ "rules": fewer_operations }),
                "DELETE of pods (rules)",
            ),
            (json!({ "rules": [] }), "UPDATE of pods (rules)"),
        ] {
            let gap_text = gap(0, patch.clone(), "true").unwrap_or_default();
            let head = "webhook delete of ValidatingWebhookConfiguration ours ";
            assert!(
                gap_text.starts_with(head) && gap_text.contains(part),
                "{patch}: {gap_text}"
            );
        }
    }

    #[test]
    fn entry_that_sends_more_is_no_gap() {
        let everything = json!([{ "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"],
                           "scope": "*" }]);
        let parts = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
                             "resources": ["*", "pods/*"] }]);
        for patch in [
            json!({ "rules": everything }),
            json!({ "rules": parts }),
            json!({ "objectSelector": { "matchLabels": null } }),
            json!({ "matchConditions": null }),
            json!({ "namespaceSelector": { "matchExpressions": null } }),
            json!({ "failurePolicy": null }),
        ] {
            assert_eq!(gap(0, patch.clone(), "true"), None, "{patch}");
        }
    }

    #[test]
    fn entries_that_the_namespace_does_not_need_are_ignored() {
        let renamed = json!({ "name": "other" });
        assert_eq!(gap(1, renamed.clone(), "true"), None);
        assert!(gap(1, renamed.clone(), "strict").is_some());
        assert_eq!(gap(2, renamed.clone(), "true"), None);
        assert_eq!(gap(3, renamed, "true"), None);
    }
}
