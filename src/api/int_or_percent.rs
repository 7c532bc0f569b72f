//! A count of Pods, or a percentage of them.

use std::fmt;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A count of Pods, or a percentage of some total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntOrPercent {
    /// A count.
    Int(u32),
    /// A percentage, 0 to 100.
    Percent(u32),
}

/// A value that is neither a count nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value}: {problem}")]
pub struct ParseError {
    /// The value as written in JSON.
    pub value: String,
    /// The problem and the remedy.
    pub problem: &'static str,
}

const NEGATIVE_PROBLEM: &str =
    "must not be negative: write a count such as 3, or a percentage such as \"30%\"";
const FORMAT_PROBLEM: &str = "must be a percentage from \"0%\" to \"100%\" such as \"30%\", or a count written without quotes such as 3";

impl IntOrPercent {
    /// Parses a count of 0 or more, or a text of one to three digits and a percent sign that is at most 100%.
    pub fn parse(value: &IntOrString) -> Result<Self, ParseError> {
        match value {
            IntOrString::Int(count) => {
                u32::try_from(*count)
                    .map(IntOrPercent::Int)
                    .map_err(|_| ParseError {
                        value: count.to_string(),
                        problem: NEGATIVE_PROBLEM,
                    })
            }
            IntOrString::String(text) => {
                parse_percent(text)
                    .map(IntOrPercent::Percent)
                    .ok_or_else(|| ParseError {
                        value: format!("{text:?}"),
                        problem: FORMAT_PROBLEM,
                    })
            }
        }
    }

    /// The count, or the percentage of `total` rounded up.
    pub fn resolve_rounded_up(self, total: u32) -> u32 {
        match self {
            IntOrPercent::Int(count) => count,
            IntOrPercent::Percent(percent) => {
                clamp_to_u32((u64::from(total) * u64::from(percent)).div_ceil(100))
            }
        }
    }

    /// The count, or the percentage of `total` rounded down.
    pub fn resolve_rounded_down(self, total: u32) -> u32 {
        match self {
            IntOrPercent::Int(count) => count,
            IntOrPercent::Percent(percent) => {
                clamp_to_u32(u64::from(total) * u64::from(percent) / 100)
            }
        }
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntOrPercent::Int(count) => write!(f, "{count}"),
            IntOrPercent::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

fn parse_percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    let well_formed = (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|percent| well_formed && *percent <= 100)
}

/// The count, or the largest `u32` if the count is larger.
pub(crate) fn clamp_to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn text(value: &str) -> Result<IntOrPercent, ParseError> {
        IntOrPercent::parse(&IntOrString::String(value.into()))
    }

    #[test]
    fn counts_and_percentages_are_read() {
        assert_eq!(
            IntOrPercent::parse(&IntOrString::Int(0)),
            Ok(IntOrPercent::Int(0))
        );
        assert_eq!(
            IntOrPercent::parse(&IntOrString::Int(i32::MAX)),
            Ok(IntOrPercent::Int(i32::MAX as u32))
        );
        for (value, percent) in [
            ("0%", 0),
            ("30%", 30),
            ("05%", 5),
            ("100%", 100),
            ("099%", 99),
        ] {
            assert_eq!(text(value), Ok(IntOrPercent::Percent(percent)), "{value}");
        }
    }

    #[test]
    fn invalid_value_is_named_with_remedy() {
        let odd = [
            "30", "-1%", "+1%", "300%", "101%", "", "%", " 30%", "30 %", "30%%", "3.5%", "abc",
            "0100%", "٣%",
        ];
        for value in odd {
            let message = text(value).unwrap_err().to_string();
            assert_eq!(message, format!("{value:?}: {FORMAT_PROBLEM}"));
        }
        assert_eq!(
            text("300%").unwrap_err().to_string(),
            "\"300%\": must be a percentage from \"0%\" to \"100%\" such as \"30%\", or a count written without quotes \
             such as 3"
        );
        assert_eq!(
            IntOrPercent::parse(&IntOrString::Int(-2))
                .unwrap_err()
                .to_string(),
            "-2: must not be negative: write a count such as 3, or a percentage such as \"30%\""
        );
    }

    proptest! {
        #[test]
        fn rounding_is_exact(total: u32, percent in 0u32..=100) {
            let share = u128::from(total) * u128::from(percent);
            let (up, down) = (IntOrPercent::Percent(percent).resolve_rounded_up(total), IntOrPercent::Percent(percent).resolve_rounded_down(total));
            prop_assert!(u128::from(up) * 100 >= share && (up == 0 || (u128::from(up) - 1) * 100 < share));
            prop_assert!(u128::from(down) * 100 <= share && (u128::from(down) + 1) * 100 > share);
            prop_assert!(down <= up && up <= total && up - down <= 1);
        }

        #[test]
        fn count_resolves_to_itself(total: u32, count: u32) {
            prop_assert_eq!(IntOrPercent::Int(count).resolve_rounded_up(total), count);
            prop_assert_eq!(IntOrPercent::Int(count).resolve_rounded_down(total), count);
        }

        #[test]
        fn printed_percentage_parses_to_the_same_percentage(percent in 0u32..=100) {
            let written = IntOrPercent::Percent(percent).to_string();
            prop_assert_eq!(text(&written), Ok(IntOrPercent::Percent(percent)));
        }

        #[test]
        fn any_text_is_parsed_without_panic(any in ".*") {
            if let Ok(IntOrPercent::Percent(percent)) = text(&any) {
                prop_assert!(percent <= 100);
            }
        }
    }
}
