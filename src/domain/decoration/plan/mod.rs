//! Plans one PodDecoration: the value that the plans of CollaSets read, and the writes that the PodDecoration needs.
//!
//! | File | Purpose |
//! |---|---|
//! | `compiled_spec` | the selectors and the strategy of the spec |
//! | `stored_revisions` | the stored revisions, and the writes that they need |
//! | `publish` | the value that the plans of CollaSets read |
//! | `events` | the Events about a change of the status |
//! | `writes` | the output of a plan |

mod compiled_spec;
mod events;
mod publish;
mod stored_revisions;
mod writes;

pub use super::revision::RevisionWrite;
use crate::api::poddecoration::PodDecorationStatus;
pub use compiled_spec::{CompiledSpec, Strategy};
pub use writes::{DecorationEvent, DecorationPlan};

use std::sync::Arc;

use super::held_back::held_back_sets;
use super::labels::decorations_of;
use super::members::selected_members;
use super::observed::{ObservedDecoration, RefusedWrites};
use super::status::build_status;
use stored_revisions::plan_revisions;

/// Nanoseconds after which the controller tries a refused write again.
const RETRY_NANOS: u64 = 10_000_000_000;

/// Nanoseconds after which the controller looks again whether Pods without a set still refer to a PodDecoration that is
/// being deleted. Another controller removes these references.
const REFERENCE_NANOS: u64 = 1_000_000_000;

/// Nanoseconds after which the controller plans a PodDecoration again whose Pods are not as wanted. Such a plan makes no
/// request if the status stays the same.
const RECHECK_NANOS: u64 = 5_000_000_000;

/// Plans a PodDecoration.
pub fn plan_decoration(observed: &ObservedDecoration) -> DecorationPlan {
    let object = &observed.object;
    let spec = CompiledSpec::from_object(object);
    let is_deleting = object.metadata.deletion_timestamp.is_some();
    let is_usable = !is_deleting && spec.invalid.is_none();
    let history = plan_revisions(observed, is_usable);
    let mut publish = publish::new_decoration(observed, &spec, &history);

    let others = observed
        .others
        .iter()
        .filter(|other| other.name != publish.name);
    let mut known: Vec<_> = others.cloned().collect();
    known.push(Arc::new(publish.clone()));
    let selector = publish.selector.as_ref();
    let members = selector.map(|selector| selected_members(observed, &known, selector));
    let members = members.unwrap_or_default();
    publish.reach = publish::choose_reach(observed, &spec, &publish, &members);
    let (held_back, annotation) = held_back_sets(observed, &members, publish.updated.as_deref());
    publish.held_back = held_back;

    let stored = object.status.clone().unwrap_or_default();
    let status = build_status(observed, &publish, &members, &history);
    let events = events::status_events(&stored, &status);
    let has_finalizer = publish::has_finalizer(object);
    let is_refused = observed.refused != RefusedWrites::default();
    let requeue_after_nanos = match is_deleting && !observed.referring_pods.is_empty() {
        true => Some(REFERENCE_NANOS), // no change of such a Pod enqueues the PodDecoration
        false if is_refused => Some(RETRY_NANOS),
        // The conditions of the sets, which the status quotes, change without a change of a Pod.
        false => (!is_ready(&status)).then_some(RECHECK_NANOS),
    };
    DecorationPlan {
        add_finalizer: !is_deleting && !has_finalizer,
        held_back: annotation,
        remove_finalizer: is_deleting
            && has_finalizer
            && !is_on_any_pod(observed, &publish.name)
            && observed.referring_pods.is_empty(),
        revision: history.write,
        delete_revisions: history.unused,
        events,
        status: (status != stored).then_some(status),
        requeue_after_nanos,
        publish,
    }
}

fn is_ready(status: &PodDecorationStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a Pod that an existing set controls has the decoration, in any phase. Pods that were excluded do not count:
/// nobody removes the decoration from them.
fn is_on_any_pod(observed: &ObservedDecoration, decoration: &str) -> bool {
    let mut pods = observed.sets.iter().flat_map(|set| &set.pods);
    pods.any(|pod| decorations_of(pod).contains_key(decoration))
}
