//! Templates of Pods and claims in CollaSets, which are compared in their normal form.

use operating::domain::collaset::core_v1::{
    CLAIM, POD_TEMPLATE, difference, go_json, normal, without_newer,
};
use serde_json::Value;

use super::read;

/// The normal form of the normal form is itself, and nothing differs from itself.
pub fn run(data: &[u8]) {
    let Some(value) = read::<Value>(data) else {
        return;
    };
    for kind in [&POD_TEMPLATE, &CLAIM] {
        if let Some(once) = normal(kind, &value) {
            assert_eq!(normal(kind, &once).as_ref(), Some(&once), "of {value}");
            assert_eq!(difference("", &once, &once), None);
            let _ = difference("", &value, &once);
        }
        assert_eq!(without_newer(kind, &value, &value), value);
        let text = go_json(kind, &value);
        assert!(read::<Value>(text.as_bytes()).is_some(), "{text}");
    }
}
