//! How many more instance IDs fit into the pool. The pool is one object, and etcd stores no object larger than 1.5 MiB
//! (`--max-request-bytes`). No entry of a full pool can be changed any more, so the pool is never filled completely. A
//! set that grows stops before that, and `Replace`, which takes a second ID for each Pod, goes on in waves.
//!
//! The size of an entry is an upper bound over its life. An entry first has the mark of a fresh ID; later it needs the
//! same space for the mark of a Pod that is scaled in or was replaced. Entries of existing Pods are written whatever
//! their size.

use std::collections::BTreeMap;

use super::draft::Draft;
use super::set_facts::SetFacts;
use crate::api::resourcecontext::ContextDetail;
use crate::api::resourcecontext::data::{
    JUST_CREATE, OWNER, REPLACE_NEW, REPLACE_ORIGIN, REVISION,
};

/// Largest allowed size of all entries of a pool, in bytes as the API server stores them. The limit of etcd leaves
/// 72,864 bytes for the rest of the object, for annotations of others, and for the 25 bytes that `podToDelete` adds to
/// the entries of the Pods that it names. The API server treats the list as one field: `managedFields` takes 192 bytes
/// with 2,000 entries and with 10,000. etcd adds a few hundred bytes to a request.
pub const MAX_POOL_BYTES: usize = 1_500_000;

/// The longest instance ID that the size of an entry includes. Longer IDs are counted separately.
const MAX_ID_DIGITS: &str = "99999";
/// Characters that the name of a revision adds to the name of its set, and the largest length of the whole name.
const REVISION_HASH_LENGTHS: (usize, usize) = (11, 63);

/// The remaining bytes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    free_bytes: usize,
    sizes: EntrySizes,
}

/// Sizes of the entries of one set, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntrySizes {
    /// Size of the entry of an instance ID.
    entry: usize,
    /// The part of `entry` that the revision takes.
    revision: usize,
    /// Size that a pair adds to the entry of its origin.
    pair: usize,
}

impl EntrySizes {
    /// Computes the sizes for a set of this name.
    fn for_set_name(name: &str) -> EntrySizes {
        let revision =
            "r".repeat((name.len() + REVISION_HASH_LENGTHS.0).min(REVISION_HASH_LENGTHS.1));
        let plain = [(OWNER, name), (REVISION, &revision), (JUST_CREATE, "true")];
        let marks = plain.map(|(key, value)| entry_mark_bytes(key, value));
        let entry = ENTRY_OVERHEAD + MAX_ID_DIGITS.len() + marks.into_iter().sum::<usize>();
        let links = [REPLACE_NEW, REPLACE_ORIGIN].map(|key| entry_mark_bytes(key, MAX_ID_DIGITS));
        EntrySizes {
            entry,
            revision: entry_mark_bytes(REVISION, &revision),
            pair: entry + links.into_iter().sum::<usize>(),
        }
    }

    /// Largest size of an entry of the set while it has these keys.
    fn max_entry_bytes<'a>(
        self,
        id: i64,
        data: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> usize {
        let more = data.into_iter().map(|(key, value)| match key.as_str() {
            OWNER => 0,
            JUST_CREATE => value.len().saturating_sub("true".len()),
            REVISION => entry_mark_bytes(key, value).saturating_sub(self.revision),
            _ => entry_mark_bytes(key, value),
        });
        self.entry + more.sum::<usize>() + count_digits(id).saturating_sub(MAX_ID_DIGITS.len())
    }
}

impl Headroom {
    /// The space beside the set's draft entries and the entries of other sets in the pool.
    pub fn beside_draft(facts: &SetFacts, draft: &Draft) -> Headroom {
        Headroom::with_entries(facts, draft.ids.iter().map(|(id, data)| (*id, data)))
    }

    /// The space that the stored pool leaves.
    pub fn from_stored_pool(facts: &SetFacts) -> Headroom {
        let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
        let own = contexts.filter(|context| facts.is_own_entry(&context.data));
        Headroom::with_entries(facts, own.map(|context| (context.id, &context.data)))
    }

    fn with_entries<'a>(
        facts: &SetFacts,
        own: impl Iterator<Item = (i64, &'a BTreeMap<String, String>)>,
    ) -> Headroom {
        let sizes = EntrySizes::for_set_name(facts.name);
        let own = own.map(|(id, data)| sizes.max_entry_bytes(id, data));
        let contexts = facts.observed.pool.iter().flat_map(|pool| &pool.contexts);
        let others = contexts.filter(|context| !facts.is_own_entry(&context.data));
        // Other sets add and remove their marks too.
        let others = others.map(|context| match context.data.contains_key(JUST_CREATE) {
            true => entry_bytes(context),
            false => entry_bytes(context) + entry_mark_bytes(JUST_CREATE, "true"),
        });
        let taken = own.sum::<usize>() + others.sum::<usize>();
        Headroom {
            free_bytes: facts.observed.pool_bytes.saturating_sub(taken),
            sizes,
        }
    }

    /// Takes the space of one more instance ID. Returns false if there is not enough.
    pub fn take_entry(&mut self) -> bool {
        self.take_bytes(self.sizes.entry)
    }

    /// Takes the space of the new Pod of a pair. Returns false if there is not enough.
    pub fn take_half(&mut self) -> bool {
        self.take_bytes(self.sizes.pair)
    }

    fn take_bytes(&mut self, bytes: usize) -> bool {
        let has = self.free_bytes >= bytes;
        if has {
            self.free_bytes -= bytes;
        }
        has
    }

    /// Whether there is no space for another instance ID.
    pub fn is_full(&self) -> bool {
        self.free_bytes < self.sizes.entry
    }

    /// Number of pairs for which there is space.
    pub fn pairs_that_fit(&self) -> usize {
        self.free_bytes / self.sizes.pair
    }
}

/// Largest number of Pods of a set of this name, if no other set shares its pool.
pub fn max_replicas(name: &str) -> usize {
    MAX_POOL_BYTES / EntrySizes::for_set_name(name).entry
}

/// Largest number of pairs that can be open at once beside this many Pods.
pub fn max_pairs(name: &str, replicas: usize) -> usize {
    let sizes = EntrySizes::for_set_name(name);
    MAX_POOL_BYTES.saturating_sub(replicas * sizes.entry) / sizes.pair
}

/// Bytes of an entry without its ID and its data.
const ENTRY_OVERHEAD: usize = r#"{"id":,"data":{}},"#.len();

/// Bytes of an entry in the list, or one byte more.
fn entry_bytes(context: &ContextDetail) -> usize {
    let data = context
        .data
        .iter()
        .map(|(key, value)| entry_mark_bytes(key, value));
    ENTRY_OVERHEAD + count_digits(context.id) + data.sum::<usize>()
}

fn count_digits(id: i64) -> usize {
    let digits = id.unsigned_abs().checked_ilog10().unwrap_or(0) + 1;
    usize::try_from(digits).unwrap_or(0) + usize::from(id < 0)
}

/// Bytes that one more key takes in an entry, as Go writes JSON: a backslash before quotes and backslashes,
/// and six characters for control characters and for those with a meaning in HTML.
fn entry_mark_bytes(key: &str, value: &str) -> usize {
    let escaped = value.bytes().map(|byte| match byte {
        b'"' | b'\\' => 1,
        b'<' | b'>' | b'&' | 0..0x20 => 5,
        _ => 0,
    });
    key.len() + value.len() + escaped.sum::<usize>() + r#""":"","#.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::collaset::pool::{REPLACED, SCALE_IN};

    fn entry(id: i64, data: &[(&str, &str)]) -> ContextDetail {
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        ContextDetail {
            id,
            data: data.collect(),
        }
    }

    fn stored(entry: &ContextDetail) -> usize {
        serde_json::to_string(entry).map_or(0, |text| text.len() + 1)
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
            let revision =
                crate::domain::collaset::revision::hash::revision_name(name, "6789bcdfgh");
            let sizes = EntrySizes::for_set_name(name);
            let plain = [(OWNER, name), (REVISION, &*revision), (JUST_CREATE, "true")];
            let fresh = entry(99_999, &plain);
            assert!(stored(&fresh) <= sizes.entry, "{name}");
            assert_eq!(sizes.max_entry_bytes(99_999, &fresh.data), sizes.entry);
            // Marks that an entry gets later.
            for mark in [SCALE_IN, REPLACED] {
                let marks = [plain[0], plain[1], (mark, "true")];
                assert!(stored(&entry(99_999, &marks)) <= sizes.entry, "{name}");
            }
            let origin = [
                (OWNER, name),
                (REVISION, &*revision),
                (REPLACE_NEW, "12345"),
            ];
            let mut new = plain.to_vec();
            new.push((REPLACE_ORIGIN, "12346"));
            let pair = stored(&entry(12_346, &origin)) + stored(&entry(12_345, &new));
            assert!(pair <= sizes.entry + sizes.pair, "{name}");
        }
    }

    #[test]
    fn marks_of_others_and_long_ids_count_too() {
        let decorated = ("PodDecorationRevisions", r#"[{"name":"a"}]"#);
        let sizes = EntrySizes::for_set_name("web");
        let foreign = "web-of-another-controller-with-longer-names";
        let plain = [(OWNER, "web"), (REVISION, foreign), (JUST_CREATE, "true")];
        for id in [0, 7, 10, 123_456, i64::MAX, -5] {
            let mut data = plain.to_vec();
            data.push(decorated);
            let entry = entry(id, &data);
            let exact = stored(&entry);
            assert!((exact..=exact + 1).contains(&entry_bytes(&entry)), "{id}");
            assert!(sizes.max_entry_bytes(id, &entry.data) >= exact, "{id}");
        }
        assert_eq!(entry_mark_bytes("a", "<\n"), r#""a":"\u003c\u000a","#.len());
    }

    #[test]
    fn pool_fits_ten_thousand_pods_with_34_character_names() {
        let fits = |length: usize| max_replicas(&"n".repeat(length)) >= 10_000;
        assert!(fits(34) && !fits(35));
        assert!(max_replicas("web") > 17_000);
        let pairs = max_pairs(&"n".repeat(30), 10_000);
        assert!((300..1_000).contains(&pairs), "{pairs}");
        assert_eq!(max_pairs(&"n".repeat(40), 10_000), 0);
    }
}
