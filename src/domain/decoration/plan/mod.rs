//! Plans one PodDecoration: the value that the plans of CollaSets read, and the writes that the PodDecoration needs.

mod writes;

pub use writes::{DecorationEvent, DecorationPlan, RevisionWrite};

use super::observed::ObservedDecoration;

/// Plans a PodDecoration.
pub fn plan_decoration(observed: &ObservedDecoration) -> DecorationPlan {
    let _ = observed;
    DecorationPlan::default()
}
