//! The members in Caddy's configuration: a server for each frontend. Nothing here makes a call.

use serde_json::{Map, Value, json};
use traffic_http::wire::Failure;

use crate::label::Entry;
use crate::members::{Members, dial, foreign};
use crate::options::{Frontend, Mapping};

/// Time after a change of the configuration in which upgraded connections, such as WebSockets, stay open.
const STREAM_CLOSE_DELAY: &str = "1h";

/// Reads the members of a frontend. A server that is missing has none. A server that somebody else has changed is an
/// error, because a change by the bridge would undo it.
pub(crate) fn read(config: &Value, frontend: &Frontend) -> Result<Members, Failure> {
    let name = frontend.server();
    let Some(server) = get_server(config, frontend) else {
        return Ok(Members::default());
    };
    let foreign = || foreign(&name);
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

/// Writes the server of a frontend.
pub(crate) fn write(
    config: &mut Value,
    frontend: &Frontend,
    members: &Members,
    mappings: &[Mapping],
) -> Result<(), String> {
    put_server(config, frontend, server(frontend, members, mappings))
}

/// The server of a frontend in Caddy's configuration.
pub(crate) fn get_server<'a>(config: &'a Value, frontend: &Frontend) -> Option<&'a Value> {
    config["apps"]["http"]["servers"].get(frontend.server())
}

/// The names of all servers in Caddy's configuration.
pub(crate) fn server_names(config: &Value) -> impl Iterator<Item = &str> {
    let servers = config["apps"]["http"]["servers"].as_object();
    servers.into_iter().flatten().map(|(name, _)| name.as_str())
}

/// Adds the server of a frontend to Caddy's configuration, or replaces it.
pub(crate) fn put_server(
    config: &mut Value,
    frontend: &Frontend,
    server: Value,
) -> Result<(), String> {
    let mut place = config;
    for key in ["apps", "http", "servers", &frontend.server()] {
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
    *place = server;
    Ok(())
}

fn server(frontend: &Frontend, members: &Members, mappings: &[Mapping]) -> Value {
    let name = frontend.server();
    let upstreams = |entries: &[&Entry]| -> Vec<_> {
        let upstream = |entry: &&Entry| {
            let label = entry.to_label(&name);
            json!({"@id": label, "dial": dial(entry, mappings)})
        };
        entries.iter().map(upstream).collect()
    };
    let entries = members.entries.iter();
    let (draining, serving): (Vec<_>, Vec<_>) =
        entries.partition(|entry| entry.drained_at.is_some());
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
#[path = "config_tests.rs"]
mod tests;
