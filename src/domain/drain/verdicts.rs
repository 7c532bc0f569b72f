//! What the API server's answer and the budgets say about one Pod.

use std::collections::{BTreeMap, HashSet};

use super::answers::{EvictionAnswer, ends_by_itself, is_about_budget};
use super::disruption_budgets::{pdb_budget, pdb_share};
use super::facts::{BudgetKind, BudgetName};
use super::kubectl_filters::is_of_daemon_set;
use super::observed::{DrainNamespace, ObservedNode};
use super::rule_budgets::{
    PODS_UNREADABLE, PodsInView, RuleBudget, rule_budget, rule_share, unenforced,
};
use super::waves::{Budget, Candidate, Share, has_room};
use crate::api::keys;
use crate::domain::diagnosis::RuleObject;
use crate::domain::disruption_budget::{DisruptionBudget, is_never_asked_about};
use crate::domain::grace_delete;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::AvailabilityRules;
use crate::domain::rules::stage::has_immediate_rejection;

/// What is known about a Pod that kubectl evicts.
#[derive(Debug)]
pub enum Verdict {
    /// Its budgets decide.
    Candidate(Candidate),
    /// Something other than the size of a budget holds it.
    Held {
        by: Vec<BudgetName>,
        reason: String,
        remedy: String,
    },
    /// Nothing is known.
    NotChecked(String),
    /// Its deletion has begun.
    Terminating,
    /// It does not exist any more.
    Gone,
}

/// A rule object with its budget.
struct RuleEntry<'a> {
    object: &'a RuleObject,
    budget: RuleBudget,
    /// Index of a known budget.
    index: usize,
}

/// The budgets of a namespace.
struct NamespaceBudgets<'a> {
    rules: Vec<RuleEntry<'a>>,
    pdbs: Vec<(&'a DisruptionBudget, usize)>,
    observed: &'a DrainNamespace,
}

/// All budgets of the Pods of a node.
pub struct BudgetTable<'a> {
    /// The budgets at the start.
    pub budgets: Vec<Budget>,
    /// Their objects.
    pub names: Vec<BudgetName>,
    /// How many Pods of the node would take from each.
    demand: Vec<u32>,
    namespaces: BTreeMap<&'a str, NamespaceBudgets<'a>>,
}

impl<'a> BudgetTable<'a> {
    pub fn new(node: &'a ObservedNode) -> BudgetTable<'a> {
        let drained = node.evicted_pods().map(|pod| pod.pod.metadata.uid.as_str());
        let drained: HashSet<&str> = drained.collect();
        let mut table = BudgetTable {
            budgets: Vec::new(),
            names: Vec::new(),
            demand: Vec::new(),
            namespaces: BTreeMap::new(),
        };
        for (name, observed) in &node.namespaces {
            let view = PodsInView {
                pods: observed.pods.as_deref(),
                drained: &drained,
                now: node.now,
            };
            let rules = observed.rules.iter().flatten();
            let rules = rules.filter(|_| observed.excluded.is_none()).map(|object| {
                let budget = rule_budget(object, view);
                let index = match budget {
                    RuleBudget::Known(budget) => table.add(
                        budget,
                        BudgetKind::PodTransitionRule,
                        name,
                        &object.set.name,
                    ),
                    _ => usize::MAX,
                };
                RuleEntry {
                    object,
                    budget,
                    index,
                }
            });
            let rules = rules.collect();
            let pdbs = observed.disruption_budgets.iter().flatten().map(|object| {
                let kind = BudgetKind::PodDisruptionBudget;
                let index = table.add(pdb_budget(object, view), kind, name, &object.name);
                (object, index)
            });
            let pdbs = pdbs.collect();
            let namespace = NamespaceBudgets {
                rules,
                pdbs,
                observed,
            };
            table.namespaces.insert(name, namespace);
        }
        let mut demand = vec![0; table.budgets.len()];
        let pods = node.evicted_pods();
        for share in pods.flat_map(|pod| table.possible_shares(&pod.pod)) {
            demand[share.budget] += u32::from(share.takes);
        }
        table.demand = demand;
        table
    }

    fn add(&mut self, budget: Budget, kind: BudgetKind, namespace: &str, name: &str) -> usize {
        self.budgets.push(budget);
        self.names.push(BudgetName {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        self.budgets.len() - 1
    }

    /// What is known about a Pod, by the API server's answer to its eviction.
    pub fn judge(&self, pod: &Pod, answer: &EvictionAnswer) -> Verdict {
        let refusal = match answer {
            EvictionAnswer::Gone => return Verdict::Gone,
            EvictionAnswer::NotChecked { reason } => return Verdict::NotChecked(reason.clone()),
            EvictionAnswer::Unanswered { message } => {
                return held(message, SERVER_DOWN_REMEDY);
            }
            EvictionAnswer::Allowed if pod.is_terminating() => return Verdict::Terminating,
            EvictionAnswer::Allowed | EvictionAnswer::Lifecycle { .. } => None,
            EvictionAnswer::Refused { code, message } => Some((*code, message.as_str())),
        };
        let Some(namespace) = self.namespaces.get(pod.metadata.namespace.as_str()) else {
            return Verdict::NotChecked("its namespace was not read".to_owned());
        };
        let is_lifecycle = matches!(answer, EvictionAnswer::Lifecycle { .. });
        if let Some(held) = namespace.judge_other_causes(pod, answer, refusal) {
            return held;
        }
        let shares = namespace.shares(pod, &self.budgets, refusal.is_some(), is_lifecycle);
        let unknown = namespace.unknown_reason(pod, refusal.is_some());
        match (unknown, refusal) {
            (None, _) => {}
            (Some(_), Some((code, message))) if self.is_lasting(code, message, &shares) => {}
            (Some(unknown), Some((_, message))) => {
                let reason = format!("it is held now ({message}), and {unknown}");
                return Verdict::NotChecked(reason);
            }
            (Some(unknown), None) => {
                let reason = format!("it may go if no other Pod goes before it, and {unknown}");
                return Verdict::NotChecked(reason);
            }
        }
        let used_up = shares
            .iter()
            .filter(|share| !has_room(&self.budgets, share));
        let used_up: Vec<&BudgetName> = used_up.map(|share| &self.names[share.budget]).collect();
        if let Some((code, message)) = refusal {
            let by = namespace.named_objects(message);
            let is_counted =
                is_about_budget(message) && by.iter().any(|name| used_up.contains(&name));
            if code == 429 && is_counted {
                return Verdict::Candidate(candidate(pod, shares, false));
            }
            if code == 429 && (is_about_budget(message) || ends_by_itself(message)) {
                return Verdict::NotChecked(format!(
                    "it is held now ({message}), and this is not what the rules and budgets show at this moment; look again"
                ));
            }
            let remedy = match code {
                429 => "Do what the reason says, or look again in a moment",
                _ => "Change what refuses it: kubectl drain does not repeat such a request",
            };
            return Verdict::Held {
                by,
                reason: message.to_owned(),
                remedy: remedy.to_owned(),
            };
        }
        if is_lifecycle {
            return Verdict::Candidate(candidate(pod, shares, true));
        }
        let doubt = self.doubt(pod, &shares, &used_up);
        match doubt.or_else(|| namespace.contradiction(pod)) {
            Some(reason) => Verdict::NotChecked(reason),
            None => Verdict::Candidate(candidate(pod, shares, true)),
        }
    }

    /// Whether a refusal stays whatever the budgets are of which nothing is known: no budget is its cause, or a budget
    /// that never lets a Pod go.
    fn is_lasting(&self, code: u16, message: &str, shares: &[Share]) -> bool {
        let mut closed = shares.iter().filter(|share| self.is_closed(share));
        code != 429
            || !(is_about_budget(message) || ends_by_itself(message))
            || closed.any(|share| is_named(message, &self.names[share.budget]))
    }

    /// Whether the budget never lets the Pod go, as its limit is 0.
    fn is_closed(&self, share: &Share) -> bool {
        let size = self.budgets[share.budget].size;
        let floor = share.floor.as_ref();
        floor.is_some_and(|floor| floor.count(size) >= size.total)
    }

    /// Why it is not known whether a Pod that no wave reaches stays: one of these Pods, of which nothing is known, can
    /// free the budget that holds it.
    pub fn doubt_of_unreached(
        &self,
        candidate: &Candidate,
        holding: &[usize],
        unknown: &[&Pod],
    ) -> Option<String> {
        let shares = candidate.shares.iter();
        let held_by: Vec<&Share> = shares.filter(|s| holding.contains(&s.budget)).collect();
        if held_by.iter().any(|share| self.is_closed(share)) {
            return None;
        }
        let is_open = |share: &&&Share| {
            let shares = unknown.iter().flat_map(|pod| self.possible_shares(pod));
            shares
                .map(|other| other.budget)
                .any(|other| other == share.budget)
        };
        let open = held_by.iter().find(is_open)?;
        Some(format!(
            "{} has no room for it now, and counts a Pod that is not checked, which can make room",
            self.names[open.budget]
        ))
    }

    /// What the Pod is to the budgets if its eviction is not refused.
    fn possible_shares(&self, pod: &Pod) -> Vec<Share> {
        let namespace = self.namespaces.get(pod.metadata.namespace.as_str());
        let shares = namespace.map(|namespace| namespace.shares(pod, &self.budgets, false, false));
        shares.unwrap_or_default()
    }

    /// Whether all Pods of the node can go at the same time.
    fn has_room_for_all(&self, share: &Share) -> bool {
        let Budget { left, size, .. } = self.budgets[share.budget];
        let floor = share.floor.as_ref().map_or(0, |floor| floor.count(size));
        let left = left.checked_sub(self.demand[share.budget]);
        left.is_some_and(|left| left >= floor)
    }

    /// Why it is not known whether the Pod goes together with others, although the API server lets it go alone.
    fn doubt(&self, pod: &Pod, shares: &[Share], used_up: &[&BudgetName]) -> Option<String> {
        let is_rule =
            |share: &&Share| self.names[share.budget].kind == BudgetKind::PodTransitionRule;
        let mut rules = shares.iter().filter(is_rule);
        let limits = |share: &Share| share.floor.is_some() && !self.has_room_for_all(share);
        if pod.annotation(keys::BYPASS).is_some() && rules.any(limits) {
            return Some(format!(
                "it may go now, and whether its annotation {} lets it go when its budget is used up depends on the rights \
                 of the user who drains",
                keys::BYPASS
            ));
        }
        let names: Vec<_> = used_up.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            format!(
                "it may go if no other Pod goes before it, and by the count of {} no Pod may: the count has just changed, or \
                 the server exempts the Pod; look again",
                names.join(" and ")
            )
        })
    }

    /// The budgets at the start. Each of these Pods, of which nothing is known, may take from them.
    pub fn budgets_with_unknown<'p>(&self, pods: impl Iterator<Item = &'p Pod>) -> Vec<Budget> {
        let mut budgets = self.budgets.clone();
        for pod in pods {
            for share in self.possible_shares(pod) {
                budgets[share.budget].unknown += u32::from(share.takes);
            }
        }
        budgets
    }

    /// What to do about a Pod that this share holds in the end.
    pub fn remedy(&self, share: &Share) -> String {
        let (name, size) = (&self.names[share.budget], self.budgets[share.budget].size);
        let floor = share.floor.as_ref().map_or(0, |floor| floor.count(size));
        match (name.kind, floor >= size.total) {
            (BudgetKind::PodTransitionRule, true) => {
                format!("Raise the limit of {name}, which lets no Pod go")
            }
            (BudgetKind::PodTransitionRule, false) => {
                format!("Make the unavailable Pods of {name} available, or raise its limit")
            }
            (BudgetKind::PodDisruptionBudget, true) => {
                format!("Let {name} allow a disruption, or scale up")
            }
            (BudgetKind::PodDisruptionBudget, false) => format!(
                "Make the Pods of {name} Ready, or let it allow more disruptions; see kubectl describe pdb {} -n {}",
                name.name, name.namespace
            ),
        }
    }
}

/// What to do if a webhook of Operating does not answer.
const SERVER_DOWN_REMEDY: &str =
    "Start the server, which has to answer; operating check says what is wrong";

fn candidate(pod: &Pod, shares: Vec<Share>, may_go_now: bool) -> Candidate {
    Candidate {
        shares,
        // kubectl evicts a Pod of a DaemonSet only if the DaemonSet is gone.
        is_replaced: pod.controller().is_some() && !is_of_daemon_set(pod) && !pod.is_finished(),
        may_go_now,
    }
}

fn held(reason: &str, remedy: &str) -> Verdict {
    Verdict::Held {
        by: Vec::new(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

impl NamespaceBudgets<'_> {
    /// Whether something holds the Pod that no wave can change.
    fn judge_other_causes(
        &self,
        pod: &Pod,
        answer: &EvictionAnswer,
        refusal: Option<(u16, &str)>,
    ) -> Option<Verdict> {
        if let EvictionAnswer::Lifecycle { message } = answer {
            if !grace_delete::awaits_rules(pod) {
                return None;
            }
            if let Some((rule, why)) = self.rule_that_denies_all(pod) {
                return Some(Verdict::Held {
                    reason: format!(
                        "its lifecycle begins, and does not get further, because {} denies it: {why}",
                        rule
                    ),
                    remedy: format!("Mend what {rule} says: {why}"),
                    by: vec![rule],
                });
            }
            let mut rules = self.rules.iter();
            let rejecting = rules.find(|rule| {
                unenforced(rule.object).is_none()
                    && has_immediate_rejection(&rule.object.set, Stage::PreCheck, pod)
            })?;
            return Some(Verdict::Held {
                by: vec![self.name(
                    BudgetKind::PodTransitionRule,
                    pod,
                    &rejecting.object.set.name,
                )],
                reason: message.clone(),
                remedy: format!(
                    "operating why pod/{} -n {} says what the rule asks of the Pod",
                    pod.metadata.name, pod.metadata.namespace
                ),
            });
        }
        let (_, message) = refusal?;
        let asked = self.pdbs.iter().filter(|(object, _)| object.selects(pod));
        let asked: Vec<_> = asked
            .map(|(object, _)| self.name(BudgetKind::PodDisruptionBudget, pod, &object.name))
            .collect();
        if asked.len() > 1 && !is_never_asked_about(pod) {
            return Some(Verdict::Held {
                by: asked,
                reason: message.to_owned(),
                remedy: "Let only one of these PodDisruptionBudgets select the Pod".to_owned(),
            });
        }
        let mut rules = self.rules.iter();
        let denying = rules.find(|rule| match rule.object.set.availability_rules(pod) {
            AvailabilityRules::NotHeld => false,
            AvailabilityRules::Held(_) => matches!(rule.budget, RuleBudget::DeniesAll(_)),
            AvailabilityRules::Broken { .. } => true,
        })?;
        let remedy = match &denying.budget {
            RuleBudget::DeniesAll(why) => {
                format!("Mend what {} says: {why}", denying.object.set.name)
            }
            _ => format!("Correct PodTransitionRule {}", denying.object.set.name),
        };
        Some(Verdict::Held {
            by: vec![self.name(BudgetKind::PodTransitionRule, pod, &denying.object.set.name)],
            reason: message.to_owned(),
            remedy,
        })
    }

    /// The rule object that denies every disruption of the Pod, and why.
    fn rule_that_denies_all(&self, pod: &Pod) -> Option<(BudgetName, &str)> {
        self.rules.iter().find_map(|rule| {
            let RuleBudget::DeniesAll(why) = &rule.budget else {
                return None;
            };
            let AvailabilityRules::Held(limits) = rule.object.set.availability_rules(pod) else {
                return None;
            };
            let is_held = pod.is_available() || limits.iter().any(|(_, limits)| limits.if_healthy);
            let name = self.name(BudgetKind::PodTransitionRule, pod, &rule.object.set.name);
            is_held.then_some((name, why.as_str()))
        })
    }

    /// Why it is not known whether an available Pod that the API server lets go goes together with others: by its
    /// status or its spec, a rule object lets no Pod go.
    fn contradiction(&self, pod: &Pod) -> Option<String> {
        let mut rules = self.rules.iter().filter(|_| pod.is_available());
        let rule = rules.find(|rule| match rule.object.set.availability_rules(pod) {
            AvailabilityRules::NotHeld => false,
            AvailabilityRules::Held(_) => matches!(rule.budget, RuleBudget::DeniesAll(_)),
            AvailabilityRules::Broken { .. } => unenforced(rule.object).is_none(),
        })?;
        Some(format!(
            "it may go if no other Pod goes before it, and by what PodTransitionRule {} says no Pod may: the rule or its \
             status has just changed, or the server exempts the Pod; look again",
            rule.object.set.name
        ))
    }

    /// Why it is not known how many of the Pods may go together with this one, as a clause. `None` if it is known.
    fn unknown_reason(&self, pod: &Pod, is_refused: bool) -> Option<String> {
        if let Err(why) = &self.observed.rules
            && pod.is_managed()
            && self.observed.excluded.is_none()
        {
            return Some(format!("its rules are not known: {why}"));
        }
        let is_asked_about = !is_never_asked_about(pod);
        if let Err(why) = &self.observed.disruption_budgets
            && is_asked_about
        {
            return Some(format!("its PodDisruptionBudgets are not known: {why}"));
        }
        let mut pdbs = self.pdbs.iter();
        if self.observed.pods.is_none() && is_asked_about && pdbs.any(|(pdb, _)| pdb.selects(pod)) {
            return Some(PODS_UNREADABLE.to_owned());
        }
        let mut rules = self.rules.iter();
        rules.find_map(|rule| match &rule.budget {
            RuleBudget::Unknown(why) if is_held_by(rule.object, pod, is_refused) => {
                Some(why.clone())
            }
            _ => None,
        })
    }

    fn shares(
        &self,
        pod: &Pod,
        budgets: &[Budget],
        is_refused: bool,
        is_lifecycle: bool,
    ) -> Vec<Share> {
        let rules = self.rules.iter().filter(|rule| rule.index < budgets.len());
        let rules = rules.filter_map(|rule| {
            let size = budgets[rule.index].size;
            rule_share(rule.object, pod, rule.index, size, is_refused)
        });
        // Once the lifecycle has begun, no PodDisruptionBudget is asked.
        let pdbs = self.pdbs.iter().filter(|_| !is_lifecycle);
        let pdbs = pdbs.filter_map(|(object, index)| pdb_share(object, pod, *index));
        rules.chain(pdbs).collect()
    }

    /// The objects of the namespace that a message of the API server names.
    fn named_objects(&self, message: &str) -> Vec<BudgetName> {
        let rules = self.rules.iter().map(|rule| {
            (
                BudgetKind::PodTransitionRule,
                &rule.object.set.namespace,
                &rule.object.set.name,
            )
        });
        let pdbs = self.pdbs.iter().map(|(object, _)| {
            (
                BudgetKind::PodDisruptionBudget,
                &object.namespace,
                &object.name,
            )
        });
        let all = rules.chain(pdbs).map(|(kind, namespace, name)| BudgetName {
            kind,
            namespace: namespace.clone(),
            name: name.clone(),
        });
        all.filter(|name| is_named(message, name)).collect()
    }

    fn name(&self, kind: BudgetKind, pod: &Pod, name: &str) -> BudgetName {
        BudgetName {
            kind,
            namespace: pod.metadata.namespace.clone(),
            name: name.to_owned(),
        }
    }
}

/// Whether a limit of the object applies to the Pod.
fn is_held_by(object: &RuleObject, pod: &Pod, is_refused: bool) -> bool {
    let AvailabilityRules::Held(limits) = object.set.availability_rules(pod) else {
        return false;
    };
    let mut limits = limits.iter();
    pod.is_available() || is_refused || limits.any(|(_, limits)| limits.if_healthy)
}

/// Whether a message names the object, in the words of the server or of the API server.
pub fn is_named(message: &str, object: &BudgetName) -> bool {
    let phrase = match object.kind {
        BudgetKind::PodTransitionRule => format!("PodTransitionRule {}", object.name),
        BudgetKind::PodDisruptionBudget => format!("disruption budget {}", object.name),
    };
    let ends_there = |rest: &str| {
        let next = rest.chars().next();
        next.is_none_or(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.'))
            || rest.starts_with(". ")
    };
    message
        .match_indices(&phrase)
        .any(|(at, _)| ends_there(&message[at + phrase.len()..]))
}
