//! What the waves assume.

use super::facts::{BudgetKind, DrainPreview, EvictionPath, WavePod};
use super::observed::ObservedNode;
use super::waves::{Candidate, Departure};
use crate::api::keys;

/// What the waves assume, in sentences. Only what applies.
pub fn assumptions(
    node: &ObservedNode,
    facts: &DrainPreview,
    candidates: &[Candidate],
    waves: &[Vec<Departure>],
) -> Vec<String> {
    let pods = || facts.waves.iter().flat_map(|wave| &wave.pods);
    let in_waves = |has: &dyn Fn(&WavePod) -> bool| pods().any(has);
    let is_of_rule = |pod: &WavePod| {
        let mut budgets = pod.budgets.iter();
        budgets.any(|budget| budget.kind == BudgetKind::PodTransitionRule)
    };
    let has_later = facts.waves.len() > 1;
    let starts_empty = facts.waves.first().is_some_and(|wave| wave.pods.is_empty());
    let is_uncertain = in_waves(&|pod| !pod.certain);
    let has_unknown = is_uncertain && !facts.not_checked.is_empty();
    let is_count_open = has_unknown || depends_on_order(candidates, waves);
    let skips = node
        .evicted_pods()
        .any(|pod| pod.pod.annotation(keys::SKIP_RULE_CONDITIONS).is_some());
    let texts = [
        (
            has_later,
            "A later wave needs the Pods of the waves before it to be replaced by available Pods on other nodes",
        ),
        (
            has_later && in_waves(&|pod| !pod.replaced),
            "A Pod that no controller replaces never comes back",
        ),
        (
            starts_empty,
            "Wave 1 is empty: Pods that start or end now have to be available or replaced first",
        ),
        (
            is_uncertain && !is_count_open,
            "Which Pods of a budget go first is not determined, because kubectl sends all evictions at the same time; how \
             many go is",
        ),
        (
            is_uncertain && is_count_open,
            "Which Pods of a budget go first is not determined, because kubectl sends all evictions at the same time; how \
             many go can depend on it, too",
        ),
        (
            is_uncertain && depends_on_replacement(candidates, waves),
            "Pods that a controller replaces share a budget with Pods that nothing replaces: whether all of them go, and so \
             the exit code 0 or 1, can depend on the order",
        ),
        (
            has_unknown,
            "The Pods that are not checked stay; if they go, they can take the place of others",
        ),
        (
            in_waves(&is_of_rule),
            "The status of PodTransitionRules shows how many Pods there should be; after a change of replicas, it is out of \
             date for some seconds, and for as long as no server leads",
        ),
        (
            in_waves(&|pod| pod.answer.code == 429 && pod.how == EvictionPath::Deletes),
            "About a Pod that a budget refuses now, not all policies and webhooks of others are asked; they can refuse it \
             later",
        ),
        (
            skips,
            "The server honours the annotation podtransitionrule.kusionstack.io/skip-rule-conditions; with \
             --ignore-skip-annotations, the rules hold such Pods",
        ),
        (
            in_waves(&|pod| pod.how == EvictionPath::BeginsLifecycle),
            "A lifecycle ends when its endpoints and cooperators let it go on",
        ),
        (
            in_waves(&|pod| pod.how == EvictionPath::BeginsLifecycle),
            "No policy or webhook of others refuses the deletion of a Pod with a lifecycle: the server asks them only when the \
             eviction is no dry run",
        ),
    ];
    let texts = texts.into_iter().filter(|(applies, _)| *applies);
    texts.map(|(_, text)| text.to_owned()).collect()
}

/// Whether the number of Pods of a wave can depend on the order: a Pod that may have to wait shares a budget with a Pod
/// that is something else to this budget, or has other budgets, too.
fn depends_on_order(candidates: &[Candidate], waves: &[Vec<Departure>]) -> bool {
    has_unlike_rivals(candidates, waves, |pod, other| pod.shares != other.shares)
        || depends_on_replacement(candidates, waves)
}

/// Whether a Pod that may have to wait shares a budget with a Pod that differs in whether a controller replaces it. The
/// one leaves its room to others, and the other uses it up.
fn depends_on_replacement(candidates: &[Candidate], waves: &[Vec<Departure>]) -> bool {
    has_unlike_rivals(candidates, waves, |pod, other| {
        pod.is_replaced != other.is_replaced
    })
}

fn has_unlike_rivals(
    candidates: &[Candidate],
    waves: &[Vec<Departure>],
    is_unlike: fn(&Candidate, &Candidate) -> bool,
) -> bool {
    let share_one = |a: &Candidate, b: &Candidate| {
        let mut shares = a.shares.iter();
        shares.any(|share| b.shares.iter().any(|other| other.budget == share.budget))
    };
    let departures = waves
        .iter()
        .flatten()
        .filter(|departure| !departure.is_certain);
    let mut uncertain = departures.map(|departure| &candidates[departure.candidate]);
    uncertain.any(|pod| {
        let mut others = candidates.iter();
        others.any(|other| share_one(pod, other) && is_unlike(pod, other))
    })
}
