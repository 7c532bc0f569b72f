//! The condition `Stalled`, by which tools that wait for an object (kstatus) see that waiting does not help: the object
//! has to be corrected.

use super::enforced::INVALID;
use super::{ConditionFinding, new_finding};

/// The condition of an object with this condition `Enforced`. `None` unless the object can't be read.
pub fn stalled_condition(enforced: &ConditionFinding) -> Option<ConditionFinding> {
    let is_invalid = enforced.reason == INVALID;
    is_invalid.then(|| new_finding("True", INVALID, enforced.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unreadable_object_is_stalled() {
        let invalid = new_finding("False", INVALID, "spec.selector: no");
        let stalled = stalled_condition(&invalid);
        assert_eq!(
            stalled,
            Some(new_finding("True", INVALID, "spec.selector: no"))
        );
        let lacking = new_finding("False", "NotEnforced", "no label");
        assert_eq!(stalled_condition(&lacking), None);
    }
}
