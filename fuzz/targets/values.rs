//! Values of single fields.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use operating::api::field_path::FieldPath;
use operating::api::int_or_percent::IntOrPercent;
use operating::domain::quantity;
use serde_json::Value;

use super::read;

/// A path that is read is written in the same form.
pub fn field_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(path) = FieldPath::parse(text) {
        assert_eq!(path.to_string(), text);
    }
}

/// A bound is a count or at most 100%. It reads the same after it was written, and never exceeds the number of Pods.
pub fn int_or_percent(data: &[u8]) {
    let Some(value) = read::<IntOrString>(data) else {
        return;
    };
    match IntOrPercent::parse(&value) {
        Ok(IntOrPercent::Int(count)) => assert_eq!(value, IntOrString::Int(count as i32)),
        Ok(bound @ IntOrPercent::Percent(percent)) => {
            assert!(percent <= 100);
            let again = IntOrString::String(bound.to_string());
            assert_eq!(IntOrPercent::parse(&again), Ok(bound));
            for total in [0, 1, 99, u32::MAX] {
                let (down, up) = (
                    bound.resolve_rounded_down(total),
                    bound.resolve_rounded_up(total),
                );
                assert!(down <= up && up <= total);
            }
        }
        Err(error) => assert!(!error.problem.is_empty()),
    }
}

/// The canonical form of a quantity has its value, and is canonical.
pub fn quantity(data: &[u8]) {
    let text = std::str::from_utf8(data).ok().map(Value::from);
    for value in text.into_iter().chain(read(data)) {
        let (nanos, canonical) = (quantity::nanos(&value), quantity::canonical(&value));
        assert_eq!(nanos.is_some(), canonical.is_some());
        assert!(!quantity::normal_form(&value).is_empty());
        if let Some(canonical) = canonical {
            let again = Value::from(canonical.as_str());
            assert_eq!(quantity::nanos(&again), nanos, "{value} as {canonical}");
            assert_eq!(
                quantity::canonical(&again).as_deref(),
                Some(canonical.as_str())
            );
        }
    }
}
