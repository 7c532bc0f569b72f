//! A cache of one kind. Both its watch and this replica's own writes fill it, so that a controller never plans from a
//! state that is older than its own last write. The newest resourceVersion wins, and a deleted object does not come
//! back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;

/// The namespace and the name of an object.
pub type NamespacedName = (String, String);

/// The identity and the version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion, ordered over all objects of the cluster.
    pub version: u64,
    /// UID of the controller. Empty if the object has none.
    pub controller: String,
}

/// The cache.
#[derive(Debug)]
pub struct ObjectCache<T> {
    state: RwLock<CacheState<T>>,
}

#[derive(Debug)]
struct CacheState<T> {
    /// The largest resourceVersion that the watch has delivered.
    position: u64,
    namespaces: HashMap<String, NamespaceCache<T>>,
    /// Objects that this replica has deleted and whose deletion the watch has not delivered yet: the UID, and the last
    /// known version.
    deleted: HashMap<String, u64>,
}

#[derive(Debug)]
struct NamespaceCache<T> {
    names: HashMap<String, (ObjectKey, Arc<T>)>,
    /// Names by the UID of the controller.
    controlled: HashMap<String, BTreeSet<String>>,
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        ObjectCache {
            state: RwLock::new(CacheState {
                position: 0,
                namespaces: HashMap::new(),
                deleted: HashMap::new(),
            }),
        }
    }
}

impl<T> ObjectCache<T> {
    /// An object by its name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let state = self.state.read();
        let (_, object) = state.namespaces.get(namespace)?.names.get(name)?;
        Some(Arc::clone(object))
    }

    /// The objects with this controller. The empty UID gives the objects without a controller.
    pub fn controlled_by(&self, namespace: &str, uid: &str) -> Vec<Arc<T>> {
        let state = self.state.read();
        let Some(namespace_cache) = state.namespaces.get(namespace) else {
            return Vec::new();
        };
        let names = namespace_cache.controlled.get(uid).into_iter().flatten();
        names
            .filter_map(|name| Some(Arc::clone(&namespace_cache.names.get(name)?.1)))
            .collect()
    }

    /// The objects of a namespace, in the order of their names.
    pub fn objects_of(&self, namespace: &str) -> Vec<Arc<T>> {
        let state = self.state.read();
        let namespace_cache = state.namespaces.get(namespace);
        let names = namespace_cache.map(|namespace_cache| namespace_cache.names.iter());
        let sorted: BTreeMap<_, _> = names.into_iter().flatten().collect();
        sorted
            .into_values()
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// Names of the objects of a namespace for which `keep` returns true.
    pub fn names_where(&self, namespace: &str, keep: impl Fn(&T) -> bool) -> Vec<String> {
        let state = self.state.read();
        let namespace_cache = state.namespaces.get(namespace);
        namespace_cache
            .into_iter()
            .flat_map(|namespace_cache| &namespace_cache.names)
            .filter(|(_, (_, object))| keep(object))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The names of all objects.
    pub fn all_names(&self) -> Vec<NamespacedName> {
        let state = self.state.read();
        let namespace_caches = state.namespaces.iter();
        namespace_caches
            .flat_map(|(namespace, namespace_cache)| {
                namespace_cache
                    .names
                    .keys()
                    .map(move |name| (namespace.clone(), name.clone()))
            })
            .collect()
    }

    /// Calls `visit` with each object.
    pub fn for_each_object(&self, mut visit: impl FnMut(&T)) {
        let state = self.state.read();
        let namespace_caches = state.namespaces.values();
        let all = namespace_caches.flat_map(|namespace_cache| namespace_cache.names.values());
        all.for_each(|(_, object)| visit(object));
    }

    /// Stores the response to a write or a read of this replica. `None` stands for an object that this cache does not
    /// keep. If the watch has already passed this version, the cache stays unchanged.
    pub fn apply_own_write(&self, key: ObjectKey, object: Option<T>) {
        let mut state = self.state.write();
        if key.version > state.position {
            state.put_object(key, object);
        }
    }

    /// Removes an object that this replica has deleted or found missing. Late events do not bring it back.
    pub fn apply_own_delete(&self, namespace: &str, name: &str, uid: &str) {
        let mut state = self.state.write();
        if let Some(version) = state.remove_object(namespace, name, uid) {
            state.deleted.insert(uid.to_owned(), version);
        }
    }

    /// Stores an object that the watch has delivered. `None` stands for an object that this cache does not keep.
    /// Returns whether the cache changed.
    pub fn apply(&self, key: ObjectKey, object: Option<T>) -> bool {
        let mut state = self.state.write();
        state.position = state.position.max(key.version);
        state.put_object(key, object)
    }

    /// Whether the cache contains this version of the object.
    pub fn has_version(&self, key: &ObjectKey) -> bool {
        let state = self.state.read();
        let namespace_cache = state.namespaces.get(&key.namespace);
        let known = namespace_cache.and_then(|cache| cache.names.get(&key.name));
        known.is_some_and(|(known, _)| known.uid == key.uid && known.version == key.version)
    }

    /// Removes an object whose deletion the watch has delivered. Returns false if the watch or a list had removed it
    /// before.
    pub fn delete(&self, key: &ObjectKey) -> bool {
        let mut state = self.state.write();
        state.position = state.position.max(key.version);
        let ours = state.deleted.remove(&key.uid).is_some();
        let known = state.remove_object(&key.namespace, &key.name, &key.uid);
        known.is_some() || ours
    }

    /// Replaces all objects by those of a list at `version`. Later writes of this replica stay. Returns the objects
    /// that are gone.
    pub fn replace(&self, objects: Vec<(ObjectKey, Option<T>)>, version: u64) -> Vec<ObjectKey> {
        let mut state = self.state.write();
        let listed: BTreeSet<String> = objects.iter().map(|(key, _)| key.uid.clone()).collect();
        let namespace_caches = state.namespaces.values();
        let removed: Vec<ObjectKey> = namespace_caches
            .flat_map(|namespace_cache| namespace_cache.names.values())
            .map(|(key, _)| key)
            .filter(|key| key.version <= version && !listed.contains(&key.uid))
            .cloned()
            .collect();
        for key in &removed {
            state.remove_object(&key.namespace, &key.name, &key.uid);
        }
        state
            .deleted
            .retain(|uid, known| *known > version || listed.contains(uid));
        state.position = state.position.max(version);
        for (key, object) in objects {
            state.put_object(key, object);
        }
        removed
    }

    /// Records that the watch has delivered every event up to `version`.
    pub fn bookmark(&self, version: u64) {
        let mut state = self.state.write();
        state.position = state.position.max(version);
    }
}

impl<T> CacheState<T> {
    /// Returns whether the cache changed.
    fn put_object(&mut self, key: ObjectKey, object: Option<T>) -> bool {
        if self.deleted.contains_key(&key.uid) {
            return false;
        }
        let known = self.namespaces.get(&key.namespace);
        let known = known.and_then(|namespace_cache| namespace_cache.names.get(&key.name));
        let old = known.map(|(known, _)| known.clone());
        if old.as_ref().is_some_and(|old| old.version >= key.version) {
            return false;
        }
        if let Some(old) = &old {
            self.remove_object(&old.namespace, &old.name, &old.uid);
        }
        let Some(object) = object else {
            return old.is_some();
        };
        let namespace_cache = self.namespaces.entry(key.namespace.clone()).or_default();
        let controlled = namespace_cache
            .controlled
            .entry(key.controller.clone())
            .or_default();
        controlled.insert(key.name.clone());
        namespace_cache
            .names
            .insert(key.name.clone(), (key, Arc::new(object)));
        true
    }

    /// Removes an object if it has this UID. Returns the version that it had.
    fn remove_object(&mut self, namespace: &str, name: &str, uid: &str) -> Option<u64> {
        let namespace_cache = self.namespaces.get_mut(namespace)?;
        namespace_cache
            .names
            .get(name)
            .filter(|(key, _)| key.uid == uid)?;
        let (key, _) = namespace_cache.names.remove(name)?;
        if let Some(names) = namespace_cache.controlled.get_mut(&key.controller) {
            names.remove(name);
            if names.is_empty() {
                namespace_cache.controlled.remove(&key.controller);
            }
        }
        if namespace_cache.names.is_empty() {
            self.namespaces.remove(namespace);
        }
        Some(key.version)
    }
}

impl<T> Default for NamespaceCache<T> {
    fn default() -> Self {
        NamespaceCache {
            names: HashMap::new(),
            controlled: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, uid: &str, version: u64) -> ObjectKey {
        ObjectKey {
            namespace: "n".into(),
            name: name.into(),
            uid: uid.into(),
            version,
            controller: String::new(),
        }
    }

    fn cached_value(store: &ObjectCache<u64>, name: &str) -> Option<u64> {
        store.get("n", name).map(|n| *n)
    }

    #[test]
    fn newest_version_wins_from_any_source() {
        let store = ObjectCache::default();
        assert!(store.apply(key("a", "1", 5), Some(5)));
        store.apply_own_write(key("a", "1", 7), Some(7));
        assert!(
            !store.apply(key("a", "1", 6), Some(6)),
            "older than the own write"
        );
        assert_eq!(cached_value(&store, "a"), Some(7));
        assert!(
            !store.apply(key("a", "1", 7), Some(7)),
            "its echo is no news"
        );
        assert!(store.apply(key("a", "1", 9), Some(9)));
        store.apply_own_write(key("a", "1", 8), Some(8));
        assert_eq!(cached_value(&store, "a"), Some(9));
    }

    #[test]
    fn late_response_does_not_restore_deleted_object() {
        let store = ObjectCache::default();
        store.apply(key("a", "1", 5), Some(5));
        assert!(store.delete(&key("a", "1", 8)));
        store.apply_own_write(key("a", "1", 7), Some(7));
        assert_eq!(cached_value(&store, "a"), None);
    }

    #[test]
    fn late_event_does_not_restore_own_deleted_object() {
        let store = ObjectCache::default();
        store.apply(key("a", "1", 5), Some(5));
        store.apply_own_delete("n", "a", "1");
        assert!(!store.apply(key("a", "1", 6), Some(6)));
        assert!(
            store
                .replace(vec![(key("a", "1", 6), Some(6))], 6)
                .is_empty()
        );
        assert_eq!(cached_value(&store, "a"), None);
        store.apply_own_write(key("a", "2", 9), Some(9));
        assert!(store.delete(&key("a", "1", 8)), "others may wait for it");
        assert_eq!(
            cached_value(&store, "a"),
            Some(9),
            "another object of that name"
        );
        assert!(store.state.read().deleted.is_empty());
    }

    #[test]
    fn list_removes_missing_objects_except_later_writes() {
        let store = ObjectCache::default();
        store.apply(key("a", "1", 5), Some(5));
        store.apply(key("b", "2", 6), Some(6));
        store.apply_own_write(key("c", "3", 9), Some(9));
        let removed = store.replace(vec![(key("b", "2", 7), Some(7))], 8);
        assert_eq!(removed, [key("a", "1", 5)]);
        let mut left = store.all_names();
        left.sort();
        assert_eq!(left, [("n".into(), "b".into()), ("n".into(), "c".into())]);
        store.replace(Vec::new(), 10);
        assert!(store.state.read().namespaces.is_empty());
    }

    #[test]
    fn object_is_found_by_its_present_controller() {
        let store = ObjectCache::default();
        store.apply(key("a", "1", 5), Some(5));
        assert_eq!(store.controlled_by("n", "").len(), 1);
        let mut owned = key("a", "1", 6);
        owned.controller = "set".into();
        store.apply_own_write(owned.clone(), Some(6));
        assert!(store.controlled_by("n", "").is_empty());
        assert_eq!(store.controlled_by("n", "set").len(), 1);
        owned.version = 7;
        assert!(
            store.apply(owned, None),
            "no longer of the kind that is kept"
        );
        assert!(store.controlled_by("n", "set").is_empty());
    }
}
