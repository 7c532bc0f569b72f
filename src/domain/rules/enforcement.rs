//! The namespace enforcement label, by which the webhooks select namespaces.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::RuleSet;
use crate::api::keys;

/// The value of the label [`keys::NAMESPACE_ENFORCEMENT`]. A larger value makes the API server send more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NamespaceEnforcement {
    /// The label is absent: the namespace has no rule.
    #[default]
    Unruled,
    /// The namespace has rules.
    Ruled,
    /// A rule of the namespace holds unavailable Pods too.
    Strict,
}

impl NamespaceEnforcement {
    /// Reads the labels of a namespace. An unknown value, from another version, counts as [`Self::Ruled`].
    pub fn from_labels(labels: &BTreeMap<String, String>) -> NamespaceEnforcement {
        match labels.get(keys::NAMESPACE_ENFORCEMENT).map(String::as_str) {
            None => NamespaceEnforcement::Unruled,
            Some(keys::NAMESPACE_ENFORCEMENT_STRICT) => NamespaceEnforcement::Strict,
            Some(_) => NamespaceEnforcement::Ruled,
        }
    }

    /// The value that these rules need.
    pub fn for_rules<'a>(rules: impl IntoIterator<Item = &'a RuleSet>) -> NamespaceEnforcement {
        let needed = |set: &RuleSet| {
            if set.may_hold_unavailable() {
                NamespaceEnforcement::Strict
            } else {
                NamespaceEnforcement::Ruled
            }
        };
        rules.into_iter().map(needed).max().unwrap_or_default()
    }

    /// The value of the label. `None` if the label is absent.
    pub const fn label_value(self) -> Option<&'static str> {
        match self {
            NamespaceEnforcement::Unruled => None,
            NamespaceEnforcement::Ruled => Some("true"),
            NamespaceEnforcement::Strict => Some(keys::NAMESPACE_ENFORCEMENT_STRICT),
        }
    }
}

/// One version of a namespace, with its enforcement label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNamespace {
    /// UID, not empty.
    pub uid: String,
    /// resourceVersion, not 0.
    pub version: u64,
    /// The namespace enforcement label.
    pub enforcement: NamespaceEnforcement,
}

impl ObservedNamespace {
    /// Reads a namespace. `None` without a UID or a resourceVersion, because a patch without a resourceVersion would be
    /// unconditional.
    pub fn new(
        uid: &str,
        version: u64,
        labels: &BTreeMap<String, String>,
    ) -> Option<ObservedNamespace> {
        let is_known = !uid.is_empty() && version > 0;
        is_known.then(|| ObservedNamespace {
            uid: uid.to_owned(),
            version,
            enforcement: NamespaceEnforcement::from_labels(labels),
        })
    }

    /// A merge patch that sets the enforcement label. The API server applies it only to this version of the namespace,
    /// and answers 409 if the namespace has changed.
    pub fn label_patch(&self, enforcement: NamespaceEnforcement) -> Value {
        let mut metadata = self.version_precondition(enforcement);
        if enforcement == NamespaceEnforcement::Unruled {
            metadata.insert(
                "annotations".to_owned(),
                json!({ (keys::RULE_ADMITTED): null }),
            );
        }
        json!({ "metadata": metadata })
    }

    fn version_precondition(&self, enforcement: NamespaceEnforcement) -> Map<String, Value> {
        [
            ("uid", json!(self.uid)),
            ("resourceVersion", json!(self.version.to_string())),
            (
                "labels",
                json!({ (keys::NAMESPACE_ENFORCEMENT): enforcement.label_value() }),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
    }
}

/// A merge patch of the namespace, before a rule that needs `enforcement` is stored. It always changes the namespace,
/// because `stamp` is different each time.
///
/// If `observed` has a lower enforcement label, the patch sets the label and is conditional on the version of
/// `observed`. Another replica may set a higher label at the same time, and this patch must not lower it. Otherwise the
/// patch is unconditional, and the API server's answer shows the label.
pub fn admission_patch(
    observed: Option<&ObservedNamespace>,
    enforcement: NamespaceEnforcement,
    stamp: &str,
) -> Value {
    let lower = observed.filter(|observed| observed.enforcement < enforcement);
    let mut metadata = lower.map_or_else(Map::new, |observed| {
        observed.version_precondition(enforcement)
    });
    metadata.insert(
        "annotations".to_owned(),
        json!({ (keys::RULE_ADMITTED): stamp }),
    );
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn rules(policy: Option<&str>, disabled: bool) -> RuleSet {
        let object = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule", "metadata": { "name": "web" },
            "spec": { "selector": {}, "rules": [{
                "name": "a", "disabled": disabled,
                "availablePolicy": { "maxUnavailableValue": 1, "unhealthyPodPolicy": policy },
            }] },
        });
        RuleSet::compile(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn strictest_rule_decides() {
        let always = || rules(Some("AlwaysAllow"), false);
        let healthy = || rules(Some("IfHealthyBudget"), false);
        assert_eq!(
            NamespaceEnforcement::for_rules(&[]),
            NamespaceEnforcement::Unruled
        );
        assert_eq!(
            NamespaceEnforcement::for_rules(&[rules(None, false), always()]),
            NamespaceEnforcement::Ruled
        );
        assert_eq!(
            NamespaceEnforcement::for_rules(&[healthy(), always()]),
            NamespaceEnforcement::Strict
        );
        let disabled = rules(Some("IfHealthyBudget"), true);
        assert_eq!(
            NamespaceEnforcement::for_rules(&[disabled]),
            NamespaceEnforcement::Ruled
        );
    }

    #[test]
    fn enforcement_label_round_trips() {
        for enforcement in [
            NamespaceEnforcement::Unruled,
            NamespaceEnforcement::Ruled,
            NamespaceEnforcement::Strict,
        ] {
            let label = enforcement
                .label_value()
                .map(|v| (keys::NAMESPACE_ENFORCEMENT, v));
            let labels = label.map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert_eq!(
                NamespaceEnforcement::from_labels(&labels.into_iter().collect()),
                enforcement
            );
        }
        let newer = [(keys::NAMESPACE_ENFORCEMENT.to_owned(), "newer".to_owned())];
        assert_eq!(
            NamespaceEnforcement::from_labels(&newer.into()),
            NamespaceEnforcement::Ruled
        );
    }

    fn labelled_namespace(enforcement: NamespaceEnforcement) -> ObservedNamespace {
        let label = enforcement
            .label_value()
            .map(|v| (keys::NAMESPACE_ENFORCEMENT, v));
        let labels = label.map(|(k, v)| (k.to_owned(), v.to_owned()));
        ObservedNamespace::new("u", 7, &labels.into_iter().collect()).unwrap()
    }

    #[test]
    fn namespace_without_version_is_not_observed() {
        assert_eq!(ObservedNamespace::new("", 7, &BTreeMap::new()), None);
        assert_eq!(ObservedNamespace::new("u", 0, &BTreeMap::new()), None);
    }

    #[test]
    fn admission_raises_enforcement_conditionally_and_never_lowers_it() {
        let stamped = json!({ "metadata": { "annotations": { (keys::RULE_ADMITTED): "now" } } });
        for (stored, enforcement) in [
            (None, NamespaceEnforcement::Ruled),
            (None, NamespaceEnforcement::Strict),
            (
                Some(labelled_namespace(NamespaceEnforcement::Ruled)),
                NamespaceEnforcement::Ruled,
            ),
            (
                Some(labelled_namespace(NamespaceEnforcement::Strict)),
                NamespaceEnforcement::Ruled,
            ),
            (
                Some(labelled_namespace(NamespaceEnforcement::Strict)),
                NamespaceEnforcement::Strict,
            ),
        ] {
            assert_eq!(
                admission_patch(stored.as_ref(), enforcement, "now"),
                stamped,
                "{stored:?}"
            );
        }
        for (stored, enforcement) in [
            (NamespaceEnforcement::Unruled, NamespaceEnforcement::Ruled),
            (NamespaceEnforcement::Unruled, NamespaceEnforcement::Strict),
            (NamespaceEnforcement::Ruled, NamespaceEnforcement::Strict),
        ] {
            let raised = json!({ "metadata": {
                "uid": "u", "resourceVersion": "7",
                "labels": { (keys::NAMESPACE_ENFORCEMENT): enforcement.label_value() },
                "annotations": { (keys::RULE_ADMITTED): "now" },
            } });
            assert_eq!(
                admission_patch(Some(&labelled_namespace(stored)), enforcement, "now"),
                raised
            );
        }
    }

    #[test]
    fn every_change_of_enforcement_is_conditional() {
        for enforcement in [
            NamespaceEnforcement::Unruled,
            NamespaceEnforcement::Ruled,
            NamespaceEnforcement::Strict,
        ] {
            let patch = labelled_namespace(NamespaceEnforcement::Strict).label_patch(enforcement);
            let metadata = &patch["metadata"];
            assert_eq!(
                (&metadata["uid"], &metadata["resourceVersion"]),
                (&json!("u"), &json!("7"))
            );
            assert_eq!(
                metadata["labels"][keys::NAMESPACE_ENFORCEMENT],
                json!(enforcement.label_value())
            );
            let stamp = metadata.get("annotations").map(|a| &a[keys::RULE_ADMITTED]);
            assert_eq!(
                stamp,
                (enforcement == NamespaceEnforcement::Unruled).then_some(&Value::Null)
            );
        }
    }
}
