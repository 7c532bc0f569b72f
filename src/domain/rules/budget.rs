//! Computes the budgets of rules with an `availablePolicy`. The ledger decides about claims by these numbers, in
//! `ledger/commit/decide.rs`.

use serde::{Serialize, Serializer};

use crate::api::int_or_percent::IntOrPercent;

/// How many Pods are expected, and on how many of them percentages are based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExpectedPods {
    /// All expected Pods.
    pub total: u32,
    /// The number on which percentages are based, at most `total`. If some Pods have an owner, it leaves out Pods
    /// without an owner.
    pub base: u32,
}

impl From<u32> for ExpectedPods {
    /// Percentages are based on all expected Pods.
    fn from(total: u32) -> ExpectedPods {
        ExpectedPods { total, base: total }
    }
}

/// The two bounds of an availability rule. At least one is set. Percentages are rounded up for `maxUnavailableValue`
/// and down for `minAvailableValue` (contract 5.3).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AvailabilityLimits {
    /// `maxUnavailableValue`: how many Pods may be unavailable.
    pub max_unavailable: Option<IntOrPercent>,
    /// `minAvailableValue`: how many Pods must be available.
    pub min_available: Option<IntOrPercent>,
    /// Whether unavailable Pods may go only while enough others are available (`unhealthyPodPolicy: IfHealthyBudget`).
    pub if_healthy: bool,
}

impl AvailabilityLimits {
    /// How many of the expected Pods must stay available, by the stricter of the two bounds.
    ///
    /// With a percentage, only a part of the base may be unavailable. For `minAvailableValue`, this part is the base
    /// minus the percentage of the base.
    pub fn desired(&self, expected: impl Into<ExpectedPods>) -> u32 {
        let (by_max, by_min) = self.min_available_bounds(expected.into());
        by_max.max(by_min)
    }

    /// `minAvailableValue`, if it is the stricter bound: `maxUnavailableValue` alone would let more Pods go.
    pub fn binding_minimum(&self, expected: impl Into<ExpectedPods>) -> Option<IntOrPercent> {
        let (by_max, by_min) = self.min_available_bounds(expected.into());
        self.min_available.filter(|_| by_min > by_max)
    }

    /// How many Pods must stay available by `max_unavailable`, and by `min_available`.
    fn min_available_bounds(&self, ExpectedPods { total, base }: ExpectedPods) -> (u32, u32) {
        let by_max = self
            .max_unavailable
            .map_or(0, |max| total.saturating_sub(max.resolve_rounded_up(base)));
        let by_min = self.min_available.map_or(0, |min| match min {
            IntOrPercent::Int(count) => count,
            IntOrPercent::Percent(_) => {
                total.saturating_sub(base.saturating_sub(min.resolve_rounded_down(base)))
            }
        });
        (by_max, by_min)
    }
}

/// The numbers of a budget whose stricter bound is `minAvailableValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingMinimum {
    /// `minAvailableValue`.
    #[serde(serialize_with = "as_written")]
    pub value: IntOrPercent,
    /// How many Pods must be available because of it.
    pub desired: u32,
    /// How many Pods are available and have no claim.
    pub available: u32,
}

/// Writes a number of Pods as a number, and a percentage as a string such as `70%`.
fn as_written<S: Serializer>(value: &IntOrPercent, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        IntOrPercent::Int(count) => serializer.serialize_u32(*count),
        IntOrPercent::Percent(_) => serializer.collect_str(value),
    }
}

/// The gauges of a rule object as its status shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BudgetGauges {
    /// How many Pods there should be.
    pub expected: u32,
    /// The number on which percentages are based; see [`ExpectedPods::base`].
    pub base: u32,
    /// Available Pods without a claim.
    pub available: u32,
    /// Pods that are expected and not available, or have a claim.
    pub unavailable: u32,
    /// How many Pods may be unavailable under the tightest rule.
    pub limit: u32,
    /// How many more disruptions the tightest rule allows now.
    pub allowed: u32,
    /// Pods that wait in PreCheck.
    pub waiting: u32,
}

impl BudgetGauges {
    /// Computes the gauges. `unclaimed` is the number of available Pods without a claim.
    pub fn new<'a>(
        limits: impl Iterator<Item = &'a AvailabilityLimits>,
        expected: impl Into<ExpectedPods>,
        unclaimed: u32,
        waiting: u32,
    ) -> BudgetGauges {
        let size: ExpectedPods = expected.into();
        let desired = limits.map(|l| l.desired(size)).max();
        let (expected, base) = (size.total, size.base);
        BudgetGauges {
            expected,
            base,
            available: unclaimed,
            unavailable: expected.saturating_sub(unclaimed),
            limit: expected.saturating_sub(desired.unwrap_or(0)),
            allowed: unclaimed.saturating_sub(desired.unwrap_or(0)),
            waiting,
        }
    }

    /// The expected Pods, as [`AvailabilityLimits::desired`] needs them.
    pub fn expected_pods(&self) -> ExpectedPods {
        ExpectedPods {
            total: self.expected,
            base: self.base,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn limits(max: Option<IntOrPercent>, min: Option<IntOrPercent>) -> AvailabilityLimits {
        AvailabilityLimits {
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
    fn percentage_uses_base_and_count_is_absolute() {
        let size = ExpectedPods {
            total: 40,
            base: 10,
        };
        assert_eq!(
            limits(Some(IntOrPercent::Percent(30)), None).desired(size),
            37
        );
        assert_eq!(limits(Some(IntOrPercent::Int(3)), None).desired(size), 37);
        assert_eq!(
            limits(None, Some(IntOrPercent::Percent(75))).desired(size),
            37
        ); // 10 − floor(7.5) = 3
        assert_eq!(limits(None, Some(IntOrPercent::Int(7))).desired(size), 7);
        assert_eq!(
            limits(None, Some(IntOrPercent::Percent(100))).desired(size),
            40
        );
    }

    #[test]
    fn stricter_bound_wins() {
        let both = limits(Some(IntOrPercent::Int(5)), Some(IntOrPercent::Int(8)));
        assert_eq!(both.desired(10), 8);
    }

    #[test]
    fn minimum_binds_only_where_it_is_the_stricter_bound() {
        let five = Some(IntOrPercent::Int(5));
        let both = limits(Some(IntOrPercent::Int(3)), five);
        assert_eq!(both.binding_minimum(7), five);
        assert_eq!(both.binding_minimum(8), None);
        assert_eq!(both.binding_minimum(10), None);
        assert_eq!(limits(five, None).binding_minimum(10), None);
    }

    #[test]
    fn gauges_show_the_tightest_rule() {
        let rules = [
            limits(Some(IntOrPercent::Int(5)), None),
            limits(Some(IntOrPercent::Int(3)), None),
        ];
        let gauges = BudgetGauges::new(rules.iter(), 10, 8, 1);
        let expected = BudgetGauges {
            expected: 10,
            base: 10,
            available: 8,
            unavailable: 2,
            limit: 3,
            allowed: 1,
            waiting: 1,
        };
        assert_eq!(gauges, expected);
    }
}
