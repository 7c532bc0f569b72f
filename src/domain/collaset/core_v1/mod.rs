//! The types of `core/v1`: when two notations have the same meaning, and how Go writes them.
//!
//! Templates are stored as raw JSON, so that no field is lost, however new it is (contract Q23). Kuperator passed
//! everything that it stored through the Go types of Kubernetes 1.22. Therefore the data that it left can only be
//! understood by these types.

mod defaults;
mod difference;
mod go_json;
mod normal_form;
#[cfg(test)]
pub(crate) mod random_values;

use std::collections::BTreeMap;
use std::sync::LazyLock;

pub use defaults::default_pull_policy;
pub use difference::first_difference;
pub use go_json::go_json;
pub use normal_form::{normal_form, without_newer_fields};

/// The Go type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `string`, or a type based on it.
    Text,
    /// `bool`.
    Bool,
    /// Any integer.
    Int,
    /// `resource.Quantity`.
    Quantity,
    /// `intstr.IntOrString`.
    IntOrString,
    /// `metav1.Time`.
    Time,
    /// A pointer: a missing value differs from an empty one.
    Pointer(Box<Kind>),
    /// A slice.
    List(Box<Kind>),
    /// A map from strings to this type.
    Map(Box<Kind>),
    /// A struct with this name, see [`struct_fields`].
    Struct(&'static str),
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Go type of the field.
    pub kind: Kind,
    /// Whether Go writes the field even if it is empty, because it has no `omitempty`.
    pub always: bool,
}

/// `PodTemplateSpec`.
pub const POD_TEMPLATE: Kind = Kind::Struct("PodTemplateSpec");
/// `PersistentVolumeClaim`.
pub const PVC: Kind = Kind::Struct("PersistentVolumeClaim");

static TYPES: LazyLock<BTreeMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    include_str!("types-1.22.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut parts = line.split_whitespace();
            Some((parts.next()?, parts.filter_map(parse_field).collect()))
        })
        .collect()
});

/// Fields of a struct, in the order in which Go declares and writes them. Empty for an unknown name.
pub fn struct_fields(name: &str) -> &'static [Field] {
    TYPES.get(name).map_or(&[], Vec::as_slice)
}

fn parse_field(declaration: &'static str) -> Option<Field> {
    let (name, kind) = declaration.split_once(':')?;
    Some(Field {
        name: name.trim_end_matches('!'),
        kind: parse_kind(kind),
        always: name.ends_with('!'),
    })
}

fn parse_kind(text: &'static str) -> Kind {
    if let Some(inner) = text.strip_prefix('*') {
        return Kind::Pointer(Box::new(parse_kind(inner)));
    }
    if let Some(inner) = text.strip_prefix("[]") {
        return Kind::List(Box::new(parse_kind(inner)));
    }
    if let Some(inner) = text.strip_prefix("map:") {
        return Kind::Map(Box::new(parse_kind(inner)));
    }
    match text {
        "string" => Kind::Text,
        "bool" => Kind::Bool,
        "int" => Kind::Int,
        "Quantity" => Kind::Quantity,
        "IntOrString" => Kind::IntOrString,
        "Time" => Kind::Time,
        name => Kind::Struct(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_is_named_is_listed() {
        fn structs(kind: &Kind) -> Option<&'static str> {
            match kind {
                Kind::Pointer(inner) | Kind::List(inner) | Kind::Map(inner) => structs(inner),
                Kind::Struct(name) => Some(name),
                _ => None,
            }
        }
        let named = TYPES.values().flatten().filter_map(|f| structs(&f.kind));
        for name in named.chain(["PodTemplateSpec", "PersistentVolumeClaim"]) {
            assert!(!struct_fields(name).is_empty(), "{name}");
        }
    }
}
