//! Deletes the younger of two Pods with one instance ID.

use super::draft::Draft;
use super::set_facts::SetFacts;
use super::update;
use crate::api::keys;

/// Asks for the deletion of the duplicates. Meanwhile it returns them to service, because their rules or the API server
/// may delay the deletion for long.
pub fn delete_duplicates(facts: &SetFacts, draft: &mut Draft) {
    for pod in &facts.misnumbered {
        let name = &pod.metadata.name;
        if pod.label(keys::TO_DELETE).is_none() {
            draft.announce_event(
                true,
                "DupExIncludedTarget",
                format!("Pod {name} has the instance ID of another Pod and will be deleted"),
            );
        }
        draft.request_deletion(pod, facts.observed.now_nanos);
        update::return_to_service(facts, draft, pod);
    }
}
