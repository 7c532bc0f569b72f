//! The decorations that the controller of PodDecorations has published in this term, for the plans of CollaSets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoration(name: &str, generation: i64) -> Decoration {
        Decoration {
            name: name.to_owned(),
            generation,
            ..Decoration::default()
        }
    }

    #[test]
    fn publishing_tells_changes() {
        let board = DecorationBoard::default();
        assert!(board.publish("n", decoration("a", 1)));
        assert!(!board.publish("n", decoration("a", 1)));
        assert!(board.publish("n", decoration("a", 2)));
        assert!(board.publish("m", decoration("a", 2)));
        assert_eq!(board.decorations("n"), [decoration("a", 2).into()]);
        assert!(board.withdraw("n", "a") && !board.withdraw("n", "a"));
        assert_eq!(board.get("n", "a"), None);
        assert_eq!(board.get("m", "a"), Some(decoration("a", 2).into()));
    }
}
