//! What the label of a namespace says of the rules in it: the webhooks select by it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::RuleSet;
use crate::api::keys;

/// The label [`keys::NAMESPACE_HAS_RULES`], the larger the more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mark {
    /// Absent: no rule.
    #[default]
    Unruled,
    /// There are rules.
    Ruled,
    /// One of them holds unavailable Pods too.
    Strict,
}

impl Mark {
    /// Read off the labels of a namespace. A value of another version marks rules.
    pub fn of(labels: &BTreeMap<String, String>) -> Mark {
        match labels.get(keys::NAMESPACE_HAS_RULES).map(String::as_str) {
            None => Mark::Unruled,
            Some(keys::NAMESPACE_HAS_STRICT_RULES) => Mark::Strict,
            Some(_) => Mark::Ruled,
        }
    }

    /// What these rules need.
    pub fn for_rules<'a>(rules: impl IntoIterator<Item = &'a RuleSet>) -> Mark {
        let one = |set: &RuleSet| {
            if set.holds_unavailable() {
                Mark::Strict
            } else {
                Mark::Ruled
            }
        };
        rules.into_iter().map(one).max().unwrap_or_default()
    }

    /// Value of the label; `None` without one.
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Mark::Unruled => None,
            Mark::Ruled => Some("true"),
            Mark::Strict => Some(keys::NAMESPACE_HAS_STRICT_RULES),
        }
    }
}

/// A namespace at one version, with the mark that it has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// UID, not empty.
    pub uid: String,
    /// resourceVersion, not 0.
    pub version: u64,
    /// The mark.
    pub mark: Mark,
}

impl Seen {
    /// `None` without a UID or a resourceVersion: a patch without a resourceVersion would be unconditional.
    pub fn new(uid: &str, version: u64, labels: &BTreeMap<String, String>) -> Option<Seen> {
        let is_known = !uid.is_empty() && version > 0;
        is_known.then(|| Seen {
            uid: uid.to_owned(),
            version,
            mark: Mark::of(labels),
        })
    }

    /// A merge patch that gives the namespace this mark. The API server applies it to this version alone, and answers 409
    /// if the namespace has another one.
    pub fn change(&self, mark: Mark) -> Value {
        let mut metadata = self.condition(mark);
        if mark == Mark::Unruled {
            metadata.insert(
                "annotations".to_owned(),
                json!({ (keys::RULE_ADMITTED): null }),
            );
        }
        json!({ "metadata": metadata })
    }

    fn condition(&self, mark: Mark) -> Map<String, Value> {
        [
            ("uid", json!(self.uid)),
            ("resourceVersion", json!(self.version.to_string())),
            (
                "labels",
                json!({ (keys::NAMESPACE_HAS_RULES): mark.value() }),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
    }
}

/// A merge patch before a rule is stored that needs `mark`: it always changes the namespace, by a `stamp` that is
/// different each time.
///
/// It sets the mark if `known` has a smaller one, and then the API server applies it to this version alone: another
/// replica may set a larger mark at the same time, which must not be lowered. Otherwise the patch is unconditional, and the
/// answer tells the mark.
pub fn admission(known: Option<&Seen>, mark: Mark, stamp: &str) -> Value {
    let raised = known.filter(|known| known.mark < mark);
    let mut metadata = raised.map_or_else(Map::new, |known| known.condition(mark));
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
    fn the_strictest_rule_decides() {
        let always = || rules(Some("AlwaysAllow"), false);
        let healthy = || rules(Some("IfHealthyBudget"), false);
        assert_eq!(Mark::for_rules(&[]), Mark::Unruled);
        assert_eq!(
            Mark::for_rules(&[rules(None, false), always()]),
            Mark::Ruled
        );
        assert_eq!(Mark::for_rules(&[healthy(), always()]), Mark::Strict);
        let disabled = rules(Some("IfHealthyBudget"), true);
        assert_eq!(Mark::for_rules(&[disabled]), Mark::Ruled);
    }

    #[test]
    fn a_mark_reads_as_it_is_written() {
        for mark in [Mark::Unruled, Mark::Ruled, Mark::Strict] {
            let label = mark.value().map(|v| (keys::NAMESPACE_HAS_RULES, v));
            let labels = label.map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert_eq!(Mark::of(&labels.into_iter().collect()), mark);
        }
        let newer = [(keys::NAMESPACE_HAS_RULES.to_owned(), "newer".to_owned())];
        assert_eq!(Mark::of(&newer.into()), Mark::Ruled);
    }

    fn seen(mark: Mark) -> Seen {
        let label = mark.value().map(|v| (keys::NAMESPACE_HAS_RULES, v));
        let labels = label.map(|(k, v)| (k.to_owned(), v.to_owned()));
        Seen::new("u", 7, &labels.into_iter().collect()).unwrap()
    }

    #[test]
    fn namespace_without_version_is_not_seen() {
        assert_eq!(Seen::new("", 7, &BTreeMap::new()), None);
        assert_eq!(Seen::new("u", 0, &BTreeMap::new()), None);
    }

    #[test]
    fn admission_raises_the_mark_on_condition_and_never_lowers_it() {
        let stamped = json!({ "metadata": { "annotations": { (keys::RULE_ADMITTED): "now" } } });
        for (known, mark) in [
            (None, Mark::Ruled),
            (None, Mark::Strict),
            (Some(seen(Mark::Ruled)), Mark::Ruled),
            (Some(seen(Mark::Strict)), Mark::Ruled),
            (Some(seen(Mark::Strict)), Mark::Strict),
        ] {
            assert_eq!(admission(known.as_ref(), mark, "now"), stamped, "{known:?}");
        }
        for (known, mark) in [
            (Mark::Unruled, Mark::Ruled),
            (Mark::Unruled, Mark::Strict),
            (Mark::Ruled, Mark::Strict),
        ] {
            let raised = json!({ "metadata": {
                "uid": "u", "resourceVersion": "7",
                "labels": { (keys::NAMESPACE_HAS_RULES): mark.value() },
                "annotations": { (keys::RULE_ADMITTED): "now" },
            } });
            assert_eq!(admission(Some(&seen(known)), mark, "now"), raised);
        }
    }

    #[test]
    fn every_change_of_the_mark_is_conditional() {
        for mark in [Mark::Unruled, Mark::Ruled, Mark::Strict] {
            let patch = seen(Mark::Strict).change(mark);
            let metadata = &patch["metadata"];
            assert_eq!(
                (&metadata["uid"], &metadata["resourceVersion"]),
                (&json!("u"), &json!("7"))
            );
            assert_eq!(
                metadata["labels"][keys::NAMESPACE_HAS_RULES],
                json!(mark.value())
            );
            let stamp = metadata.get("annotations").map(|a| &a[keys::RULE_ADMITTED]);
            assert_eq!(stamp, (mark == Mark::Unruled).then_some(&Value::Null));
        }
    }
}
