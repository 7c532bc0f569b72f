//! The members of a frontend, and their changes. Nothing here makes a call.

use std::net::{IpAddr, SocketAddr};

use traffic_http::wire::{Failure, MemberInfo, PresenceInfo};

use crate::label::Entry;
use crate::options::Mapping;

/// The members of a frontend: those that serve, and those that drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub entries: Vec<Entry>,
}

/// A change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Register,
    Drain,
    Deregister,
}

impl Members {
    /// Makes a change. It has no effect if it was made before.
    pub fn change(
        &mut self,
        change: Change,
        member: &MemberInfo,
        now: i64,
    ) -> Result<PresenceInfo, String> {
        let at = self.entries.iter().position(|entry| entry.is_of(member));
        match (change, at) {
            (Change::Register, at) => {
                let entry = Entry::new(member)?;
                match at.and_then(|at| self.entries.get_mut(at)) {
                    Some(known) => *known = entry,
                    None => self.entries.push(entry),
                }
                Ok(PresenceInfo::Serving)
            }
            (Change::Drain, Some(at)) => {
                if let Some(entry) = self.entries.get_mut(at) {
                    entry.drained_at.get_or_insert(now);
                }
                Ok(PresenceInfo::Draining)
            }
            (Change::Deregister, Some(at)) => {
                self.entries.remove(at);
                Ok(PresenceInfo::Absent)
            }
            (Change::Drain | Change::Deregister, None) => Ok(PresenceInfo::Absent),
        }
    }
}

/// Where Caddy connects to.
pub(crate) fn dial(entry: &Entry, mappings: &[Mapping]) -> String {
    let mapped = mappings
        .iter()
        .find_map(|mapping| mapping.map(entry.address));
    let address: IpAddr = mapped.unwrap_or(entry.address);
    SocketAddr::new(address, entry.port).to_string()
}

/// The answer that somebody else has changed what the bridge writes. A change by the bridge would undo it.
pub(crate) fn foreign(server: &str) -> Failure {
    Failure {
        message: format!("{server:?} in Caddy is not as the bridge writes it; remove it"),
        retryable: false,
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
