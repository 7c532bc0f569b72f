//! The door for the fuzz targets in `fuzz/targets`: what takes bytes and is private otherwise. Nothing else may use it.

use crate::admission::collasets::probe;
use crate::cluster::caches::Caches;
use crate::cluster::kind::Kind;
use crate::cluster::watch::{Source, deliver};
use crate::cluster::watches::{Namespaces, Owners, Pods, Rules};

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
pub fn watch_frame(caches: &Caches, watch: Watch, line: &str) -> Option<u64> {
    let source = Source::all("/fuzz");
    let delivered = match watch {
        Watch::Pods => deliver(&source, &Pods::new(caches), line, 0),
        Watch::Rules => deliver(&source, &Rules(caches.clone()), line, 0),
        Watch::Namespaces => deliver(&source, &Namespaces(caches.clone()), line, 0),
        Watch::Owners(kind) => deliver(&source, &Owners::new(caches, kind), line, 0),
    };
    delivered.map(|delivered| delivered.version)
}

/// The text of a `Warning` header.
pub fn warning(header: &str) -> Option<String> {
    probe::parse_warning_header(header)
}
