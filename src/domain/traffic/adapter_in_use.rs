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

    fn names(self) -> impl Iterator<Item = &'a str> {
        self.0.split(',').filter(|name| !name.is_empty())
    }

    /// The adapter that registers members.
    pub fn present(self) -> Option<&'a str> {
        self.names().next()
    }

    /// The adapter whose members go next, after a move to `chosen`.
    pub fn former(self, chosen: &str) -> Option<&'a str> {
        self.names().find(|name| *name != chosen)
    }

    /// The record after a move to `chosen`.
    pub fn moved_to(self, chosen: &str) -> String {
        let former = self.names().filter(|name| *name != chosen);
        let names: Vec<_> = std::iter::once(chosen).chain(former).collect();
        names.join(",")
    }

    /// The record without the former adapters for which `forgets` returns true.
    pub fn without(self, forgets: impl Fn(&str) -> bool) -> String {
        let former = self.names().skip(1).filter(|name| !forgets(name));
        let names: Vec<_> = self.present().into_iter().chain(former).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_follows_moves() {
        let none = AdapterInUse("");
        assert_eq!((none.present(), none.former("a")), (None, None));
        assert_eq!(none.moved_to("a"), "a");
        let moved = AdapterInUse("b,a");
        assert_eq!((moved.present(), moved.former("b")), (Some("b"), Some("a")));
        assert_eq!(moved.moved_to("a"), "a,b", "back again");
        assert_eq!(moved.moved_to("c"), "c,b,a");
        assert_eq!(moved.without(|name| name == "a"), "b");
        assert_eq!(AdapterInUse("b,x,y,,a").without(|name| name != "a"), "b,a");
    }
}
