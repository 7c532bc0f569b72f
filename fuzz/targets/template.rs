//! Templates of Pods and PVCs in CollaSets, which are compared in their normal form.

use operating::domain::collaset::core_v1::{
    POD_TEMPLATE, PVC, first_difference, go_json, normal_form, without_newer_fields,
};
use serde_json::Value;

use super::read;

/// The normal form of a normal form is equal to it, and no template differs from itself.
pub fn run(data: &[u8]) {
    let Some(value) = read::<Value>(data) else {
        return;
    };
    for kind in [&POD_TEMPLATE, &PVC] {
        if let Some(once) = normal_form(kind, &value) {
            assert_eq!(normal_form(kind, &once).as_ref(), Some(&once), "of {value}");
            assert_eq!(first_difference("", &once, &once), None);
            let _ = first_difference("", &value, &once);
        }
        assert_eq!(without_newer_fields(kind, &value, &value), value);
        let text = go_json(kind, &value);
        assert!(read::<Value>(text.as_bytes()).is_some(), "{text}");
    }
}
