//! Labels that a CollaSet gives each of its Pods when it makes them, beside those of the template.

use std::collections::BTreeMap;

use super::keys;
use super::selector::Selector;

/// Those that a Pod has for a while.
const PASSING: [&str; 4] = [
    keys::CREATING,
    keys::COMPLETING,
    keys::SERVICE_AVAILABLE,
    keys::REPLACE_PAIR_ORIGIN_NAME,
];

/// Whether a selector matches the Pods of a template with these labels: as they are made, and once they are through that. A label that differs
/// from Pod to Pod is taken to have some value.
pub fn is_selected(
    template: impl IntoIterator<Item = (String, String)>,
    selector: &Selector,
) -> bool {
    let own = [
        (keys::CONTROL, keys::CONTROL_VALUE),
        (keys::INSTANCE_ID, "0"),
        (keys::REVISION, "some"),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels: BTreeMap<String, String> = template.into_iter().chain(own).collect();
    let mut passing = PASSING.iter().map(|key| {
        let mut labels = labels.clone();
        labels.insert((*key).to_owned(), "0".to_owned());
        labels
    });
    selector.matches(&labels) && passing.all(|labels| selector.matches(&labels))
}
