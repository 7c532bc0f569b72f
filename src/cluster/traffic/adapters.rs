//! The adapters of this server, and which of them manages an employer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use traffic::{Adapter, Employer, EmployerKind};

use super::guarded::Guarded;
use crate::api::keys;
use crate::domain::traffic::adapter_in_use::AdapterInUse;

/// An adapter with its name, and who may use it.
#[derive(Clone)]
pub struct NamedAdapter {
    /// The name by which employers choose it.
    pub name: String,
    /// The adapter.
    pub adapter: Arc<Guarded>,
    /// The namespaces whose employers may use it. `None`: all.
    pub namespaces: Option<BTreeSet<String>>,
}

impl NamedAdapter {
    /// Names an adapter. Its panics are errors from now on. `namespaces` are those that may use it; `None`: all.
    pub fn new(
        name: &str,
        adapter: Arc<dyn Adapter>,
        namespaces: Option<BTreeSet<String>>,
    ) -> NamedAdapter {
        NamedAdapter {
            name: name.to_owned(),
            adapter: Arc::new(Guarded::new(adapter)),
            namespaces,
        }
    }

    /// Whether it manages employers of this kind in this namespace. A server knows each kind by its name alone.
    fn may_manage(&self, kind: &str, namespace: &str) -> bool {
        let fits = self.adapter.employer_kind().kind == kind;
        let namespaces = self.namespaces.as_ref();
        fits && namespaces.is_none_or(|all| all.contains(namespace))
    }
}

/// All adapters, by name.
#[derive(Default)]
pub struct Adapters {
    all: BTreeMap<String, NamedAdapter>,
    /// The adapter of employers that name none.
    default: Option<String>,
}

impl Adapters {
    /// Creates the adapters of a server. `default` manages the employers that name no adapter.
    ///
    /// # Errors
    /// If two adapters have the same name, if two kinds of employers have the same name, or if the default does not
    /// exist.
    pub fn new(all: Vec<NamedAdapter>, default: Option<String>) -> Result<Adapters, String> {
        let mut adapters = Adapters::default();
        let mut kinds = BTreeMap::<String, EmployerKind>::new();
        for named in all {
            let kind = named.adapter.employer_kind();
            let known = kinds
                .entry(kind.kind.clone())
                .or_insert_with(|| kind.clone());
            if *known != kind {
                return Err(format!(
                    "adapter {}: kind {} exists in another API group or version for another adapter; one server can \
                     manage only one of them, so remove one of both adapters",
                    named.name, kind.kind
                ));
            }
            let name = named.name.clone();
            if adapters.all.insert(name.clone(), named).is_some() {
                return Err(format!(
                    "two adapters are named {name}; give each its own name"
                ));
            }
        }
        if let Some(name) = default
            .as_ref()
            .filter(|name| !adapters.all.contains_key(*name))
        {
            let names = adapters.names();
            return Err(format!(
                "default: no adapter is named {name:?}; write one of {names}, or none"
            ));
        }
        adapters.default = default;
        Ok(adapters)
    }

    /// The adapter with this name.
    pub fn get(&self, name: &str) -> Option<&NamedAdapter> {
        self.all.get(name)
    }

    /// The adapter with this name, if it may manage employers of this kind in this namespace.
    pub fn usable(&self, name: &str, kind: &str, namespace: &str) -> Option<&NamedAdapter> {
        let named = self.all.get(name)?;
        named.may_manage(kind, namespace).then_some(named)
    }

    /// The kinds of employers.
    pub fn employer_kinds(&self) -> BTreeSet<EmployerKind> {
        let adapters = self.all.values();
        adapters
            .map(|named| named.adapter.employer_kind())
            .collect()
    }

    /// The adapter that manages an employer: the one that its annotation names, or else the first that claims it, or
    /// else the default. `None` if there is none.
    ///
    /// # Errors
    /// If the annotation names an adapter that does not exist, or that may not manage this employer, if an adapter
    /// panics, or if no adapter manages an employer that had one: what that one has registered must not be forgotten.
    pub fn choose(
        &self,
        kind: &EmployerKind,
        employer: &Employer,
    ) -> Result<Option<&NamedAdapter>, String> {
        let namespace = &employer.namespace;
        let usable = || {
            let all = self.all.values();
            all.filter(|named| named.may_manage(&kind.kind, namespace))
        };
        let key = keys::CONSIST_ADAPTER;
        if let Some(name) = employer.annotations.get(key) {
            // A name that the namespace may not use is treated as one that does not exist.
            let named = self.usable(name, &kind.kind, namespace);
            return named.map(Some).ok_or_else(|| {
                let names: Vec<_> = usable().map(|named| named.name.as_str()).collect();
                format!(
                    "annotation {key}: no adapter for a {} of this namespace is named {name:?}; write one of {}",
                    kind.kind,
                    names.join(", ")
                )
            });
        }
        for named in usable() {
            let claims = named.adapter.claims_employer(employer);
            if claims.map_err(|error| format!("adapter {}: {error}", named.name))? {
                return Ok(Some(named));
            }
        }
        let mut default = usable().filter(|named| Some(&named.name) == self.default.as_ref());
        match (
            default.next(),
            AdapterInUse::of(&employer.annotations).present(),
        ) {
            (None, Some(former)) => Err(format!(
                "no adapter manages this {} any more, and adapter {former} may have registered members; let the \
                 annotation {key} or the default of the servers (--traffic-config) name an adapter, or remove the label \
                 {} to leave the members as they are",
                kind.kind,
                keys::CONTROL
            )),
            (named, _) => Ok(named),
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.all.keys().map(String::as_str).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::endpoints::EndpointsAdapter;
    use super::*;

    /// What was registered must not be forgotten because the configuration has changed.
    #[test]
    fn employer_that_had_an_adapter_is_never_without() {
        let endpoints = Arc::new(EndpointsAdapter(Arc::default()));
        let endpoints = NamedAdapter::new("endpoints", endpoints, Some(["shop".to_owned()].into()));
        let adapters = Adapters::new(vec![endpoints], Some("endpoints".to_owned())).unwrap();
        let choose = |namespace: &str, in_use: &str| {
            let annotations = json!({ (keys::CONSIST_ADAPTER_IN_USE): in_use });
            let employer = Employer {
                namespace: namespace.to_owned(),
                annotations: serde_json::from_value(annotations).unwrap(),
                ..Employer::default()
            };
            let chosen = adapters.choose(&EmployerKind::service(), &employer);
            chosen.map(|named| named.map(|named| named.name.clone()))
        };
        let endpoints = Ok(Some("endpoints".to_owned()));
        assert_eq!(choose("shop", ""), endpoints);
        assert_eq!(choose("shop", "edge"), endpoints, "a move");
        assert_eq!(choose("pay", ""), Ok(None));
        let error = choose("pay", "endpoints,edge").unwrap_err();
        assert!(error.contains("adapter endpoints may have"), "{error}");
    }
}
