//! Remembers objects of the watches that cannot be read at present.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use serde::Deserialize;

use super::source::Source;

/// A watch, by its API path and field selector.
type WatchId = (&'static str, Option<String>);

/// The objects of each watch whose last version cannot be read, or is too large to be cached.
#[derive(Debug, Default)]
pub struct UnreadableObjects(Mutex<HashMap<WatchId, HashSet<String>>>);

impl UnreadableObjects {
    /// How many such objects there are.
    pub fn count(&self) -> usize {
        self.0.lock().values().map(HashSet::len).sum()
    }

    /// Adds an object. Returns whether it is new. The caller logs only new objects, because a tenant may write such an
    /// object again and again.
    pub fn add(&self, source: &Source, object: &str) -> bool {
        let mut all = self.0.lock();
        all.entry(watch_id(source))
            .or_default()
            .insert(object.to_owned())
    }

    /// Removes an object that can be read again or is gone.
    pub(super) fn remove(&self, source: &Source, raw: &str) {
        let mut all = self.0.lock();
        // The set is empty in most cases. Then the object is not parsed again.
        let some = all
            .get_mut(&watch_id(source))
            .filter(|some| !some.is_empty());
        if let Some(some) = some {
            some.remove(&object_id(raw));
        }
    }

    /// Removes the objects of a watch that are not in `listed`.
    pub(super) fn retain_listed(&self, source: &Source, listed: &HashSet<String>) {
        if let Some(known) = self.0.lock().get_mut(&watch_id(source)) {
            known.retain(|object| listed.contains(object));
        }
    }
}

fn watch_id(source: &Source) -> WatchId {
    (source.path, source.fields.clone())
}

/// The UID of an object. Empty if even the UID cannot be read.
pub(super) fn object_id(raw: &str) -> String {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        uid: String,
    }
    let object = serde_json::from_str::<Object>(raw);
    object.map_or_else(|_| String::new(), |object| object.metadata.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Source = Source::from_path("/api/v1/pods");
    const RULES: Source = Source::from_path("/rules");

    #[test]
    fn object_counts_once_until_it_can_be_read() {
        let unread = UnreadableObjects::default();
        let news = [
            unread.add(&PODS, "a"),
            unread.add(&PODS, "a"),
            unread.add(&RULES, "a"),
        ];
        assert_eq!((news, unread.count()), ([true, false, true], 2));
        unread.remove(&PODS, r#"{ "metadata": { "uid": "b" } }"#);
        assert_eq!(unread.count(), 2);
        unread.remove(&PODS, r#"{ "metadata": { "uid": "a" } }"#);
        assert_eq!(unread.count(), 1);
        assert!(unread.add(&PODS, "a"));
    }

    #[test]
    fn list_says_what_is_left() {
        let unread = UnreadableObjects::default();
        for object in ["a", "b"] {
            unread.add(&PODS, object);
            unread.add(&RULES, object);
        }
        unread.retain_listed(&PODS, &HashSet::from(["b".to_owned()]));
        assert_eq!(unread.count(), 3);
    }
}
