//! Pods that are not available now but may be in a moment.

use super::context::Context;
use crate::domain::pod::Pod;

/// Whether a Pod that is not available may be available again before the effect of a change reaches it: this replica has
/// seen it serve less than 30 s ago, and it is not broken. The change then takes from the budget as if the Pod were
/// available. A Pod that is broken, or has been down for longer, is mended by a change, so nothing holds it.
pub fn is_down_for_a_moment(context: &Context, pod: &Pod) -> bool {
    context.index.read().is_down_for_a_moment(pod)
}
