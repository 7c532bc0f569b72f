//! Results that depend on two compositions only, and so are computed once for all Pods that change between them.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Results that were needed so far, by the names of the old and the new composition.
#[derive(Debug)]
pub struct KnownChanges<T>(RefCell<BTreeMap<String, BTreeMap<String, T>>>);

impl<T> Default for KnownChanges<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: Clone> KnownChanges<T> {
    /// Returns the known result, or computes it.
    pub fn get_or_compute(&self, from: &str, to: &str, compute: impl FnOnce() -> T) -> T {
        // A known result is found without an allocation, because this is called for each Pod.
        let known = self.0.borrow();
        if let Some(result) = known.get(from).and_then(|known| known.get(to)) {
            return result.clone();
        }
        drop(known);
        let result = compute();
        let mut known = self.0.borrow_mut();
        let of_old = known.entry(from.to_owned()).or_default();
        of_old.insert(to.to_owned(), result.clone());
        result
    }
}
