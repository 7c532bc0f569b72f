//! The tree that `operating drain` prints for people.

use crate::cli::why::tree_node::TreeNode;
use crate::domain::drain::facts::{DrainPreview, EvictionPath, WavePod};
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
    let held = held.map(|held| format!("{}: {}. {}", held.pod, held.reason, held.remedy));
    let refused = preview.refused.iter();
    let refused = refused.map(|pod| format!("{}: {}. {}", pod.pod, pod.reason, pod.remedy));
    let terminating = preview
        .terminating
        .iter()
        .map(|pod| match pod.finalizers.as_slice() {
            [] => pod.pod.to_string(),
            finalizers => format!("{}: finalizers {}", pod.pod, finalizers.join(", ")),
        });
    let unchecked = preview.not_checked.iter();
    let unchecked = unchecked.map(|pod| format!("{}: {}", pod.pod, pod.reason));
    let skipped = preview.skipped.iter();
    let skipped = skipped.map(|pod| format!("{}: {}", pod.pod, pod.reason.text()));
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

/// A line with the number of the lines, and these lines below it. Nothing if there are none.
fn group(title: &str, lines: impl Iterator<Item = String>) -> Vec<TreeNode> {
    let lines: Vec<_> = lines.map(TreeNode::leaf).collect();
    match lines.len() {
        0 => Vec::new(),
        count => vec![TreeNode::new(
            format!("{title} {}", count_pods(count)),
            lines,
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
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let text = match parts.is_empty() {
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
        text += ": its lifecycle begins, and deletes it at its end";
    }
    if !pod.replaced {
        text += " (no controller replaces it)";
    }
    text
}
