//! Keeps equal values of many objects only once in memory.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

/// A value that several objects may share. A change makes a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Shared::from)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Shared(Arc::new(value))
    }
}

impl<A, T: FromIterator<A>> FromIterator<A> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = A>>(items: I) -> Self {
        Shared::from(T::from_iter(items))
    }
}

impl<'a, T> IntoIterator for &'a Shared<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&**self).into_iter()
    }
}

/// The distinct values of related objects, such as the specs of one owner's Pods, of which there are as many as
/// revisions.
#[derive(Debug)]
pub struct Interner<T>(Vec<Shared<T>>);

/// Largest number of values that an [`Interner`] compares with. If all values differ, more would not save memory.
const MAX_DISTINCT: usize = 4;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner(Vec::new())
    }
}

impl<T: PartialEq> Interner<T> {
    /// Replaces the value with an equal one of this [`Interner`]. If there is none, the value is added.
    pub fn intern(&mut self, value: &mut Shared<T>) {
        if let Some(shared) = self.0.iter().find(|shared| ***shared == **value) {
            value.0 = Arc::clone(&shared.0);
            return;
        }
        self.0.retain(|shared| Arc::strong_count(&shared.0) > 1);
        if self.0.len() == MAX_DISTINCT {
            self.0.remove(0);
        }
        self.0.push(Shared(Arc::clone(&value.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same<T>(a: &Shared<T>, b: &Shared<T>) -> bool {
        Arc::ptr_eq(&a.0, &b.0)
    }

    #[test]
    fn equal_values_are_kept_once() {
        let mut pool = Interner::default();
        let [mut a, mut b, mut c] = ["x", "x", "y"].map(Shared::from);
        for value in [&mut a, &mut b, &mut c] {
            pool.intern(value);
        }
        assert!(is_same(&a, &b) && !is_same(&a, &c));
        assert_eq!((*a, *b, *c), ("x", "x", "y"));
    }

    #[test]
    fn change_does_not_reach_others() {
        let mut pool = Interner::default();
        let [mut a, mut b] = [1, 1].map(Shared::from);
        pool.intern(&mut a);
        pool.intern(&mut b);
        *b += 1;
        assert_eq!((*a, *b), (1, 2));
    }

    #[test]
    fn unused_values_are_dropped() {
        let mut pool = Interner::default();
        let mut value = Shared::from(0);
        pool.intern(&mut value);
        for n in 1..100 {
            pool.intern(&mut Shared::from(n));
        }
        let mut equal = Shared::from(0);
        pool.intern(&mut equal);
        assert!(is_same(&value, &equal));
        assert!(pool.0.len() <= 2, "{}", pool.0.len());
    }

    #[test]
    fn pool_of_values_that_all_differ_stays_small() {
        let mut pool = Interner::default();
        let mut values: Vec<_> = (0..100).map(Shared::from).collect();
        values.iter_mut().for_each(|value| pool.intern(value));
        assert_eq!(pool.0.len(), MAX_DISTINCT);
    }
}
