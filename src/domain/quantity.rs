//! Quantities such as `500m` and `1.5Gi`: their value, and the canonical form that Go writes.

use serde_json::Value;

/// A parsed quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The value in units of 10⁻⁹.
    pub nanos: i128,
    format: Format,
    /// The text, if Go keeps the text because it is canonical or nearly canonical.
    kept_text: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Exponent,
    Binary,
}

const NANO_DIGITS: u32 = 9;
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Value of a JSON string or number in units of 10⁻⁹. `None` if it is not a quantity, or exceeds 10²⁹.
pub fn nanos(value: &Value) -> Option<i128> {
    parse_value(value).map(|q| q.nanos)
}

/// The quantity as Go writes it after reading it. `None` as in [`nanos`].
pub fn canonical(value: &Value) -> Option<String> {
    parse_value(value).map(|q| q.to_string())
}

/// A text that all notations of one value share, such as `1Gi` and `1073741824`. A value that is not a quantity gives
/// its JSON.
pub fn normal_form(value: &Value) -> String {
    nanos(value).map_or_else(|| value.to_string(), |nanos| nanos.to_string())
}

fn parse_value(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => parse(text.trim()),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

fn parse(text: &str) -> Option<Quantity> {
    if text.is_empty() {
        return None;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.trim_start_matches('0');
    let (number, after_number) = split_digits(digits);
    let (fraction, suffix) = match after_number.strip_prefix('.') {
        Some(after_number) => split_digits(after_number),
        None => ("", after_number),
    };
    if number.is_empty() && fraction.is_empty() && digits.len() == unsigned.len() {
        return None;
    }
    let number = if number.is_empty() { "0" } else { number };
    let (format, exponent) = parse_suffix(suffix)?;
    let joined = format!("{number}{fraction}");
    let value: i128 = joined.parse().ok()?;
    let fraction_digits = i32::try_from(fraction.len()).ok()?;
    let (scaled, scale) = match format {
        Format::Binary => (
            value.checked_mul(1_i128.checked_shl(exponent.try_into().ok()?)?)?,
            -fraction_digits,
        ),
        _ => (value, exponent.checked_sub(fraction_digits)?),
    };
    let mut nanos = scale_to_nanos(scaled, scale)?;
    if format == Format::Binary {
        nanos = nanos.min(i128::from(i64::MAX) * 10_i128.pow(NANO_DIGITS));
    }
    if text.starts_with('-') {
        nanos = -nanos;
    }
    let is_text_kept = match format {
        Format::Binary => {
            fraction.is_empty() && value & 7 != 0 && is_binary_fast_path(number, exponent)
        }
        _ => {
            joined.len() <= 18
                && scale >= -9
                && scale % 3 == 0
                && !joined.ends_with("000")
                && !joined.starts_with('0')
        }
    };
    Some(Quantity {
        nanos,
        format,
        kept_text: is_text_kept.then(|| text.to_owned()),
    })
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

fn parse_suffix(suffix: &str) -> Option<(Format, i32)> {
    if let Some(power) = (0..)
        .zip(DECIMAL_SUFFIXES)
        .find(|(_, s)| *s == suffix)
        .map(|(i, _)| i)
    {
        return Some((Format::Decimal, power * 3 - 9));
    }
    if let Some(power) = (0..)
        .zip(BINARY_SUFFIXES)
        .find(|(_, s)| *s == suffix)
        .map(|(i, _)| i)
    {
        return Some((Format::Binary, power * 10));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((Format::Exponent, exponent.parse().ok()?))
}

// Go's fast path is the only one that keeps the text. Go uses it if the number of digits is sure to fit 64 bits.
fn is_binary_fast_path(number: &str, exponent: i32) -> bool {
    let digits = i32::try_from(number.len()).unwrap_or(i32::MAX);
    14_i32.saturating_sub(digits) - exponent * 3 / 10 >= 0
}

/// `value` · 10^`scale` in units of 10⁻⁹, rounded up.
fn scale_to_nanos(value: i128, scale: i32) -> Option<i128> {
    if value == 0 {
        return Some(0);
    }
    let scale = scale.checked_add(9)?;
    match u32::try_from(scale) {
        Ok(up) => value.checked_mul(10_i128.checked_pow(up)?),
        Err(_) => Some(match 10_i128.checked_pow(scale.unsigned_abs()) {
            Some(divisor) => (value - 1) / divisor + 1,
            None => 1,
        }),
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(text) = &self.kept_text {
            return f.write_str(text);
        }
        let unit = 10_i128.pow(NANO_DIGITS);
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::Binary
            && self.nanos % unit == 0
            && self.nanos.abs() >= 1024 * unit
        {
            let (value, power) = remove_factor(self.nanos / unit, 1024, BINARY_SUFFIXES.len() - 1);
            return write!(f, "{value}{}", BINARY_SUFFIXES[power]);
        }
        let (value, power) = remove_factor(self.nanos, 1000, usize::MAX);
        match (self.format, DECIMAL_SUFFIXES.get(power)) {
            (Format::Exponent, _) if power == 3 => write!(f, "{value}"),
            (Format::Exponent, _) | (_, None) => write!(f, "{value}e{}", power as i64 * 3 - 9),
            (_, Some(suffix)) => write!(f, "{value}{suffix}"),
        }
    }
}

fn remove_factor(mut value: i128, base: i128, limit: usize) -> (i128, usize) {
    let mut power = 0;
    while power < limit && value % base == 0 {
        value /= base;
        power += 1;
    }
    (value, power)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn notations_of_one_value_are_equal() {
        for (a, b) in [
            (json!("1000m"), json!("1")),
            (json!("1024Mi"), json!("1Gi")),
            (json!(0.5), json!("500m")),
            (json!(2), json!("2")),
            (json!("1e3"), json!("1k")),
            (json!("0.5Gi"), json!("512Mi")),
            (json!("+1"), json!("01.0")),
            (json!("1G"), json!("1000000000")),
        ] {
            assert_eq!(nanos(&a).unwrap(), nanos(&b).unwrap(), "{a} {b}");
        }
        assert_ne!(nanos(&json!("1G")), nanos(&json!("1Gi")));
        for bad in [
            json!(""),
            json!("one"),
            json!("1gi"),
            json!("-"),
            json!("."),
            json!(true),
            json!("1 Gi"),
            json!("1e"),
            json!("1e2147483647"),
        ] {
            assert_eq!(nanos(&bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn canonical_form_has_same_value(
            number in "[+-]?[0-9]{1,7}(\\.[0-9]{0,4})?",
            suffix in "(|n|u|m|k|M|G|Ki|Mi|Gi|e3|E2|e-3)",
        ) {
            let text = json!(format!("{number}{suffix}"));
            let written = canonical(&text).unwrap();
            prop_assert_eq!(nanos(&text), nanos(&json!(written.clone())), "{}", written);
        }
    }
}
