//! Access to parts of a raw template.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The part of a value at a path of keys. Missing and null parts on the path become objects, and the part itself becomes
/// `empty`. `None` if a part on the path is not an object.
fn part_at<'a>(value: &'a mut Value, path: &[&str], empty: Value) -> Option<&'a mut Value> {
    let Some((key, rest)) = path.split_first() else {
        if value.is_null() {
            *value = empty;
        }
        return Some(value);
    };
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    let part = value.as_object_mut()?.entry(*key).or_insert(Value::Null);
    part_at(part, rest, empty)
}

/// The object at a path, which is created if it is missing. `None` if a value of another type is in its place.
pub(super) fn object_at<'a>(
    value: &'a mut Value,
    path: &[&str],
) -> Option<&'a mut Map<String, Value>> {
    part_at(value, path, Value::Object(Map::new()))?.as_object_mut()
}

/// The list at a path, which is created if it is missing. `None` if a value of another type is in its place.
pub(super) fn list_at<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Vec<Value>> {
    part_at(value, path, Value::Array(Vec::new()))?.as_array_mut()
}

/// A text field of an object; `None` if it is missing.
pub(super) fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str()
}

/// Merges items into the list at a path. An item replaces the item with the same key where it stands; otherwise it is
/// appended. If the list has a key twice, the last one is replaced, because it is the one that counts. Two new items
/// with the same key do not replace each other.
pub(super) fn merge_items<K: Ord>(
    value: &mut Value,
    path: &[&str],
    items: &[Value],
    key: impl Fn(&Value) -> K,
) {
    if items.is_empty() {
        return;
    }
    let Some(list) = list_at(value, path) else {
        return;
    };
    // A map, because a search for each of many items would take seconds.
    let mut places = BTreeMap::<K, Vec<usize>>::new();
    for (index, present) in list.iter().enumerate() {
        places.entry(key(present)).or_default().push(index);
    }
    for item in items {
        let place = places.get_mut(&key(item)).and_then(Vec::pop);
        match place.and_then(|index| list.get_mut(index)) {
            Some(present) => *present = item.clone(),
            None => list.push(item.clone()),
        }
    }
}
