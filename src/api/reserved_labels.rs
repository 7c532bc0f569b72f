//! Labels that a CollaSet, the lifecycle or a user sets on single Pods. A Pod template may not contain them.
//! The selector of a CollaSet may use only those that every Pod of a CollaSet has, and only to require that the label
//! exists. The selectors of a PodDecoration may use those that no operation changes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::keys::{self, Family};
use super::selector::Selector;

/// Labels that CollaSet, the lifecycle or users set on single Pods (contract 2.1). If a template contained
/// such a label, every new Pod would get it, and an in-place update would restore it. [`keys::STAY_OFFLINE`]
/// is not reserved.
const RESERVED_KEYS: [&str; 14] = [
    keys::INSTANCE_ID,
    keys::REVISION,
    keys::SERVICE_AVAILABLE,
    keys::CREATING,
    keys::COMPLETING,
    keys::PREPARING_TO_DELETE,
    keys::TO_DELETE,
    keys::TO_REPLACE,
    keys::TO_EXCLUDE,
    keys::ORPHANED,
    keys::UPDATE_INCLUDED,
    keys::REPLACED_BY_REPLACE_UPDATE,
    keys::REPLACE_PAIR_ORIGIN_NAME,
    keys::REPLACE_PAIR_NEW_ID,
];

/// The reserved labels that each Pod of a CollaSet always has.
const CONTROLLER_KEYS: [&str; 2] = [keys::INSTANCE_ID, keys::REVISION];

/// Whether a label is reserved for single Pods.
pub fn is_reserved(key: &str) -> bool {
    RESERVED_KEYS.contains(&key) || Family::parse(key).is_some()
}

/// Whether a label belongs to the lifecycle, including `service-available`.
pub fn is_lifecycle_label(key: &str) -> bool {
    let (prefix, _) = key.split_once('/').unwrap_or_default();
    let domain = keys::LIFECYCLE_DOMAIN.trim_matches(['.', '/']);
    prefix
        .strip_suffix(domain)
        .is_some_and(|family| family.is_empty() || family.ends_with('.'))
}

/// Whether a PodDecoration may select Pods by a label. Labels of the lifecycle, the marks of decorations, and labels that
/// CollaSets set on single Pods change with each operation, so they never count. An update would otherwise change what
/// selects the Pod, and cause the next update.
pub fn is_selectable_by_decorations(key: &str) -> bool {
    let is_of_single_pods = is_reserved(key) && !CONTROLLER_KEYS.contains(&key);
    !is_lifecycle_label(key) && !key.starts_with(keys::DECORATION_DOMAIN) && !is_of_single_pods
}

/// The first reserved label in a selector that would distinguish between Pods of the same CollaSet. Such a
/// selector would exclude some Pods at once or later in their life, and the CollaSet would create new Pods in
/// their place without end.
pub fn reserved_key_in(selector: &LabelSelector) -> Option<&str> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, _)| (key, false));
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|e| (&e.key, e.operator == "Exists"));
    let mut requirements = labels.chain(expressions);
    let is_of_all = |key: &str| CONTROLLER_KEYS.contains(&key);
    let found = requirements.find(|(key, exists)| is_reserved(key) && !(*exists && is_of_all(key)));
    found.map(|(key, _)| key.as_str())
}

/// Whether a selector without reserved labels matches the Pods of a template with these labels.
pub fn is_selected(
    template: impl IntoIterator<Item = (String, String)>,
    selector: &Selector,
) -> bool {
    let control = (keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
    let own = CONTROLLER_KEYS.map(|key| (key.to_owned(), "0".to_owned()));
    let labels: BTreeMap<String, String> =
        template.into_iter().chain(own).chain([control]).collect();
    selector.matches(&labels)
}
