//! Access for the fuzz targets in `fuzz/targets` to functions that take bytes and are otherwise private. No other code
//! may use this module.

use crate::admission::dry_run;
use crate::cluster::caches::Caches;
use crate::cluster::kind::WatchedKind;
use crate::cluster::watch::{Source, deliver_event};
use crate::cluster::watches::{NamespaceSink, OwnerSink, PodSink, RuleSink};

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
    Owners(WatchedKind),
}

/// Hands one line of a watch to the index; the version that it carries, or `None` if all must be listed again.
pub fn watch_frame(caches: &Caches, watch: Watch, line: &str) -> Option<u64> {
    let source = Source::from_path("/fuzz");
    let delivered = match watch {
        Watch::Pods => deliver_event(&source, &PodSink::new(caches), line, 0),
        Watch::Rules => deliver_event(&source, &RuleSink(caches.clone()), line, 0),
        Watch::Namespaces => deliver_event(&source, &NamespaceSink(caches.clone()), line, 0),
        Watch::Owners(kind) => deliver_event(&source, &OwnerSink::new(caches, kind), line, 0),
    };
    delivered.map(|delivered| delivered.version)
}

/// The text of a `Warning` header.
pub fn warning(header: &str) -> Option<String> {
    dry_run::parse_warning_header(header)
}
