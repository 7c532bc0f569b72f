//! The decorations that the controller of PodDecorations has published in this term, for the plans of CollaSets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;

use super::DecorationName;
use crate::cluster::objects::ObjectCaches;
use crate::domain::decoration::Decoration;

/// The published decorations of all namespaces. The plans of CollaSets read PodDecorations only from here, so that all
/// sets act on the same choice of members.
#[derive(Debug, Default)]
pub struct DecorationBoard(Mutex<HashMap<String, BTreeMap<String, Arc<Decoration>>>>);

impl DecorationBoard {
    /// Publishes a decoration. Returns whether it differs from the value that was published before.
    pub fn publish(&self, namespace: &str, decoration: Decoration) -> bool {
        let mut board = self.0.lock();
        let published = board.entry(namespace.to_owned()).or_default();
        let former = published.get(&decoration.name);
        let is_new = former.is_none_or(|former| **former != decoration);
        if is_new {
            published.insert(decoration.name.clone(), Arc::new(decoration));
        }
        is_new
    }

    /// Removes a decoration whose PodDecoration is gone. Returns whether it was there.
    pub fn withdraw(&self, namespace: &str, name: &str) -> bool {
        let mut board = self.0.lock();
        let Some(published) = board.get_mut(namespace) else {
            return false;
        };
        let was_there = published.remove(name).is_some();
        if published.is_empty() {
            board.remove(namespace);
        }
        was_there
    }

    /// The published decoration of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Decoration>> {
        self.0.lock().get(namespace)?.get(name).cloned()
    }

    /// The published decorations of a namespace, ordered by name.
    pub fn decorations(&self, namespace: &str) -> Vec<Arc<Decoration>> {
        let board = self.0.lock();
        let published = board.get(namespace).into_iter().flat_map(BTreeMap::values);
        published.cloned().collect()
    }

    /// The names of all published decorations.
    pub fn all_names(&self) -> Vec<DecorationName> {
        let board = self.0.lock();
        let names = board.iter().flat_map(|(namespace, published)| {
            let names = published.keys();
            names.map(|name| (namespace.clone(), name.clone()))
        });
        names.collect()
    }
}

/// The decorations from which a CollaSet of the namespace may be planned, ordered by name. `None` while the present spec
/// of a PodDecoration of the namespace has not been published in this term: a plan would remove the decoration from Pods,
/// or create Pods with a former revision of it. This lasts milliseconds. When the value is published, or when the
/// PodDecoration is found gone, all sets of the namespace are enqueued.
///
/// A decoration whose PodDecoration has left the cache is still included, until the controller of PodDecorations
/// withdraws it.
pub fn published_decorations(
    board: &DecorationBoard,
    objects: &ObjectCaches,
    namespace: &str,
) -> Option<Vec<Arc<Decoration>>> {
    let decorations = board.decorations(namespace);
    let is_published = |metadata: &ObjectMeta| {
        let name = metadata.name.as_deref().unwrap_or_default();
        let mut published = decorations
            .iter()
            .filter(|published| published.name == name);
        published.any(|published| {
            published.generation >= metadata.generation.unwrap_or(0)
                && Some(&published.uid) == metadata.uid.as_ref()
        })
    };
    let mut cached = objects.decorations.objects_of(namespace).into_iter();
    let is_complete = cached.all(|cached| is_published(&cached.object.metadata));
    is_complete.then_some(decorations)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cluster::objects::{CachedKind, DecorationObject};

    fn decoration(name: &str, generation: i64) -> Decoration {
        Decoration {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            generation,
            ..Decoration::default()
        }
    }

    fn cache_decoration(objects: &ObjectCaches, name: &str, uid: &str, generation: i64) {
        let object = json!({ "metadata": {
            "namespace": "n", "name": name, "uid": uid, "generation": generation,
            "resourceVersion": generation.to_string(),
        } });
        let object: DecorationObject = serde_json::from_str(&object.to_string()).unwrap();
        let key = object.object_key();
        objects.decorations.apply(key, object.into_cached());
    }

    #[test]
    fn publishing_tells_changes() {
        let board = DecorationBoard::default();
        assert!(board.publish("n", decoration("a", 1)));
        assert!(!board.publish("n", decoration("a", 1)));
        assert!(board.publish("n", decoration("a", 2)));
        assert!(board.publish("m", decoration("a", 2)));
        assert_eq!(board.decorations("n"), [decoration("a", 2).into()]);
        let mut names = board.all_names();
        names.sort();
        assert_eq!(names, [("m".into(), "a".into()), ("n".into(), "a".into())]);
        assert!(board.withdraw("n", "a") && !board.withdraw("n", "a"));
        assert_eq!(board.get("n", "a"), None);
        assert_eq!(board.get("m", "a"), Some(decoration("a", 2).into()));
    }

    #[test]
    fn sets_wait_until_every_decoration_is_published() {
        let (board, objects) = (DecorationBoard::default(), ObjectCaches::default());
        assert_eq!(published_decorations(&board, &objects, "n"), Some(vec![]));
        cache_decoration(&objects, "a", "uid-of-a", 1);
        cache_decoration(&objects, "b", "uid-of-b", 1);
        board.publish("n", decoration("a", 1));
        assert_eq!(published_decorations(&board, &objects, "n"), None);
        assert_eq!(published_decorations(&board, &objects, "m"), Some(vec![]));
        board.publish("n", decoration("b", 1));
        let both = vec![decoration("a", 1).into(), decoration("b", 1).into()];
        assert_eq!(published_decorations(&board, &objects, "n"), Some(both));
    }

    #[test]
    fn sets_wait_until_change_is_published() {
        let is_complete = |uid: &str, generation, published: Decoration| {
            let (board, objects) = (DecorationBoard::default(), ObjectCaches::default());
            cache_decoration(&objects, "a", uid, generation);
            board.publish("n", published);
            published_decorations(&board, &objects, "n").is_some()
        };
        assert!(is_complete("uid-of-a", 2, decoration("a", 2)));
        assert!(is_complete("uid-of-a", 1, decoration("a", 2)));
        assert!(!is_complete("uid-of-a", 3, decoration("a", 2)));
        assert!(!is_complete("another", 1, decoration("a", 2)));
    }

    #[test]
    fn uncached_decoration_stays_until_withdrawn() {
        let (board, objects) = (DecorationBoard::default(), ObjectCaches::default());
        board.publish("n", decoration("a", 1));
        let published = published_decorations(&board, &objects, "n");
        assert_eq!(published, Some(vec![decoration("a", 1).into()]));
        board.withdraw("n", "a");
        assert_eq!(published_decorations(&board, &objects, "n"), Some(vec![]));
    }
}
