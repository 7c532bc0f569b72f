//! Hashes and names of revisions (contract 6.1).

use serde_json::Value;

// The API server allows 253 characters for the name of a ControllerRevision, but Pods have the name as a label value.
const NAME_LIMIT: usize = 63;

/// Returns the hash of data in the form of [`super::data::revision_data`], with sorted keys. `collisions` is
/// `status.collisionCount`.
pub fn hash_data(data: &Value, collisions: Option<i32>) -> String {
    let collisions = collisions.map(|n| n.to_string()).unwrap_or_default();
    short_hash(&format!("{data}{collisions}"))
}

/// Returns the name of the revision with this hash: `<set>-<hash>`. The name of the set is truncated so that the result
/// is a valid label value.
pub fn revision_name(set: &str, hash: &str) -> String {
    let prefix = set
        .get(..max_set_name(hash))
        .unwrap_or(set)
        .trim_end_matches(['-', '.']);
    format!("{prefix}-{hash}")
}

/// Whether a revision has a name that a set of this name gives, or gave under Kuperator. Kuperator writes `-` for each
/// `.`, and does not trim the end of a truncated name. A hash contains no `-`, so `web` does not match `web-a-<hash>`.
/// The hash comes from the name and not from the label, because Kuperator may have changed only the name after a
/// collision.
pub fn is_revision_name_of(set: &str, revision: &str) -> bool {
    let Some((_, hash)) = revision.rsplit_once('-') else {
        return false;
    };
    let plain = set.replace('.', "-");
    let by_kuperator = plain.get(..max_set_name(hash)).unwrap_or(&plain);
    revision == revision_name(set, hash) || revision == format!("{by_kuperator}-{hash}")
}

fn max_set_name(hash: &str) -> usize {
    NAME_LIMIT.saturating_sub(hash.len() + 1)
}

/// Returns the 32-bit FNV-1 hash as a decimal number in the alphabet by which Kubernetes avoids bad words.
pub fn short_hash(text: &str) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    hash.to_string()
        .bytes()
        .map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // The FNV-1 hashes of these texts are 2166136261, 84696446 and 837857890.
    #[test]
    fn hash_is_fnv_1_in_alphabet_of_kubernetes() {
        for (text, hash) in [
            ("", "65bb57b6b5"),
            ("a", "d8bfb88b"),
            ("foobar", "d7cd9cdf4"),
        ] {
            assert_eq!(short_hash(text), hash);
        }
    }

    #[test]
    fn collision_count_is_part_of_hash() {
        let data = json!({ "spec": {} });
        assert_eq!(hash_data(&data, None), short_hash(r#"{"spec":{}}"#));
        assert_eq!(hash_data(&data, Some(1)), short_hash(r#"{"spec":{}}1"#));
        assert_ne!(hash_data(&data, Some(0)), hash_data(&data, None));
    }

    #[test]
    fn name_fits_label_value() {
        assert_eq!(revision_name("web", "bcd"), "web-bcd");
        let long = revision_name(&"a".repeat(100), "bcdfghjklm");
        assert_eq!(long.len(), 63);
        assert_eq!(long, format!("{}-bcdfghjklm", "a".repeat(52)));
        let dashed = format!("{}-b", "a".repeat(51));
        assert_eq!(
            revision_name(&dashed, "bcdfghjklm"),
            format!("{}-bcdfghjklm", "a".repeat(51))
        );
    }
}
