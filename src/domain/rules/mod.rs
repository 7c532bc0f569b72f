//! PodTransitionRules, compiled: which rules apply to a Pod, and what each of them says.

pub mod budget;
mod compile;
pub mod stage;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use budget::Limits;

pub use super::lifecycle::Stage;
use super::pod::Pod;
use crate::api::keys;
use crate::api::selector::Selector;

/// One rule object, compiled.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Arc<str>,
    /// `metadata.generation` that this was compiled from.
    pub generation: i64,
    /// Which Pods of the namespace it covers. A selector that can't be compiled covers all of them and holds them:
    /// nothing passes by omission.
    pub selector: Result<Selector, String>,
    /// Enabled rules, in the order of the spec.
    pub rules: Vec<Rule>,
}

/// One enabled rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name.
    pub name: String,
    /// Stage; absent in the spec means PreCheck (contract 5.2).
    pub stage: Stage,
    /// Only matching Pods are subject to the rule; all selected Pods still count in its budget (contract 5.2, 5.3).
    pub filter: Option<Selector>,
    /// What it demands.
    pub kind: RuleKind,
}

/// What a rule demands.
#[derive(Clone, Debug)]
pub enum RuleKind {
    /// `availablePolicy`.
    Availability(Limits),
    /// `labelCheck`.
    LabelCheck,
    /// `webhook`.
    Webhook,
    /// A rule that can't be read: field and remedy.
    Broken(String),
}

/// Whether the availability rules of an object hold a Pod.
#[derive(Clone, Debug)]
pub enum Availability<'a> {
    /// None applies.
    NotHeld,
    /// These do: name and limits.
    Held(Vec<(&'a str, &'a Limits)>),
    /// One that may apply can't be read.
    Broken {
        /// Name of the rule; empty for the selector.
        rule: String,
        /// Field and remedy.
        why: String,
    },
}

impl RuleSet {
    /// Whether the object covers a Pod of its namespace. Only managed Pods are ever covered.
    pub fn selects(&self, pod: &Pod) -> bool {
        pod.is_managed()
            && self
                .selector
                .as_ref()
                .map_or(true, |s| s.matches(&pod.metadata.labels))
    }

    /// The rules of a stage that a Pod is subject to: enabled, not skipped by annotation, filter matching.
    pub fn applying<'a>(&'a self, stage: Stage, pod: &'a Pod) -> impl Iterator<Item = &'a Rule> {
        let skipped = skipped(pod);
        self.rules.iter().filter(move |rule| {
            rule.stage == stage
                && !skipped.contains(&rule.name)
                && rule
                    .filter
                    .as_ref()
                    .is_none_or(|f| f.matches(&pod.metadata.labels))
        })
    }

    /// The availability rules that hold disruptions of a Pod: those of stage PreCheck. (In PostCheck the Pod is
    /// unavailable already, and such a rule passes, contract 5.3.)
    pub fn availability<'a>(&'a self, pod: &'a Pod) -> Availability<'a> {
        if !self.selects(pod) {
            return Availability::NotHeld;
        }
        if let Err(why) = &self.selector {
            return Availability::Broken {
                rule: String::new(),
                why: why.clone(),
            };
        }
        let mut held = Vec::new();
        for rule in self.applying(Stage::PreCheck, pod) {
            match &rule.kind {
                RuleKind::Availability(limits) => held.push((rule.name.as_str(), limits)),
                RuleKind::Broken(why) => {
                    return Availability::Broken {
                        rule: rule.name.clone(),
                        why: why.clone(),
                    };
                }
                RuleKind::LabelCheck | RuleKind::Webhook => {}
            }
        }
        if held.is_empty() {
            Availability::NotHeld
        } else {
            Availability::Held(held)
        }
    }

    /// The limits of all availability rules, whatever their filters: the object's gauges show the tightest.
    pub fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.rules.iter().filter_map(|r| match &r.kind {
            RuleKind::Availability(limits) if r.stage == Stage::PreCheck => Some(limits),
            _ => None,
        })
    }
}

/// Names in the skip annotation; a malformed one skips nothing (contract 5.2).
fn skipped(pod: &Pod) -> BTreeSet<String> {
    #[derive(serde::Deserialize)]
    struct Skip {
        #[serde(rename = "skipRules", default)]
        rules: BTreeSet<String>,
    }
    pod.annotation(keys::SKIP_RULE_CONDITIONS)
        .and_then(|text| serde_json::from_str::<Skip>(text).ok())
        .map(|skip| skip.rules)
        .unwrap_or_default()
}
