//! Names of Pods and claims that the API server would otherwise choose (naming Random). The choice is made here and
//! kept until the object has been seen: a create whose answer was lost is repeated under the same name and meets its own
//! work, instead of making a second one.

use std::collections::HashMap;

use super::refusals::RefusalKey;

/// What a name is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NameSlot {
    /// The Pod of an instance ID.
    Pod(i64),
    /// The claim of an instance ID and a claim template.
    Pvc(i64, String),
}

impl NameSlot {
    /// By which it is remembered that its creation was refused.
    pub fn refusal_key(&self) -> RefusalKey {
        match self {
            NameSlot::Pod(id) => RefusalKey::Pod(*id),
            NameSlot::Pvc(id, template) => RefusalKey::Pvc(*id, template.clone()),
        }
    }
}

/// Names that were chosen or given, and not yet seen.
#[derive(Debug, Default)]
pub struct PendingNames(HashMap<NameSlot, PendingName>);

#[derive(Debug, Default)]
struct PendingName {
    text: String,
    /// By a spec: no other object is made of it.
    is_given: bool,
    /// UID of the object that was made under it, and from which somebody took what it was made with.
    spoilt: Option<String>,
}

/// Letters that make no words, as the API server uses for `generateName`.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix that the API server makes a name of.
const MAX_PREFIX: usize = 58;

impl PendingNames {
    /// The name for a slot: that of an earlier attempt, or `prefix` and five letters by `random`.
    pub fn choose_name(&mut self, slot: &NameSlot, prefix: &str, random: u32) -> String {
        let prefix = prefix.get(..MAX_PREFIX).unwrap_or(prefix);
        let chosen = self.0.get(slot).filter(|name| !name.is_given);
        if let Some(chosen) = chosen.filter(|name| name.text.starts_with(prefix)) {
            return chosen.text.clone();
        }
        let mut rest = usize::try_from(random).unwrap_or(0);
        let suffix = (0..5).map(|_| {
            let letter = LETTERS[rest % LETTERS.len()];
            rest /= LETTERS.len();
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

    /// The object is there, or its name is another's: the next one gets another name.
    pub fn forget_name(&mut self, slot: &NameSlot) {
        self.0.remove(slot);
    }

    /// Notes a name that is given, so that it is known when its object is seen.
    pub fn record_given_name(&mut self, slot: &NameSlot, name: &str) {
        let known = self.0.entry(slot.clone()).or_default();
        if known.text != name {
            *known = PendingName {
                text: name.to_owned(),
                ..PendingName::default()
            };
        }
        known.is_given = true;
    }

    /// Notes that the object of this UID was made under the name of the slot, and is not as it was made.
    pub fn mark_altered(&mut self, slot: &NameSlot, uid: String) {
        if let Some(name) = self.0.get_mut(slot) {
            name.spoilt = Some(uid);
        }
    }

    /// UID of the object that was made for the slot, if it is not as it was made.
    pub fn altered_uid(&self, slot: &NameSlot) -> Option<String> {
        self.0.get(slot)?.spoilt.clone()
    }

    /// Forgets the names of objects that have been seen, as what their slots are for; which ones.
    pub fn forget_observed_names(
        &mut self,
        mut is_seen: impl FnMut(&NameSlot, &str) -> bool,
    ) -> Vec<NameSlot> {
        let seen = self.0.extract_if(|slot, name| is_seen(slot, &name.text));
        seen.map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_until_its_object_is_seen() {
        let mut names = PendingNames::default();
        let first = names.choose_name(&NameSlot::Pod(0), "web-", 0);
        assert_eq!(first, "web-bbbbb");
        assert_eq!(names.choose_name(&NameSlot::Pod(0), "web-", 1), first);
        let other = names.choose_name(&NameSlot::Pod(1), "web-", 1);
        assert_eq!(other, "web-cbbbb");
        let claim = names.choose_name(&NameSlot::Pvc(0, "data".into()), "web-", 0);
        let seen =
            names.forget_observed_names(|slot, name| *slot == NameSlot::Pod(0) && name == first);
        assert_eq!(seen, [NameSlot::Pod(0)]);
        assert_eq!(
            names.choose_name(&NameSlot::Pod(0), "web-", 27),
            "web-bcbbb"
        );
        assert_eq!(names.choose_name(&NameSlot::Pod(1), "web-", 2), other);
        assert_eq!(
            names.choose_name(&NameSlot::Pvc(0, "data".into()), "web-", 2),
            claim
        );
        assert_eq!(
            names.choose_name(&NameSlot::Pod(1), "new-", u32::MAX).len(),
            9
        );
    }

    #[test]
    fn a_name_that_was_given_is_not_chosen() {
        let mut names = PendingNames::default();
        let slot = NameSlot::Pvc(0, "data".into());
        names.record_given_name(&slot, "web-given");
        assert_eq!(names.choose_name(&slot, "web-", 0), "web-bbbbb");
    }

    #[test]
    fn a_long_prefix_is_cut_as_the_api_server_does() {
        let name = PendingNames::default().choose_name(&NameSlot::Pod(0), &"a".repeat(70), 0);
        assert_eq!(name.len(), 63);
    }
}
