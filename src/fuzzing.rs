//! The door for the fuzz targets in `fuzz/targets`: what takes bytes and is private otherwise. Nothing else may use it.

use std::sync::Arc;

use crate::admission::collasets::probe;
use crate::api::podtransitionrule::Ledger;
use crate::cluster::index::Index;
use crate::cluster::rulestore::{from_api, to_api};
use crate::cluster::sizes::Kind;
use crate::cluster::sources::{Namespaces, Pods, Rules, Workloads};
use crate::cluster::watch::{Source, deliver};
use crate::ledger::store::Claims;

/// The watch that a frame comes from.
#[derive(Clone, Copy, Debug)]
pub enum Watch {
    /// Managed Pods.
    Pods,
    /// PodTransitionRules.
    Rules,
    /// Namespaces.
    Namespaces,
    /// A kind of owners.
    Owners(Kind),
}

/// Hands one line of a watch to the index; the version that it carries, or `None` if all must be listed again.
pub fn watch_frame(index: &Arc<Index>, watch: Watch, line: &str) -> Option<u64> {
    let source = Source {
        path: "/fuzz",
        labels: None,
        fields: None,
    };
    match watch {
        Watch::Pods => deliver(&source, &Pods(Arc::clone(index)), line),
        Watch::Rules => deliver(&source, &Rules(Arc::clone(index)), line),
        Watch::Namespaces => deliver(&source, &Namespaces(Arc::clone(index)), line),
        Watch::Owners(kind) => deliver(&source, &Workloads::new(index, kind), line),
    }
}

/// Claims as a replica reads them from the status of a rule.
pub fn claims_from_status(ledger: &Ledger) -> Claims {
    from_api(ledger)
}

/// Claims as a replica writes them.
pub fn claims_to_status(claims: &Claims) -> Ledger {
    to_api(claims)
}

/// The text of a `Warning` header.
pub fn warning(header: &str) -> Option<String> {
    probe::warning(header)
}
