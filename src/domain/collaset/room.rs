//! How many instance IDs the pool has room for: it is one object, and etcd stores none that is larger than 1.5 MiB
//! (`--max-request-bytes`). Of a full pool no entry can be changed any more, so that it is never filled: a set that grows stops
//! there, and `Replace`, which takes a second ID for each Pod, goes on in waves.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::pool::{JUST_CREATE, OWNER, REPLACE_NEW, REPLACE_ORIGIN, REVISION};
use crate::api::resourcecontext::ContextDetail;

/// Most bytes of all entries of a pool, as the API server stores them. The rest of 1.5 MiB is for metadata.
pub const MOST: usize = 1_500_000;

/// Characters of an instance ID at most, as far as a pool goes.
const ID: &str = "99999";
/// Those that the name of a revision adds to the name of its set, and the longest that it can be.
const HASH: (usize, usize) = (11, 63);

/// Bytes that are left in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    left: usize,
    sizes: Sizes,
}

/// Bytes of the entries of one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Of an instance ID.
    entry: usize,
    /// What a pair of Pods takes beside the entry of its origin.
    pair: usize,
}

impl Sizes {
    /// For a set of this name.
    fn of(name: &str) -> Sizes {
        let revision = "r".repeat((name.len() + HASH.0).min(HASH.1));
        let data = [(OWNER, name), (REVISION, &revision), (JUST_CREATE, "true")];
        let entry = bytes(&ContextDetail {
            id: ID.parse().unwrap_or(i64::MAX),
            data: data
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        });
        let links = [REPLACE_NEW, REPLACE_ORIGIN].map(|key| mark(key, ID));
        Sizes {
            entry,
            pair: entry + links.into_iter().sum::<usize>(),
        }
    }
}

impl Room {
    /// What is left beside these entries of the set, and those of others that share the pool.
    pub fn beside<'a>(
        facts: &Facts,
        own: impl Iterator<Item = &'a BTreeMap<String, String>>,
    ) -> Room {
        let sizes = Sizes::of(facts.name);
        let plain = [OWNER, REVISION, JUST_CREATE];
        let own = own.map(|data| {
            let marks = data
                .iter()
                .filter(|(key, _)| !plain.contains(&key.as_str()));
            sizes.entry + marks.map(|(key, value)| mark(key, value)).sum::<usize>()
        });
        let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
        let others = contexts.filter(|context| !facts.owns(&context.data));
        let others: usize = others.map(bytes).sum();
        let taken = own.sum::<usize>() + others;
        Room {
            left: facts.observed.pool_bytes.saturating_sub(taken),
            sizes,
        }
    }

    /// Takes the room of one more instance ID, if there is any.
    pub fn take_entry(&mut self) -> bool {
        self.take(self.sizes.entry)
    }

    /// Takes the room of the new half of a pair, if there is any.
    pub fn take_half(&mut self) -> bool {
        self.take(self.sizes.pair)
    }

    fn take(&mut self, bytes: usize) -> bool {
        let has = self.left >= bytes;
        if has {
            self.left -= bytes;
        }
        has
    }

    /// Whether there is none for another instance ID.
    pub fn is_full(&self) -> bool {
        self.left < self.sizes.entry
    }

    /// Pairs that can be opened.
    pub fn pairs(&self) -> usize {
        self.left / self.sizes.pair
    }
}

/// Pods that a set of this name can have, if its pool is its own.
pub fn most_replicas(name: &str) -> usize {
    MOST / Sizes::of(name).entry
}

/// Pairs that can be open at once beside so many Pods.
pub fn most_pairs(name: &str, replicas: usize) -> usize {
    let sizes = Sizes::of(name);
    MOST.saturating_sub(replicas * sizes.entry) / sizes.pair
}

/// Bytes of an entry in the list.
fn bytes(context: &ContextDetail) -> usize {
    serde_json::to_string(context).map_or(0, |text| text.len() + 1)
}

/// Bytes of one more key of an entry; quotes in the value are written with a backslash.
fn mark(key: &str, value: &str) -> usize {
    let escaped = value.matches(['"', '\\']).count();
    key.len() + value.len() + escaped + r#""":"","#.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i64, data: &[(&str, &str)]) -> ContextDetail {
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        ContextDetail {
            id,
            data: data.collect(),
        }
    }

    #[test]
    fn no_entry_is_larger_than_it_is_counted() {
        for name in [
            "a",
            "web",
            &"n".repeat(52),
            &"n".repeat(63),
            &"n".repeat(200),
        ] {
            let revision = crate::domain::collaset::revision::hash::name(name, "6789bcdfgh");
            let sizes = Sizes::of(name);
            let plain = [(OWNER, name), (REVISION, &*revision), (JUST_CREATE, "true")];
            assert!(bytes(&entry(99_999, &plain)) <= sizes.entry, "{name}");
            let origin = [
                (OWNER, name),
                (REVISION, &*revision),
                (REPLACE_NEW, "12345"),
            ];
            let mut new = plain.to_vec();
            new.push((REPLACE_ORIGIN, "12346"));
            let pair = bytes(&entry(12_346, &origin)) + bytes(&entry(12_345, &new));
            assert!(pair <= sizes.entry + sizes.pair, "{name}");
        }
        let quoted = entry(0, &[("PodDecorationRevisions", r#"[{"name":"a"}]"#)]);
        let counted = mark("PodDecorationRevisions", r#"[{"name":"a"}]"#);
        assert_eq!(
            bytes(&quoted) - bytes(&entry(0, &[])),
            counted + r#","data":{}"#.len() - 1
        );
    }

    #[test]
    fn ten_thousand_pods_fit_for_names_of_up_to_35_characters() {
        let fits = |length: usize| most_replicas(&"n".repeat(length)) >= 10_000;
        assert!(fits(35) && !fits(37));
        assert!(most_replicas("web") > 17_000);
        let pairs = most_pairs(&"n".repeat(30), 10_000);
        assert!((300..1_000).contains(&pairs), "{pairs}");
        assert_eq!(most_pairs(&"n".repeat(40), 10_000), 0);
    }
}
