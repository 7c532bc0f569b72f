//! Names of Pods and PVCs that the API server would otherwise choose (naming Random). This module chooses the name and
//! keeps it until a cache contains the object. If the answer to a create is lost, the controller repeats the create
//! under the same name and finds its own object. A second object is not made.

use std::collections::HashMap;

use super::refusals::RefusalKey;

/// The object that a name is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NameSlot {
    /// The Pod of an instance ID.
    Pod(i64),
    /// The PVC of an instance ID and a volume claim template.
    Pvc(i64, String),
}

impl NameSlot {
    /// The key under which a refusal of the creation is recorded.
    pub fn refusal_key(&self) -> RefusalKey {
        match self {
            NameSlot::Pod(id) => RefusalKey::Pod(*id),
            NameSlot::Pvc(id, template) => RefusalKey::Pvc(*id, template.clone()),
        }
    }
}

/// Names that were chosen or given, and whose objects no cache contains yet.
#[derive(Debug, Default)]
pub struct PendingNames(HashMap<NameSlot, PendingName>);

#[derive(Debug, Default)]
struct PendingName {
    text: String,
    /// Whether a spec gives the name. Such a name is never used as a chosen name.
    is_given: bool,
    /// UID of the object that was created under the name, if the object differs from what was created.
    altered_uid: Option<String>,
}

/// The characters of `generateName` suffixes of the API server. Without vowels, so that no suffix is a word.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest `generateName` prefix that the API server uses; it cuts longer ones.
const MAX_PREFIX: usize = 58;

impl PendingNames {
    /// The name for a slot: the name of an earlier attempt if it begins with `prefix`, or else `prefix` and five
    /// characters derived from `random`.
    pub fn choose_name(&mut self, slot: &NameSlot, prefix: &str, random: u32) -> String {
        let prefix = prefix.get(..MAX_PREFIX).unwrap_or(prefix);
        let chosen = self.0.get(slot).filter(|name| !name.is_given);
        if let Some(chosen) = chosen.filter(|name| name.text.starts_with(prefix)) {
            return chosen.text.clone();
        }
        let mut remaining = usize::try_from(random).unwrap_or(0);
        let suffix = (0..5).map(|_| {
            let letter = LETTERS[remaining % LETTERS.len()];
            remaining /= LETTERS.len();
            char::from(letter)
        });
        let text: String = prefix.chars().chain(suffix).collect();
        let name = PendingName {
            text: text.clone(),
            ..PendingName::default()
        };
        self.0.insert(slot.clone(), name);
        text
    }

    /// Forgets the name of a slot, because the object exists or another object has the name. The next object gets
    /// another name.
    pub fn forget_name(&mut self, slot: &NameSlot) {
        self.0.remove(slot);
    }

    /// Records a name that a spec gives, so that [`Self::forget_observed_names`] finds its slot when a cache
    /// contains the object.
    pub fn record_given_name(&mut self, slot: &NameSlot, name: &str) {
        let pending = self.0.entry(slot.clone()).or_default();
        if pending.text != name {
            *pending = PendingName {
                text: name.to_owned(),
                ..PendingName::default()
            };
        }
        pending.is_given = true;
    }

    /// Records that the object with this UID was created under the name of the slot, and differs from what was created.
    pub fn mark_altered(&mut self, slot: &NameSlot, uid: String) {
        if let Some(name) = self.0.get_mut(slot) {
            name.altered_uid = Some(uid);
        }
    }

    /// UID of the object of a slot, if the object differs from what was created.
    pub fn altered_uid(&self, slot: &NameSlot) -> Option<String> {
        self.0.get(slot)?.altered_uid.clone()
    }

    /// Forgets the names of objects that the caches contain. Returns their slots.
    pub fn forget_observed_names(
        &mut self,
        mut is_cached: impl FnMut(&NameSlot, &str) -> bool,
    ) -> Vec<NameSlot> {
        let cached = self.0.extract_if(|slot, name| is_cached(slot, &name.text));
        cached.map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_kept_until_its_object_is_cached() {
        let mut names = PendingNames::default();
        let first = names.choose_name(&NameSlot::Pod(0), "web-", 0);
        assert_eq!(first, "web-bbbbb");
        assert_eq!(names.choose_name(&NameSlot::Pod(0), "web-", 1), first);
        let other = names.choose_name(&NameSlot::Pod(1), "web-", 1);
        assert_eq!(other, "web-cbbbb");
        let pvc = names.choose_name(&NameSlot::Pvc(0, "data".into()), "web-", 0);
        let observed =
            names.forget_observed_names(|slot, name| *slot == NameSlot::Pod(0) && name == first);
        assert_eq!(observed, [NameSlot::Pod(0)]);
        assert_eq!(
            names.choose_name(&NameSlot::Pod(0), "web-", 27),
            "web-bcbbb"
        );
        assert_eq!(names.choose_name(&NameSlot::Pod(1), "web-", 2), other);
        assert_eq!(
            names.choose_name(&NameSlot::Pvc(0, "data".into()), "web-", 2),
            pvc
        );
        assert_eq!(
            names.choose_name(&NameSlot::Pod(1), "new-", u32::MAX).len(),
            9
        );
    }

    #[test]
    fn chosen_name_replaces_name_given_by_spec() {
        let mut names = PendingNames::default();
        let slot = NameSlot::Pvc(0, "data".into());
        names.record_given_name(&slot, "web-given");
        assert_eq!(names.choose_name(&slot, "web-", 0), "web-bbbbb");
    }

    #[test]
    fn long_prefix_is_cut_as_the_api_server_does() {
        let name = PendingNames::default().choose_name(&NameSlot::Pod(0), &"a".repeat(70), 0);
        assert_eq!(name.len(), 63);
    }
}
