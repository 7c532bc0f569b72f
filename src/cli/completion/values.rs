//! Which values of arguments are names of objects. The value name of an argument says so, in every command.

use super::typed::Typed;
use crate::api::keys;
use crate::cli::args::{NamedKind, WhyKind, kind_of, named_kinds};

/// A list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Name of the resource.
    pub plural: &'static str,
    /// Group; empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

const NODES: Resource = cluster_resource("nodes");
const NAMESPACES: Resource = cluster_resource("namespaces");

const fn cluster_resource(plural: &'static str) -> Resource {
    Resource {
        plural,
        group: "",
        version: "v1",
        is_namespaced: false,
    }
}

impl From<NamedKind> for Resource {
    fn from(kind: NamedKind) -> Resource {
        Resource {
            plural: kind.plural,
            group: kind.group,
            version: match kind.group {
                keys::GROUP => "v1alpha1",
                _ => "v1",
            },
            is_namespaced: true,
        }
    }
}

/// Where names come from.
pub trait NameSource: Send + Sync {
    /// The names of the objects of a resource, in the namespace and the cluster that the words name.
    fn names(&self, resource: Resource, typed: &Typed) -> Vec<String>;
    /// The contexts of the kubeconfig.
    fn contexts(&self, typed: &Typed) -> Vec<String>;
}

/// What the value of an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `KIND/NAME`, `KIND NAME` or the name of a Pod.
    Object,
    /// `cls/NAME` or `cls NAME`.
    CollaSet,
    /// `pod/NAME`, `pod NAME` or `NAME`.
    Pod,
    /// A node.
    Node,
    /// A namespace.
    Namespace,
    /// A context of the kubeconfig.
    Context,
}

impl ValueKind {
    /// The kind of an argument, by its ID and its value name.
    pub fn of(arg: &clap::Arg) -> Option<ValueKind> {
        let names = arg.get_value_names().unwrap_or_default();
        match (arg.get_id().as_str(), names.first()?.as_str()) {
            (_, "OBJECT") => Some(ValueKind::Object),
            (_, "COLLASET") => Some(ValueKind::CollaSet),
            (_, "POD") => Some(ValueKind::Pod),
            (_, "NODE") => Some(ValueKind::Node),
            ("namespace" | "ask_in", _) => Some(ValueKind::Namespace),
            ("context", _) => Some(ValueKind::Context),
            _ => None,
        }
    }

    /// The values that begin with `current`. `before` are the words of the same argument before the cursor.
    pub fn values(
        self,
        current: &str,
        before: &[String],
        typed: &Typed,
        source: &dyn NameSource,
    ) -> Vec<String> {
        let mut values = match self {
            ValueKind::Node => source.names(NODES, typed),
            ValueKind::Namespace => source.names(NAMESPACES, typed),
            ValueKind::Context => source.contexts(typed),
            ValueKind::Object | ValueKind::CollaSet | ValueKind::Pod => {
                self.objects(current, before, typed, source)
            }
        };
        values.retain(|value| value.starts_with(current));
        values
    }

    fn objects(
        self,
        current: &str,
        before: &[String],
        typed: &Typed,
        source: &dyn NameSource,
    ) -> Vec<String> {
        let names = |kind: NamedKind| source.names(kind.into(), typed);
        let prefixed = |form: &str, kind: NamedKind| {
            let names = names(kind).into_iter();
            names.map(|name| format!("{form}/{name}")).collect()
        };
        // In `KIND NAME NAME` the names follow the kind.
        if let Some(first) = before.first().filter(|first| !first.contains('/')) {
            return match kind_of(first).filter(|kind| self.accepts(kind.kind)) {
                Some(kind) => without(names(kind), before),
                None => Vec::new(),
            };
        }
        if !before.is_empty() && self != ValueKind::Object {
            return Vec::new(); // one object only
        }
        if let Some((form, _)) = current.split_once('/') {
            return match kind_of(form).filter(|kind| self.accepts(kind.kind)) {
                Some(kind) => without(prefixed(form, kind), before),
                None => Vec::new(),
            };
        }
        let kinds = named_kinds().filter(|kind| self.accepts(kind.kind));
        let mut forms: Vec<_> = kinds
            .filter_map(|kind| {
                let forms = [kind.form, kind.singular].into_iter();
                let form = forms.into_iter().find(|form| form.starts_with(current));
                form.map(|form| (form, kind))
            })
            .collect();
        // A single kind is no choice: show its objects at once.
        let mut values = match (self, forms.pop()) {
            (ValueKind::CollaSet, Some((form, kind))) => prefixed(form, kind),
            (_, last) => {
                let forms = forms.into_iter().chain(last);
                forms.map(|(form, _)| format!("{form}/")).collect()
            }
        };
        let is_bare = match self {
            ValueKind::Pod => true,
            ValueKind::Object => before.is_empty() && !current.is_empty(),
            _ => false,
        };
        if is_bare {
            values.extend(kind_of("pod").map(names).unwrap_or_default());
        }
        values
    }

    fn accepts(self, kind: WhyKind) -> bool {
        match self {
            ValueKind::Object => true,
            ValueKind::CollaSet => kind == WhyKind::CollaSet,
            ValueKind::Pod => kind == WhyKind::Pod,
            ValueKind::Node | ValueKind::Namespace | ValueKind::Context => false,
        }
    }
}

fn without(mut values: Vec<String>, before: &[String]) -> Vec<String> {
    values.retain(|value| !before.contains(value));
    values
}
