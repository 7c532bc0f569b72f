//! PodDisruptionBudgets as budgets of a drain.

use super::rule_budgets::PodsInView;
use super::waves::{Budget, Floor, Share};
use crate::domain::disruption_budget::{DisruptionBudget, is_never_asked_about};
use crate::domain::pod::Pod;

/// The budget of a PodDisruptionBudget. The API server lets as many Ready Pods go as the status allows.
pub fn pdb_budget(object: &DisruptionBudget, view: PodsInView<'_>) -> Budget {
    let figures = object.figures();
    let left = match figures.allowed {
        0 => figures.healthy.min(figures.desired),
        allowed => figures.desired.saturating_add(allowed),
    };
    let away = |pod: &&Pod| {
        let is_living = !pod.is_terminating() && !pod.is_finished();
        let is_drained = view.drained.contains(pod.metadata.uid.as_str());
        is_living && !pod.is_ready() && (is_drained || !pod.is_starting(view.now))
    };
    let recovered = match view.pods {
        // The disruption controller has to be able to compute the budget first.
        _ if figures.is_failed => left,
        None => left,
        Some(pods) => {
            let selected = pods.iter().map(|pod| &**pod);
            let away = selected.filter(|pod| object.selects(pod)).filter(away);
            let away = u32::try_from(away.count()).unwrap_or(u32::MAX);
            let expected = figures.expected.saturating_sub(away);
            figures.healthy.max(expected).max(left)
        }
    };
    Budget {
        left,
        size: figures.expected.into(),
        returning: recovered - left,
        unknown: 0,
    }
}

/// What a Pod is to a PodDisruptionBudget. `None` if the budget does not count the Pod.
pub fn pdb_share(object: &DisruptionBudget, pod: &Pod, index: usize) -> Option<Share> {
    if !object.selects(pod) || pod.is_terminating() || pod.is_finished() {
        return None;
    }
    let is_asked = !is_never_asked_about(pod) && !object.exempts(pod);
    Some(Share {
        budget: index,
        // The API server takes an eviction of an unready Pod from the budget, too, unless the Pod is exempt.
        takes: is_asked,
        floor: is_asked.then(|| Floor::Count(object.figures().desired)),
    })
}
