//! Of two Pods with one instance ID the younger goes.

use super::draft::Draft;
use super::facts::Facts;
use super::update;
use crate::api::keys;

/// Sends them away. Their rules, or the API server, may keep them for long.
pub fn step(facts: &Facts, draft: &mut Draft) {
    for pod in &facts.misnumbered {
        let name = &pod.metadata.name;
        if pod.label(keys::TO_DELETE).is_none() {
            draft.event(
                true,
                "DupExIncludedTarget",
                format!("Pod {name} has the instance ID of another Pod and is to be deleted"),
            );
        }
        draft.send_away(pod, facts.observed.now_nanos);
        update::serve_meanwhile(facts, draft, pod);
    }
}
