//! Compiled PodTransitionRules: which rules apply to a Pod, and what each rule demands.
//!
//! # Example
//!
//! How many of ten Pods must stay available:
//!
//! ```
//! use operating::api::podtransitionrule::PodTransitionRule;
//! use operating::domain::rules::RuleSet;
//!
//! let text = "
//! apiVersion: apps.kusionstack.io/v1alpha1
//! kind: PodTransitionRule
//! metadata: { name: web, namespace: shop }
//! spec:
//!   selector: { matchLabels: { app: web } }
//!   rules:
//!     - name: availability
//!       availablePolicy: { maxUnavailableValue: 25% }
//! ";
//! let object: PodTransitionRule = serde_norway::from_str(text)?;
//! let rules = RuleSet::compile(&object);
//! let desired: Vec<u32> = rules.availability_limits().map(|limits| limits.desired(10)).collect();
//! // 25% of ten Pods is rounded up: three Pods may be unavailable.
//! assert_eq!(desired, [7]);
//! # Ok::<(), serde_norway::Error>(())
//! ```

pub(crate) mod budget;
mod compile;
pub mod conditions;
pub mod enforcement;
pub(crate) mod ignore_policy;
pub mod registration;
pub(crate) mod stage;
pub mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use budget::{AvailabilityLimits, BindingMinimum, ExpectedPods};
pub use webhook::CompiledWebhook;

pub use super::lifecycle::Stage;
use super::pod::Pod;
use crate::api::keys;
use crate::api::selector::Selector;

/// Whether the annotation `skip-rule-conditions` of Pods has an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SkipAnnotation {
    /// The rules that the annotation names do not apply to the Pod.
    #[default]
    Honoured,
    /// All rules apply, whatever the annotation says.
    Ignored,
}

/// Largest number of rule objects with an availability rule that may cover one Pod. A disruption of the Pod is written
/// to the ledger of each of these objects.
pub const MAX_OBJECTS_PER_POD: usize = 16;

/// A compiled rule object.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Arc<str>,
    /// `metadata.generation` of the object that was compiled.
    pub generation: i64,
    /// Which Pods of the namespace the object covers. If the selector or the whole spec can't be read, the error names
    /// the field and the remedy. The object then holds all Pods that it may cover, so that no Pod passes because of an
    /// error in the spec.
    pub selector: Result<Selector, String>,
    /// The selector of a spec that can't be read except for its selector. The object covers only the Pods that match.
    pub narrowed: Option<Selector>,
    /// Enabled rules, in the order of the spec.
    pub rules: Vec<CompiledRule>,
    /// Whether a rule limits how many Pods are unavailable, or may limit it because the rule or the spec can't be read.
    pub may_limit: bool,
    /// Names of the rules whose `failurePolicy: Ignore` has an effect.
    pub ignores: BTreeSet<String>,
    /// Whether Pods can skip the rules by an annotation.
    pub skips: SkipAnnotation,
}

/// An enabled rule.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    /// Name of the rule. The annotation that skips rules refers to it.
    pub name: String,
    /// Identifies the rule in its object, in the status and in messages. The ID is the name. If an earlier rule has the
    /// same name, a number is added, such as `ask#2`. (Admission refuses new objects with such names.)
    pub id: String,
    /// The stage. If the spec has none, it is PreCheck (contract 5.2).
    pub stage: Stage,
    /// The rule applies only to Pods that match. All selected Pods count in its budget (contract 5.2, contract 5.3).
    pub filter: Option<Selector>,
    /// What the rule demands.
    pub kind: RuleKind,
}

/// What a rule demands of a Pod.
#[derive(Clone, Debug)]
pub enum RuleKind {
    /// `availablePolicy`.
    Availability(AvailabilityLimits),
    /// `labelCheck`: the labels that the Pod must have.
    LabelCheck(Selector),
    /// `webhook`.
    Webhook(Arc<CompiledWebhook>),
    /// A rule that can't be read. It holds operations. It holds deletions and evictions only if it may be a limit.
    Broken {
        /// The field and the remedy.
        reason: String,
        /// Whether the rule is an `availablePolicy`, or of a kind that this version does not know.
        may_limit: bool,
    },
}

/// The availability rules of an object that hold a Pod.
#[derive(Clone, Debug)]
pub enum AvailabilityRules<'a> {
    /// No availability rule applies.
    NotHeld,
    /// The rules that apply: their IDs and limits.
    Held(Vec<(&'a str, &'a AvailabilityLimits)>),
    /// A rule that may apply can't be read.
    Broken {
        /// ID of the rule. Empty for the selector.
        rule: String,
        /// The field and the remedy.
        reason: String,
    },
}

impl CompiledRule {
    /// Whether the rule limits how many Pods are unavailable, or may limit it because the rule can't be read.
    fn may_limit(&self) -> bool {
        match self.kind {
            RuleKind::Availability(_) => true,
            RuleKind::Broken { may_limit, .. } => may_limit,
            RuleKind::LabelCheck(_) | RuleKind::Webhook(_) => false,
        }
    }

    /// Whether the filter of the rule matches a Pod. True if there is no filter.
    fn filter_matches(&self, pod: &Pod) -> bool {
        self.filter_matches_labels(&pod.metadata.labels)
    }

    /// Whether the filter of the rule matches these labels of a Pod. True if there is no filter.
    fn filter_matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|f| f.matches(labels))
    }
}

impl RuleSet {
    /// Whether the object covers a Pod of its namespace. It covers only managed Pods. A Pod that is cached without some
    /// of its labels counts as covered, because the selector may match it.
    pub fn selects(&self, pod: &Pod) -> bool {
        pod.is_managed()
            && (pod.metadata.labels_dropped || self.covers_labels(&pod.metadata.labels))
    }

    /// Whether the object covers managed Pods with these labels.
    pub fn covers_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let selector = self.selector.as_ref().ok().or(self.narrowed.as_ref());
        selector.is_none_or(|selector| selector.matches(labels))
    }

    /// The rules of a stage that apply to a Pod: they are enabled, not skipped by the Pod's annotation, and their
    /// filters match.
    pub fn applicable_rules<'a>(
        &'a self,
        stage: Stage,
        pod: &'a Pod,
    ) -> impl Iterator<Item = &'a CompiledRule> {
        let skipped = match self.skips {
            SkipAnnotation::Honoured => skipped_rule_names(pod),
            SkipAnnotation::Ignored => BTreeSet::new(),
        };
        self.rules.iter().filter(move |rule| {
            rule.stage == stage && !skipped.contains(&rule.name) && rule.filter_matches(pod)
        })
    }

    /// IDs of the rules that would hold a disruption of the Pod, but are skipped by the Pod's annotation. If
    /// `unavailable` is true, only rules that hold unavailable Pods too are included.
    pub fn skipped_rules(&self, pod: &Pod, unavailable: bool) -> Vec<&str> {
        if self.skips == SkipAnnotation::Ignored || !self.selects(pod) {
            return Vec::new();
        }
        let skipped = skipped_rule_names(pod);
        let would_hold = |rule: &&CompiledRule| match &rule.kind {
            RuleKind::Availability(limits) => limits.if_healthy || !unavailable,
            RuleKind::Broken { may_limit, .. } => *may_limit,
            RuleKind::LabelCheck(_) | RuleKind::Webhook(_) => false,
        };
        let rules = self
            .rules
            .iter()
            .filter(|rule| rule.stage == Stage::PreCheck && skipped.contains(&rule.name));
        let rules = rules
            .filter(|rule| rule.filter_matches(pod))
            .filter(would_hold);
        rules.map(|rule| rule.id.as_str()).collect()
    }

    /// The availability rules that hold disruptions of a Pod. These are rules of stage PreCheck. In PostCheck the Pod
    /// is unavailable already, so such a rule passes (contract 5.3).
    pub fn availability_rules<'a>(&'a self, pod: &'a Pod) -> AvailabilityRules<'a> {
        if !self.selects(pod) || !self.may_limit {
            return AvailabilityRules::NotHeld;
        }
        if let Err(reason) = &self.selector {
            return AvailabilityRules::Broken {
                rule: String::new(),
                reason: reason.clone(),
            };
        }
        let mut applying = Vec::new();
        for rule in self.applicable_rules(Stage::PreCheck, pod) {
            match &rule.kind {
                RuleKind::Availability(limits) => applying.push((rule.id.as_str(), limits)),
                RuleKind::Broken { reason, may_limit } if *may_limit => {
                    return AvailabilityRules::Broken {
                        rule: rule.id.clone(),
                        reason: reason.clone(),
                    };
                }
                RuleKind::Broken { .. } | RuleKind::LabelCheck(_) | RuleKind::Webhook(_) => {}
            }
        }
        if applying.is_empty() {
            AvailabilityRules::NotHeld
        } else {
            AvailabilityRules::Held(applying)
        }
    }

    /// Whether a change of labels takes the Pod out of the object, or out of one of its availability rules by the
    /// rule's filter. Changes of the annotation that skips rules do not count, because users may skip rules.
    pub fn loses_pod(&self, old: &Pod, new: &Pod) -> bool {
        let mut after = new.clone();
        after
            .metadata
            .annotations
            .clone_from(&old.metadata.annotations);
        match (
            self.availability_rules(old),
            self.availability_rules(&after),
        ) {
            (AvailabilityRules::NotHeld, _) => false,
            (AvailabilityRules::Held(before), AvailabilityRules::Held(after)) => before
                .iter()
                .any(|(rule, _)| after.iter().all(|(kept_rule, _)| kept_rule != rule)),
            (_, after) => matches!(after, AvailabilityRules::NotHeld),
        }
    }

    /// Whether a rule holds unavailable Pods too. A rule that can't be read may hold them, so it counts.
    pub fn may_hold_unavailable(&self) -> bool {
        let mut pre_check_rules = self
            .rules
            .iter()
            .filter(|rule| rule.stage == Stage::PreCheck);
        let is_broken = |rule: &CompiledRule| {
            matches!(
                rule.kind,
                RuleKind::Broken {
                    may_limit: true,
                    ..
                }
            )
        };
        self.selector.is_err() && self.may_limit
            || pre_check_rules.any(is_broken)
            || self.availability_limits().any(|limits| limits.if_healthy)
    }

    /// The webhook rules of a stage, in the order of the spec.
    pub fn webhook_rules(
        &self,
        stage: Stage,
    ) -> impl Iterator<Item = (&CompiledRule, &Arc<CompiledWebhook>)> {
        self.rules
            .iter()
            .filter(move |rule| rule.stage == stage)
            .filter_map(|rule| match &rule.kind {
                RuleKind::Webhook(webhook) => Some((rule, webhook)),
                _ => None,
            })
    }

    /// Whether every rule that limits how many Pods are unavailable has a filter, so that the filters may leave out all
    /// selected Pods. False if there is no such rule, or if one can't be read, because an unreadable rule holds its
    /// Pods.
    pub fn has_only_filtered_limits(&self) -> bool {
        let mut limiting = self.limiting_rules().peekable();
        limiting.peek().is_some()
            && limiting
                .all(|rule| !matches!(rule.kind, RuleKind::Broken { .. }) && rule.filter.is_some())
    }

    /// Whether a rule that limits how many Pods are unavailable, or that can't be read, applies to selected Pods with
    /// these labels. The annotation that skips rules does not count, because users may skip rules.
    pub fn may_limit_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        self.limiting_rules()
            .any(|rule| rule.filter_matches_labels(labels))
    }

    /// The rules of stage PreCheck that hold deletions of the Pods that their filters match.
    fn limiting_rules(&self) -> impl Iterator<Item = &CompiledRule> {
        let is_pre_check = |rule: &&CompiledRule| rule.stage == Stage::PreCheck;
        self.rules
            .iter()
            .filter(is_pre_check)
            .filter(|r| r.may_limit())
    }

    /// The limits of all availability rules, whatever their filters. The gauges of the object show the tightest limit.
    pub fn availability_limits(&self) -> impl Iterator<Item = &AvailabilityLimits> {
        self.rules.iter().filter_map(|r| match &r.kind {
            RuleKind::Availability(limits) if r.stage == Stage::PreCheck => Some(limits),
            _ => None,
        })
    }
}

/// Names in the skip annotation. A malformed annotation skips nothing (contract 5.2).
fn skipped_rule_names(pod: &Pod) -> BTreeSet<String> {
    parse_skips(pod).and_then(Result::ok).unwrap_or_default()
}

/// Names in the skip annotation, or why they can't be read. `None` without the annotation.
fn parse_skips(pod: &Pod) -> Option<Result<BTreeSet<String>, String>> {
    #[derive(serde::Deserialize)]
    struct SkippedRule {
        #[serde(rename = "skipRules")]
        rules: BTreeSet<String>,
    }
    let text = pod.annotation(keys::SKIP_RULE_CONDITIONS)?;
    let parsed = serde_json::from_str::<SkippedRule>(text);
    Some(parsed.map(|skip| skip.rules).map_err(|e| e.to_string()))
}

/// A message about a skip annotation that can't be read and therefore skips nothing. `None` if the Pod has no such
/// annotation.
pub fn unreadable_skips_message(pod: &Pod) -> Option<String> {
    let error = parse_skips(pod)?.err()?;
    let key = keys::SKIP_RULE_CONDITIONS;
    Some(format!(
        "its annotation {key} can't be read ({error}) and skips no rule; write it as {{\"skipRules\":[\"NAME\"]}} with the \
         names of rules"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::podtransitionrule::PodTransitionRule;

    fn rules(spec: serde_json::Value) -> RuleSet {
        let object: PodTransitionRule = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "n" }, "spec": spec,
        }))
        .unwrap();
        RuleSet::compile(&object)
    }

    fn pod(labels: serde_json::Value, annotations: serde_json::Value) -> Pod {
        let mut pod: Pod = serde_json::from_value(
            json!({ "metadata": { "labels": labels, "annotations": annotations } }),
        )
        .unwrap();
        pod.metadata
            .labels
            .insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
        pod
    }

    fn filtered() -> RuleSet {
        let filter = json!({ "labelSelector": { "matchLabels": { "tier": "front" } } });
        rules(
            json!({ "selector": { "matchLabels": { "app": "web" } }, "rules": [
            { "name": "all", "availablePolicy": { "maxUnavailableValue": 3 } },
            { "name": "front", "filter": filter, "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "off", "disabled": true, "availablePolicy": { "maxUnavailableValue": 0 } },
            { "name": "post", "stage": "PostCheck", "availablePolicy": { "maxUnavailableValue": 0 } },
        ] }),
        )
    }

    fn holding_rules(set: &RuleSet, pod: &Pod) -> Vec<String> {
        match set.availability_rules(pod) {
            AvailabilityRules::Held(limits) => limits
                .into_iter()
                .map(|(name, _)| name.to_owned())
                .collect(),
            AvailabilityRules::NotHeld => Vec::new(),
            AvailabilityRules::Broken { reason, .. } => vec![reason],
        }
    }

    #[test]
    fn filter_disabled_stage_and_skip_annotation_say_which_rules_hold() {
        let set = filtered();
        let front = json!({ "app": "web", "tier": "front" });
        assert_eq!(
            holding_rules(&set, &pod(front.clone(), json!({}))),
            ["all", "front"]
        );
        assert_eq!(
            holding_rules(&set, &pod(json!({ "app": "web" }), json!({}))),
            ["all"]
        );
        assert_eq!(
            holding_rules(&set, &pod(json!({ "app": "other" }), json!({}))),
            [""; 0]
        );
        let skip = json!({ keys::SKIP_RULE_CONDITIONS: r#"{"skipRules":["all"]}"# });
        assert_eq!(holding_rules(&set, &pod(front.clone(), skip)), ["front"]);
        let malformed = json!({ keys::SKIP_RULE_CONDITIONS: "all" });
        assert_eq!(
            holding_rules(&set, &pod(front, malformed)),
            ["all", "front"]
        );
    }

    #[test]
    fn unreadable_skip_annotation_is_reported() {
        let with = |text: &str| {
            let annotations = json!({ (keys::SKIP_RULE_CONDITIONS): text });
            unreadable_skips_message(&pod(json!({}), annotations))
        };
        assert_eq!(unreadable_skips_message(&pod(json!({}), json!({}))), None);
        for fine in [r#"{"skipRules":["a"]}"#, r#"{"skipRules":[]}"#] {
            assert_eq!(with(fine), None, "{fine}");
        }
        for text in [
            "",
            "all",
            r#"{"skiprules":["a"]}"#,
            r#"{"skipRules":"a"}"#,
            r#"["a"]"#,
        ] {
            let message = with(text).unwrap_or_default();
            assert!(
                message.contains("skips no rule") && message.contains(r#"{"skipRules":["NAME"]}"#),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn skipped_rules_are_named_and_can_be_made_to_hold() {
        let mut set = filtered();
        let skip = |rules: &str| {
            let skip = format!(r#"{{"skipRules":[{rules}]}}"#);
            let labels = json!({ "app": "web" });
            pod(labels, json!({ (keys::SKIP_RULE_CONDITIONS): skip }))
        };
        let all = skip(r#""all""#);
        assert_eq!(set.skipped_rules(&all, false), ["all"]);
        assert_eq!(
            set.skipped_rules(&all, true),
            [""; 0],
            "it lets Pods go that are not available"
        );
        // The filter of `front` does not match. The other rules are disabled, of stage PostCheck, or do not exist.
        let none = skip(r#""front", "off", "post", "unknown""#);
        assert_eq!(set.skipped_rules(&none, false), [""; 0]);

        set.skips = SkipAnnotation::Ignored;
        assert_eq!(holding_rules(&set, &all), ["all"]);
        assert_eq!(set.skipped_rules(&all, false), [""; 0]);
    }

    #[test]
    fn filters_of_limits_say_which_labels_are_limited() {
        let filter = |tier: &str| json!({ "labelSelector": { "matchLabels": { "tier": tier } } });
        let limit = |name: &str, tier: &str| json!({ "name": name, "filter": filter(tier), "availablePolicy": { "maxUnavailableValue": 1 } });
        let set = |all: serde_json::Value| rules(json!({ "selector": {}, "rules": all }));
        let limited = |set: &RuleSet, tier: &str| {
            set.may_limit_labels(&[("tier".to_owned(), tier.to_owned())].into())
        };
        let filtered = set(json!([limit("a", "front"), limit("b", "back")]));
        assert!(filtered.has_only_filtered_limits());
        assert!(limited(&filtered, "front") && limited(&filtered, "back"));
        assert!(!limited(&filtered, "frnt"));

        let all = json!({ "name": "all", "availablePolicy": { "maxUnavailableValue": 1 } });
        let check = json!({ "name": "check", "labelCheck": { "requires": {} } });
        let broken = json!({ "name": "broken", "filter": filter("front") });
        for (rules, by_filter) in [
            (json!([limit("a", "front"), all]), false),
            (json!([check.clone()]), false),
            (json!([limit("a", "front"), check]), true),
            (json!([limit("a", "front"), broken]), false),
        ] {
            assert_eq!(
                set(rules.clone()).has_only_filtered_limits(),
                by_filter,
                "{rules}"
            );
        }
    }

    #[test]
    fn leaving_selector_or_filter_loses_pod() {
        let set = filtered();
        let front = pod(json!({ "app": "web", "tier": "front" }), json!({}));
        assert!(set.loses_pod(&front, &pod(json!({ "app": "web" }), json!({}))));
        assert!(set.loses_pod(
            &front,
            &pod(json!({ "app": "other", "tier": "front" }), json!({}))
        ));
        assert!(!set.loses_pod(
            &front,
            &pod(
                json!({ "app": "web", "tier": "front", "x": "y" }),
                json!({})
            )
        ));
        assert!(!set.loses_pod(&pod(json!({ "app": "web" }), json!({})), &front));
    }

    #[test]
    fn spec_of_another_version_holds_what_its_selector_matches() {
        let (web, db) = (
            pod(json!({ "app": "web" }), json!({})),
            pod(json!({ "app": "db" }), json!({})),
        );
        let rules_with_unreadable_name = json!([{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }, { "name": ["b"] }]);
        let matching = json!({ "matchLabels": { "app": "web" } });
        let unknown = json!({ "matchLabels": ["app=web"] });
        for (selector, field, all) in [
            (matching, "spec.rules[1].name: ", false),
            (unknown, "spec.selector.matchLabels: ", true),
        ] {
            let set = rules(json!({ "selector": selector, "rules": rules_with_unreadable_name }));
            let AvailabilityRules::Broken { rule, reason } = set.availability_rules(&web) else {
                unreachable!("{field}")
            };
            assert_eq!(rule, "");
            assert!(reason.starts_with(field), "{reason}");
            assert_eq!(set.selects(&db), all);
            assert_eq!(
                matches!(set.availability_rules(&db), AvailabilityRules::NotHeld),
                !all
            );
            for stage in [Stage::PreCheck, Stage::PostCheck] {
                assert!(stage::has_immediate_rejection(&set, stage, &web));
            }
        }
    }

    #[test]
    fn unreadable_rule_holds_its_pods_and_names_field() {
        let web = pod(json!({ "app": "web" }), json!({}));
        for (spec, field) in [
            (
                json!({ "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] }),
                "spec.selector",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": "a" }] }),
                "spec.rules[0]",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": "300%" } }] }),
                "spec.rules[0].availablePolicy.maxUnavailableValue",
            ),
            (
                json!({ "selector": {}, "rules": [
                    { "name": "a", "stage": "Never", "availablePolicy": { "maxUnavailableValue": 1 } },
                ] }),
                "spec.rules[0].stage",
            ),
            (
                json!({ "selector": {}, "rules": [
                    { "name": "a", "conditions": ["x"], "availablePolicy": { "maxUnavailableValue": 1 } },
                ] }),
                "spec.rules[0].conditions",
            ),
        ] {
            let set = rules(spec);
            let AvailabilityRules::Broken { reason, .. } = set.availability_rules(&web) else {
                unreachable!("{field}")
            };
            assert!(reason.starts_with(field), "{reason}");
        }
    }

    #[test]
    fn unreadable_rule_without_limit_holds_only_operations() {
        let web = pod(json!({ "app": "web" }), json!({}));
        let webhook = json!({ "clientConfig": { "url": "https://a" } });
        let polled = json!({ "clientConfig": {
            "url": "https://a", "poll": { "url": "https://a", "intervalSeconds": 0 },
        } });
        for (spec, field) in [
            (
                json!({ "selector": {}, "rules": [{ "name": "a", "conditions": ["x"], "webhook": webhook }] }),
                "spec.rules[0].conditions",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": "a", "stage": "Later", "webhook": webhook }] }),
                "spec.rules[0].stage",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": "a", "webhook": polled }] }),
                "spec.rules[0].webhook.clientConfig.poll.intervalSeconds",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": "a", "labelCheck": {} }] }),
                "spec.rules[0].labelCheck",
            ),
            (
                json!({ "rules": [{ "name": "a", "webhook": webhook }] }),
                "spec.selector",
            ),
            (
                json!({ "selector": {}, "rules": [{ "name": ["a"], "webhook": webhook }] }),
                "spec.rules[0].name",
            ),
            (
                json!({ "selector": { "matchLabels": 1 }, "rules": [{ "name": "a", "labelCheck": {} }] }),
                "spec.selector.matchLabels",
            ),
        ] {
            let set = rules(spec);
            assert!(
                matches!(set.availability_rules(&web), AvailabilityRules::NotHeld),
                "{field}"
            );
            assert!(
                !set.may_hold_unavailable() && !set.may_limit_labels(&web.metadata.labels),
                "{field}"
            );
            let rejections = stage::rejections(
                &set,
                Stage::PreCheck,
                &web,
                &webhook::EndpointVerdicts::default(),
            );
            assert!(
                rejections.iter().any(|r| r.reason.starts_with(field)),
                "{field}: {rejections:?}"
            );
            let finding =
                conditions::enforced_condition(&set, &conditions::NamespaceState::default(), false);
            assert_eq!((finding.status, finding.reason), ("False", "Invalid"));
            assert!(
                finding
                    .message
                    .starts_with("operations on the Pods are held"),
                "{}",
                finding.message
            );
        }
    }
}
