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

    /// The record after a move to `chosen`.
    pub fn moved_to(self, chosen: &str) -> String {
        let former = self.names().filter(|name| *name != chosen);
        let names: Vec<_> = std::iter::once(chosen).chain(former).collect();
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
        assert_eq!(none.moved_to("a"), "a");
        let moved = AdapterInUse("b,a");
        assert_eq!(moved.present(), Some("b"));
        assert_eq!(moved.formers("b").collect::<Vec<_>>(), ["a"]);
        assert_eq!(moved.moved_to("a"), "a,b", "back again");
        assert_eq!(moved.moved_to("c"), "c,b,a");
        assert_eq!(moved.without("a"), "b");
        assert_eq!(AdapterInUse("b,x,,a").without("x"), "b,a");
    }
}
