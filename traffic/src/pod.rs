//! The Pods of an employer.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The identity of a Pod. Another Pod of the same name has another UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId {
    /// UID. Empty if the load balancer does not tell it.
    pub uid: String,
    /// Name.
    pub name: String,
}

/// A Pod that an employer selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Name and UID.
    pub id: PodId,
    /// Addresses, the primary one first. Empty until the Pod has one.
    pub addresses: Vec<IpAddr>,
    /// Name of its node. Empty until the Pod has one.
    pub node: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The ports that its containers declare.
    pub ports: Vec<PodPort>,
    /// Whether the Pod should serve now: it is Ready, its lifecycle keeps it on traffic, and it is not being deleted.
    pub on: bool,
}

/// A port that a container declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPort {
    /// Name; may be empty.
    pub name: String,
    /// Number.
    pub number: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}
