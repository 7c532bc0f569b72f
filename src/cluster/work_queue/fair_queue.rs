//! Keeps keys that wait for a worker, by namespace. The namespaces take turns, and no namespace holds so many workers
//! that none is left for others.

use std::collections::{HashMap, VecDeque};

use super::QueueKey;

/// The waiting keys of a queue, and how many workers each namespace holds.
///
/// A namespace gets another worker only while it holds fewer workers than are free. (Network switches limit the buffers
/// of their ports in the same way.) A single namespace gets half of the workers, the next namespace half of the rest,
/// and so on. A new namespace finds a free worker unless as many other namespaces are busy as the number of workers can
/// be halved.
#[derive(Debug)]
pub struct FairQueue<K> {
    waiting: HashMap<String, VecDeque<K>>,
    /// The namespaces of `waiting` in the order of their turns.
    order: VecDeque<String>,
    /// How many workers each namespace holds. A namespace without workers has no entry.
    workers: HashMap<String, usize>,
    /// How many keys wait.
    len: usize,
    free: usize,
}

impl<K> Default for FairQueue<K> {
    fn default() -> Self {
        FairQueue {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            workers: HashMap::new(),
            len: 0,
            free: 0,
        }
    }
}

impl<K: QueueKey> FairQueue<K> {
    /// Sets the number of workers. All of them are free.
    pub fn set_workers(&mut self, workers: usize) {
        self.free = workers;
    }

    pub fn push(&mut self, key: K) {
        let namespace = key.namespace();
        self.len += 1;
        if let Some(waiting) = self.waiting.get_mut(namespace) {
            waiting.push_back(key);
            return;
        }
        let namespace = namespace.to_owned();
        self.order.push_back(namespace.clone());
        self.waiting.insert(namespace, VecDeque::from([key]));
    }

    /// Takes the next key of a namespace that may have another worker. The caller is the worker of the key until it
    /// calls [`FairQueue::release_worker`].
    pub fn take_next(&mut self) -> Option<K> {
        let workers = |namespace: &String| self.workers.get(namespace).copied().unwrap_or(0);
        let next = self.order.iter().position(|n| workers(n) < self.free)?;
        let namespace = self.order.remove(next)?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let key = waiting.pop_front()?;
        if waiting.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace.clone());
        }
        *self.workers.entry(namespace).or_default() += 1;
        self.len -= 1;
        self.free -= 1;
        Some(key)
    }

    /// Marks the worker of a key as free again.
    pub fn release_worker(&mut self, key: &K) {
        let namespace = key.namespace();
        self.free += 1;
        if let Some(workers) = self.workers.get_mut(namespace) {
            *workers -= 1;
            if *workers == 0 {
                self.workers.remove(namespace);
            }
        }
    }

    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, number: u32) -> (String, u32) {
        (namespace.to_owned(), number)
    }

    #[test]
    fn namespaces_take_turns_and_keep_their_order() {
        let mut share = FairQueue::default();
        share.set_workers(100);
        for number in 0..3 {
            share.push(key("a", number));
        }
        share.push(key("b", 7));
        let taken: Vec<_> = std::iter::from_fn(|| share.take_next()).collect();
        assert_eq!(taken, [key("a", 0), key("b", 7), key("a", 1), key("a", 2)]);
        assert!(share.is_empty());
    }

    #[test]
    fn each_namespace_gets_half_of_what_others_leave() {
        let mut share = FairQueue::default();
        share.set_workers(16);
        let mut take = |namespace: &str| {
            for number in 0..100 {
                share.push(key(namespace, number));
            }
            std::iter::from_fn(|| share.take_next()).count()
        };
        assert_eq!(["a", "b", "c", "d", "e"].map(&mut take), [8, 4, 2, 1, 1]);
    }

    #[test]
    fn single_worker_is_used_and_given_back() {
        let mut share = FairQueue::default();
        share.set_workers(1);
        share.push(key("a", 0));
        share.push(key("a", 1));
        assert_eq!(share.take_next(), Some(key("a", 0)));
        assert_eq!((share.take_next(), share.len()), (None, 1));
        share.release_worker(&key("a", 0));
        assert_eq!(share.take_next(), Some(key("a", 1)));
    }
}
