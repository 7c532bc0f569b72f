//! What a load balancer has: members.

use std::net::IpAddr;

use jiff::Timestamp;

use crate::PodId;

/// What identifies a member: an address and a port in a group of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberKey {
    /// The group of members, in the words of the load balancer: a server group, a target group, an upstream. Empty if
    /// each employer has one only.
    pub group: String,
    /// Address.
    pub address: IpAddr,
    /// Port; 0 if the load balancer registers addresses without ports.
    pub port: u16,
}

/// A member as it should be, or as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Group, address and port.
    pub key: MemberKey,
    /// The Pod behind the address.
    pub pod: PodId,
    /// Share of the traffic, in the unit of the load balancer.
    pub weight: u32,
}

/// What a load balancer does with a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Registered, and gets requests.
    Serving,
    /// Registered, but gets no requests yet, for example because its first health checks are open.
    Pending,
    /// Gets no new requests, but requests that have begun may go on.
    Draining {
        /// When the load balancer itself ends the draining, if it does.
        until: Option<Timestamp>,
    },
    /// Not registered.
    Absent,
    /// Not known, for example because a call failed. Nothing is concluded from it.
    Unknown,
}

/// A registered member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The member. Its Pod has an empty UID if the load balancer does not tell whose member it is.
    pub member: Member,
    /// What the load balancer does with it.
    pub presence: Presence,
    /// Open connections or requests, if the load balancer counts them.
    pub connections: Option<u64>,
}

impl std::fmt::Display for MemberKey {
    /// `group/address:port`, without the parts that are empty.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        match (self.port, self.address) {
            (0, address) => write!(f, "{address}"),
            (port, IpAddr::V6(address)) => write!(f, "[{address}]:{port}"),
            (port, IpAddr::V4(address)) => write!(f, "{address}:{port}"),
        }
    }
}
