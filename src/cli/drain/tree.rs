//! The tree that `operating drain` prints for people.

use crate::cli::why::tree_node::TreeNode;
use crate::domain::drain::facts::{DrainOutcome, DrainPreview, EvictionPath, PodName, WavePod};
use crate::domain::messages::{count_pods, count_pods_with_verb};

/// The preview as a tree.
pub fn render_preview(preview: &DrainPreview) -> String {
    let waves = preview.waves.iter().enumerate().map(|(index, wave)| {
        let pods = wave
            .pods
            .iter()
            .map(|pod| TreeNode::leaf(describe_wave_pod(pod)));
        let text = format!("wave {}: {}", index + 1, count_pods(wave.pods.len()));
        TreeNode::new(text, pods)
    });
    let held = preview.held.iter();
    let held = held.map(|held| with_remedy(&held.pod, &held.reason, &held.remedy));
    let refused = preview.refused.iter();
    let refused = refused.map(|pod| with_remedy(&pod.pod, &pod.reason, &pod.remedy));
    let terminating = preview.terminating.iter().map(|pod| {
        TreeNode::leaf(match pod.finalizers.as_slice() {
            [] => pod.pod.to_string(),
            finalizers => format!("{}: finalizers {}", pod.pod, finalizers.join(", ")),
        })
    });
    let with_reason = |pod: &PodName, reason: &str| TreeNode::leaf(format!("{pod}: {reason}"));
    let unchecked = preview.not_checked.iter();
    let unchecked = unchecked.map(|pod| with_reason(&pod.pod, &pod.reason));
    let skipped = preview.skipped.iter();
    let skipped = skipped.map(|pod| with_reason(&pod.pod, pod.reason.text()));
    let mut below = group("kubectl refuses to evict any Pod because of", refused);
    below.extend(waves);
    below.extend(group("held:", held));
    below.extend(group("not checked:", unchecked));
    below.extend(group("ends already:", terminating));
    below.extend(group("stays on the node:", skipped));
    let assumed = preview.assumptions.iter();
    below.extend(assumed.map(|text| TreeNode::leaf(format!("assumed: {text}"))));
    let notes = preview.notes.iter();
    below.extend(notes.map(|note| TreeNode::leaf(format!("note: {note}"))));
    TreeNode::new(summary(preview), below).render()
}

fn with_remedy(pod: &PodName, reason: &str, remedy: &str) -> TreeNode {
    TreeNode::new(format!("{pod}: {reason}"), [TreeNode::leaf(remedy)])
}

/// A line with the number of Pods, and these Pods below it. Nothing if there are none.
fn group(title: &str, pods: impl Iterator<Item = TreeNode>) -> Vec<TreeNode> {
    let pods: Vec<_> = pods.collect();
    match pods.len() {
        0 => Vec::new(),
        count => vec![TreeNode::new(
            format!("{title} {}", count_pods(count)),
            pods,
        )],
    }
}

fn summary(preview: &DrainPreview) -> String {
    let going = preview.waves.iter().map(|wave| wave.pods.len()).sum();
    let verb = |count: usize, singular: &str, plural: &str| {
        (count > 0).then(|| count_pods_with_verb(count, singular, plural))
    };
    let waves = match preview.waves.len() {
        1 => "1 wave".to_owned(),
        count => format!("{count} waves"),
    };
    let go = verb(going, "goes", "go").map(|text| format!("{text} in {waves}"));
    let parts = [
        (!preview.begins).then(|| "kubectl refuses the node".to_owned()),
        go,
        verb(preview.held.len(), "is held", "are held"),
        verb(
            preview.not_checked.len(),
            "is not checked",
            "are not checked",
        ),
        verb(preview.terminating.len(), "ends already", "end already"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let text = match parts.is_empty() {
        true if preview.outcome == DrainOutcome::Unknown => {
            "nothing found to evict, and not everything could be read".to_owned()
        }
        true => "nothing to evict".to_owned(),
        false => parts.join(", "),
    };
    format!("node {}: {text}", preview.node)
}

fn describe_wave_pod(pod: &WavePod) -> String {
    let mut text = pod.pod.to_string();
    if !pod.certain {
        let budgets: Vec<_> = pod.budgets.iter().map(ToString::to_string).collect();
        text += &format!(", or another Pod of {}", budgets.join(" and "));
    }
    if pod.how == EvictionPath::BeginsLifecycle {
        text += ": its lifecycle takes it off traffic first, and then deletes it";
    }
    if !pod.replaced {
        text += " (no controller replaces it)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::drain::facts::{
        AnswerFacts, BudgetKind, BudgetName, HeldPod, RefusedPod, WaveFacts,
    };

    fn name(name: &str) -> PodName {
        PodName {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn answer() -> AnswerFacts {
        AnswerFacts {
            code: 201,
            message: String::new(),
        }
    }

    #[test]
    fn preview_is_a_tree_with_reasons_and_remedies() {
        let budget = BudgetName {
            kind: BudgetKind::PodTransitionRule,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let going = |pod: &str, certain: bool, replaced: bool| WavePod {
            pod: name(pod),
            how: EvictionPath::Deletes,
            certain,
            replaced,
            budgets: vec![budget.clone()],
            answer: answer(),
        };
        let preview = DrainPreview {
            node: "worker-0".to_owned(),
            outcome: DrainOutcome::Held,
            begins: false,
            waves: vec![WaveFacts {
                pods: vec![going("web-0", false, true), going("web-1", true, false)],
            }],
            held: vec![HeldPod {
                pod: name("db-0"),
                by: Vec::new(),
                reason: "no".to_owned(),
                remedy: "Do it".to_owned(),
                answer: answer(),
            }],
            refused: vec![RefusedPod {
                pod: name("alone"),
                reason: "it has no controller".to_owned(),
                remedy: "Add --force".to_owned(),
            }],
            terminating: Vec::new(),
            skipped: Vec::new(),
            not_checked: Vec::new(),
            assumptions: vec!["A new Pod comes".to_owned()],
            notes: Vec::new(),
        };
        assert_eq!(
            render_preview(&preview),
            "node worker-0: kubectl refuses the node, 2 Pods go in 1 wave, 1 Pod is held\n\
             ├─ kubectl refuses to evict any Pod because of 1 Pod\n\
             │  └─ shop/alone: it has no controller\n\
             │     └─ Add --force\n\
             ├─ wave 1: 2 Pods\n\
             │  ├─ shop/web-0, or another Pod of PodTransitionRule web\n\
             │  └─ shop/web-1 (no controller replaces it)\n\
             ├─ held: 1 Pod\n\
             │  └─ shop/db-0: no\n\
             │     └─ Do it\n\
             └─ assumed: A new Pod comes\n"
        );
    }
}
