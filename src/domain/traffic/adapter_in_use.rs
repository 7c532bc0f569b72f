//! Which adapters may have registered members of an employer, as an annotation records it.

use crate::api::keys;

/// The names in the annotation `resource-consist.kusionstack.io/adapter-in-use`, the present adapter first. Whoever may
/// write the employer can write any names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterInUse<'a>(&'a str);

impl<'a> AdapterInUse<'a> {
    /// The record of an employer with these annotations.
    pub fn of(annotations: &'a std::collections::BTreeMap<String, String>) -> AdapterInUse<'a> {
        let text = annotations.get(keys::CONSIST_ADAPTER_IN_USE);
        AdapterInUse(text.map_or("", String::as_str))
    }

    /// All names.
    pub fn names(self) -> impl Iterator<Item = &'a str> {
        self.0.split(',').filter(|name| !name.is_empty())
    }

    /// The adapter that registers members.
    pub fn present(self) -> Option<&'a str> {
        self.names().next()
    }

    /// The adapters whose members must go after a move to `chosen`.
    pub fn formers(self, chosen: &str) -> impl Iterator<Item = &'a str> {
        self.names().filter(move |name| *name != chosen)
    }

    /// The record after a move to `chosen`, with other adapters that may have members.
    pub fn moved_to<'b>(self, chosen: &'b str, others: impl Iterator<Item = &'b str>) -> String
    where
        'a: 'b,
    {
        let mut names = vec![chosen];
        for name in self.names().chain(others) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(",")
    }

    /// The record without an adapter.
    pub fn without(self, gone: &str) -> String {
        let names: Vec<_> = self.names().filter(|name| *name != gone).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_follows_moves() {
        let none = AdapterInUse("");
        assert_eq!((none.present(), none.formers("a").count()), (None, 0));
        let moved_to = |record: AdapterInUse<'_>, name| record.moved_to(name, std::iter::empty());
        assert_eq!(moved_to(none, "a"), "a");
        assert_eq!(none.moved_to("a", ["b", "a"].into_iter()), "a,b");
        let moved = AdapterInUse("b,a");
        assert_eq!(moved.present(), Some("b"));
        assert_eq!(moved.formers("b").collect::<Vec<_>>(), ["a"]);
        assert_eq!(moved_to(moved, "a"), "a,b", "back again");
        assert_eq!(moved_to(moved, "c"), "c,b,a");
        assert_eq!(moved.without("a"), "b");
        assert_eq!(AdapterInUse("b,x,,a").without("x"), "b,a");
    }
}
