//! The members of a frontend in Caddy's configuration. Nothing here makes a call.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};
use traffic_http::wire::{Failure, MemberInfo, PresenceInfo};

use crate::label::Entry;
use crate::options::{Frontend, Mapping};

/// Time after a change of the configuration in which upgraded connections, such as WebSockets, stay open.
const STREAM_CLOSE_DELAY: &str = "1h";

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
    /// Reads the members of a frontend. A server that is missing has none. A server that somebody else has changed is an
    /// error, because a change by the bridge would undo it.
    pub fn read(config: &Value, frontend: &Frontend) -> Result<Members, Failure> {
        let name = frontend.server();
        let Some(server) = config["apps"]["http"]["servers"].get(&name) else {
            return Ok(Members::default());
        };
        let foreign = || Failure {
            message: format!(
                "the server {name:?} in Caddy is not as the bridge writes it; remove it"
            ),
            retryable: false,
        };
        let mut entries = Vec::new();
        for route in [0, 1] {
            let upstreams = &server["routes"][route]["handle"][0]["upstreams"];
            for upstream in upstreams.as_array().ok_or_else(foreign)? {
                let label = upstream["@id"].as_str().ok_or_else(foreign)?;
                let entry = Entry::from_label(label, &name).ok_or_else(foreign)?;
                if entry.drained_at.is_some() != (route == 0) {
                    return Err(foreign());
                }
                entries.push(entry);
            }
        }
        Ok(Members { entries })
    }

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

    /// Writes the server of a frontend.
    pub fn write(
        &self,
        config: &mut Value,
        frontend: &Frontend,
        mappings: &[Mapping],
    ) -> Result<(), String> {
        let server = self.server(frontend, mappings);
        let mut place = config;
        for key in ["apps", "http", "servers"] {
            if place.is_null() {
                *place = Value::Object(Map::new());
            }
            let Value::Object(fields) = place else {
                return Err(format!(
                    "Caddy's configuration has no object around {key:?}"
                ));
            };
            place = fields.entry(key).or_insert(Value::Null);
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(servers) = place else {
            return Err("Caddy's configuration has no object `servers`".to_owned());
        };
        servers.insert(frontend.server(), server);
        Ok(())
    }

    fn server(&self, frontend: &Frontend, mappings: &[Mapping]) -> Value {
        let name = frontend.server();
        let upstreams = |entries: &[&Entry]| -> Vec<_> {
            let upstream = |entry: &&Entry| json!({"@id": entry.to_label(&name), "dial": dial(entry, mappings)});
            entries.iter().map(upstream).collect()
        };
        let (draining, serving): (Vec<_>, Vec<_>) = self
            .entries
            .iter()
            .partition(|entry| entry.drained_at.is_some());
        json!({
            "listen": [frontend.listen],
            "automatic_https": {"disable": true},
            "routes": [
                // "Not any request" matches no request.
                {"match": [{"not": [{}]}],
                 "handle": [{"handler": "reverse_proxy", "upstreams": upstreams(&draining)}]},
                {"handle": [{
                    "handler": "reverse_proxy",
                    "load_balancing": {"selection_policy": selection(&serving)},
                    "stream_close_delay": STREAM_CLOSE_DELAY,
                    "upstreams": upstreams(&serving),
                }]},
            ],
        })
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

/// Caddy sends as many requests in a row to an upstream as its weight is. Therefore weights are divided by what they have
/// in common, and equal weights are no weights.
fn selection(serving: &[&Entry]) -> Value {
    let divisor = serving
        .iter()
        .fold(0, |found, entry| gcd(found, entry.weight));
    let weights: Vec<_> = serving
        .iter()
        .map(|entry| entry.weight / divisor.max(1))
        .collect();
    match weights.iter().all(|weight| *weight == 1) {
        true => json!({"policy": "round_robin"}),
        false => json!({"policy": "weighted_round_robin", "weights": weights}),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
