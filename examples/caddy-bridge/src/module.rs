//! The members in the module `operating_members`: a list for each frontend. Nothing here makes a call.

use serde_json::{Value, json};
use traffic_http::wire::Failure;

use crate::label::Entry;
use crate::members::{Members, dial, foreign};
use crate::options::{Frontend, Mapping};

/// Reads the members of a frontend; see [`crate::config::read`].
pub(crate) fn read(groups: &Value, frontend: &Frontend) -> Result<Members, Failure> {
    let name = frontend.server();
    let Some(list) = groups.get(&name) else {
        return Ok(Members::default());
    };
    let entries = list.as_array().into_iter().flatten().map(|member| {
        let label = member["id"].as_str()?;
        Entry::from_label(label, &name)
    });
    let entries: Option<_> = entries.collect();
    Ok(Members {
        entries: entries.ok_or_else(|| foreign(&name))?,
    })
}

/// Writes the members of a frontend.
pub(crate) fn write(
    groups: &mut Value,
    frontend: &Frontend,
    members: &Members,
    mappings: &[Mapping],
) -> Result<(), String> {
    let name = frontend.server();
    let list = members.entries.iter().map(|entry| {
        json!({
            "id": entry.to_label(&name),
            "dial": dial(entry, mappings),
            "weight": entry.weight,
            "draining": entry.drained_at.is_some(),
        })
    });
    let list = list.collect();
    let groups = groups.as_object_mut();
    let groups = groups.ok_or("the module `operating_members` answered no object")?;
    groups.insert(name, list);
    Ok(())
}

/// Whether a server in Caddy's configuration takes its members from the module.
pub(crate) fn is_used_by(found: &Value, frontend: &Frontend) -> bool {
    found["routes"] == server(frontend)["routes"]
}

/// The server of a frontend in Caddy's configuration. It never changes.
pub(crate) fn server(frontend: &Frontend) -> Value {
    json!({
        "listen": [frontend.listen],
        "automatic_https": {"disable": true},
        "routes": [{"handle": [{
            "handler": "reverse_proxy",
            "dynamic_upstreams": {"source": "operating_members", "group": frontend.server()},
        }]}],
    })
}
