//! Arithmetic of `availablePolicy`.

use crate::api::int_or_percent::IntOrPercent;

/// The two bounds of an availability rule; at least one is set. Percentages are of the expected Pods, rounded up for
/// maxUnavailable and down for minAvailable (contract 5.3).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// How many Pods may be unavailable.
    pub max_unavailable: Option<IntOrPercent>,
    /// How many Pods must be available.
    pub min_available: Option<IntOrPercent>,
    /// Whether Pods that are unavailable may go only while enough others are available.
    pub if_healthy: bool,
}

impl Limits {
    /// How many of `expected` Pods must stay available: the stricter of the two bounds.
    pub fn desired(&self, expected: u32) -> u32 {
        let by_max = self.max_unavailable.as_ref().map_or(0, |max| {
            expected.saturating_sub(max.of_rounded_up(expected))
        });
        let by_min = self
            .min_available
            .as_ref()
            .map_or(0, |min| min.of_rounded_down(expected));
        by_max.max(by_min)
    }
}

/// The gauges of a rule object as its status shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Gauges {
    /// How many Pods there should be.
    pub expected: u32,
    /// Available Pods without a claim.
    pub available: u32,
    /// Expected but not available, or claimed.
    pub unavailable: u32,
    /// How many may be unavailable under the tightest rule.
    pub limit: u32,
    /// How many more disruptions the tightest rule lets pass now.
    pub allowed: u32,
    /// Pods that wait in PreCheck.
    pub waiting: u32,
}

impl Gauges {
    /// Gauges from counts; `unclaimed` are the available Pods without a claim.
    pub fn new<'a>(
        limits: impl Iterator<Item = &'a Limits>,
        expected: u32,
        unclaimed: u32,
        waiting: u32,
    ) -> Gauges {
        let desired = limits.map(|l| l.desired(expected)).max();
        Gauges {
            expected,
            available: unclaimed,
            unavailable: expected.saturating_sub(unclaimed),
            limit: expected.saturating_sub(desired.unwrap_or(0)),
            allowed: unclaimed.saturating_sub(desired.unwrap_or(0)),
            waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn limits(max: Option<IntOrPercent>, min: Option<IntOrPercent>) -> Limits {
        Limits {
            max_unavailable: max,
            min_available: min,
            if_healthy: false,
        }
    }

    #[test]
    fn max_unavailable_rounds_up_and_min_available_rounds_down() {
        assert_eq!(limits(Some(IntOrPercent::Percent(30)), None).desired(10), 7);
        assert_eq!(limits(Some(IntOrPercent::Percent(25)), None).desired(10), 7); // ceil(2.5) = 3
        assert_eq!(limits(None, Some(IntOrPercent::Percent(25))).desired(10), 2); // floor(2.5) = 2
        assert_eq!(limits(Some(IntOrPercent::Int(0)), None).desired(10), 10);
        assert_eq!(limits(Some(IntOrPercent::Int(50)), None).desired(10), 0);
    }

    #[test]
    fn the_stricter_bound_wins() {
        let both = limits(Some(IntOrPercent::Int(5)), Some(IntOrPercent::Int(8)));
        assert_eq!(both.desired(10), 8);
    }

    #[test]
    fn gauges_show_the_tightest_rule() {
        let rules = [
            limits(Some(IntOrPercent::Int(5)), None),
            limits(Some(IntOrPercent::Int(3)), None),
        ];
        let gauges = Gauges::new(rules.iter(), 10, 8, 1);
        let want = Gauges {
            expected: 10,
            available: 8,
            unavailable: 2,
            limit: 3,
            allowed: 1,
            waiting: 1,
        };
        assert_eq!(gauges, want);
    }
}
