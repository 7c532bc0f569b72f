//! The actions.

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use super::parameters::value;
use super::state::{Backend, Existing, Listener, State};

/// An answer with an error.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &str) -> Refusal {
        Refusal {
            status,
            code: code.to_owned(),
            message: format!("The double refuses the call: {code}."),
        }
    }

    fn about(code: &str, what: &str) -> Refusal {
        Refusal {
            message: format!("The double refuses {what}: {code}."),
            ..Refusal::new(400, code)
        }
    }
}

type Parameters = [(String, String)];
type Outcome = Result<Value, Refusal>;

/// Carries out a signed call. `skip` is the index of a server that is silently left out.
pub(super) fn act(
    state: &mut State,
    action: &str,
    version: &str,
    parameters: &Parameters,
    skip: Option<usize>,
) -> Outcome {
    let expected = match action {
        "DescribeNetworkInterfaces" => "2014-05-26",
        _ => "2014-05-15",
    };
    if version != expected {
        return Err(Refusal::new(400, "InvalidVersion"));
    }
    match action {
        "DescribeNetworkInterfaces" => interfaces(state, parameters),
        "DescribeHealthStatus" => health(state, parameters),
        "DescribeLoadBalancerAttribute" => attribute(state, parameters),
        "DescribeLoadBalancerListeners" => listeners(state, parameters),
        "DescribeVServerGroups" => groups(state, parameters),
        "DescribeVServerGroupAttribute" => {
            let group = group_of(state, parameters)?;
            let servers = state.read(&group);
            Ok(json!({ "VServerGroupId": group, "BackendServers": rows(&servers, true) }))
        }
        "AddBackendServers" | "AddVServerGroupBackendServers" => add(state, parameters, skip),
        "SetBackendServers" | "SetVServerGroupAttribute" => set(state, parameters),
        "RemoveBackendServers" | "RemoveVServerGroupBackendServers" => remove(state, parameters),
        _ => Err(Refusal::new(404, "InvalidAction.NotFound")),
    }
}

/// `AssumeRoleWithOIDC`, which is not signed.
pub(super) fn assume_role(state: &mut State, parameters: &Parameters) -> Outcome {
    let get = |name| value(parameters, name).unwrap_or_default();
    if get("Version") != "2015-04-01" || get("RoleSessionName").len() < 2 {
        return Err(Refusal::new(400, "InvalidParameter"));
    }
    let known = |role: &&super::Role| role.role == get("RoleArn");
    let Some(role) = state.people.roles.iter().find(known) else {
        return Err(Refusal::new(404, "EntityNotExist.Role"));
    };
    if role.provider != get("OIDCProviderArn") {
        return Err(Refusal::new(400, "AuthenticationFail.NoPermission"));
    }
    if role.token != get("OIDCToken") {
        return Err(Refusal::new(400, "AuthenticationFail.OIDCToken.Expired"));
    }
    let (id, secret, token, until) = state.people.issue();
    Ok(json!({
        "RequestId": "request-1",
        "Credentials": {
            "AccessKeyId": id,
            "AccessKeySecret": secret,
            "SecurityToken": token,
            "Expiration": until.replace_nanosecond(0).unwrap().format(&Rfc3339).unwrap(),
        },
    }))
}

fn interfaces(state: &State, parameters: &Parameters) -> Outcome {
    if value(parameters, "RegionId").is_none() {
        return Err(Refusal::new(400, "MissingParameter.RegionId"));
    }
    let prefixes = ["PrivateIpAddress.", "Ipv6Address."];
    let asked: Vec<&str> = parameters
        .iter()
        .filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix)))
        .map(|(_, address)| address.as_str())
        .collect();
    let vpc = value(parameters, "VpcId");
    let found = state.interfaces.iter().filter(|(address, _, network)| {
        asked.contains(&address.as_str()) && vpc.is_none_or(|vpc| vpc == network)
    });
    let sets: Vec<Value> = found
        .map(|(address, id, network)| {
            let addresses = match address.contains(':') {
                true => json!({ "Ipv6Sets": { "Ipv6Set": [{ "Ipv6Address": address }] } }),
                false => json!({ "PrivateIpSets": { "PrivateIpSet": [{ "PrivateIpAddress": address }] } }),
            };
            let mut set = json!({ "NetworkInterfaceId": id, "VpcId": network, "Status": "InUse" });
            set.as_object_mut()
                .unwrap()
                .extend(addresses.as_object().unwrap().clone());
            set
        })
        .collect();
    Ok(json!({ "NetworkInterfaceSets": { "NetworkInterfaceSet": sets }, "NextToken": "" }))
}

fn health(state: &mut State, parameters: &Parameters) -> Outcome {
    let id = load_balancer(state, parameters)?;
    let only: Option<u16> = value(parameters, "ListenerPort").and_then(|port| port.parse().ok());
    let listeners: Vec<Listener> = state.load_balancers[&id]
        .listeners
        .iter()
        .filter(|listener| listener.running && only.is_none_or(|port| port == listener.port))
        .cloned()
        .collect();
    let mut found = Vec::new();
    for listener in listeners {
        let group = listener.group.clone().unwrap_or_else(|| id.clone());
        for server in state.group(&group).clone() {
            let status = status(state, &listener, &group, &server);
            let port = match listener.group {
                Some(_) => server.port,
                None => listener.backend_port,
            };
            found.push(json!({
                "ServerId": server.server_id,
                "ServerIp": server.ip,
                "Port": port,
                "ListenerPort": listener.port,
                "Protocol": listener.protocol,
                "ServerHealthStatus": status,
            }));
        }
    }
    if only.is_none() && found.len() > state.health_rows {
        return Err(Refusal::new(400, "TooManyListeners"));
    }
    Ok(json!({ "RequestId": "request-1", "BackendServers": { "BackendServer": found } }))
}

/// The health of a server. Servers that get no requests are not checked.
fn status(state: &mut State, listener: &Listener, group: &str, server: &Backend) -> String {
    if !listener.health_check || server.weight == 0 {
        return "unavailable".to_owned();
    }
    if let Some(fixed) = state.health.get(&server.ip) {
        return fixed.clone();
    }
    let key = (group.to_owned(), server.ip.clone(), server.port);
    let polls = state.polls.entry(key).or_default();
    *polls += 1;
    match *polls > state.polls_until_healthy {
        true => "normal".to_owned(),
        false => "unavailable".to_owned(),
    }
}

fn attribute(state: &mut State, parameters: &Parameters) -> Outcome {
    let id = load_balancer(state, parameters)?;
    let servers = state.read(&id);
    Ok(json!({
        "LoadBalancerId": id,
        "VpcId": state.load_balancers[&id].vpc,
        "LoadBalancerStatus": "active",
        "BackendServers": rows(&servers, false),
    }))
}

fn listeners(state: &State, parameters: &Parameters) -> Outcome {
    let id = value(parameters, "LoadBalancerId.1").unwrap_or_default();
    let Some(owner) = state.load_balancers.get(id) else {
        return Err(Refusal::new(404, "InvalidLoadBalancerId.NotFound"));
    };
    // Two in a page, so that readers must turn pages.
    let start: usize = value(parameters, "NextToken")
        .and_then(|token| token.parse().ok())
        .unwrap_or(0);
    let page = owner.listeners.iter().skip(start).take(2);
    let page: Vec<Value> = page.map(|listener| listener_json(id, listener)).collect();
    let next = match start + 2 < owner.listeners.len() {
        true => (start + 2).to_string(),
        false => String::new(),
    };
    Ok(json!({ "Listeners": page, "NextToken": next, "TotalCount": owner.listeners.len() }))
}

fn listener_json(id: &str, listener: &Listener) -> Value {
    let on = match listener.health_check {
        true => "on",
        false => "off",
    };
    let running = match listener.running {
        true => "running",
        false => "stopped",
    };
    let mut json = json!({
        "LoadBalancerId": id,
        "ListenerPort": listener.port,
        "ListenerProtocol": listener.protocol,
        "Status": running,
    });
    let config = format!("{}ListenerConfig", listener.protocol.to_uppercase());
    json[config] = json!({ "HealthCheck": on });
    match &listener.group {
        Some(group) => json["VServerGroupId"] = json!(group),
        None => json["BackendServerPort"] = json!(listener.backend_port),
    }
    json
}

fn groups(state: &State, parameters: &Parameters) -> Outcome {
    let id = load_balancer(state, parameters)?;
    let groups: Vec<Value> = state.load_balancers[&id]
        .groups
        .iter()
        .map(|group| json!({ "VServerGroupId": group, "VServerGroupName": group }))
        .collect();
    Ok(json!({ "VServerGroups": { "VServerGroup": groups } }))
}

fn add(state: &mut State, parameters: &Parameters, skip: Option<usize>) -> Outcome {
    let group = group_of(state, parameters)?;
    let mut servers = servers(state, parameters)?;
    if let Some(index) = skip
        && index < servers.len()
    {
        servers.remove(index);
    }
    let is_same = |a: &Backend, b: &Backend| a.ip == b.ip && a.port == b.port;
    for server in &servers {
        let known = state
            .interfaces
            .iter()
            .any(|(address, id, _)| *address == server.ip && *id == server.server_id);
        if !known {
            return Err(Refusal::about("InvalidParameter.ServerId", &server.ip));
        }
        let is_there = state.group(&group).iter().any(|old| is_same(old, server));
        if is_there && state.existing == Existing::Refused {
            return Err(Refusal::about("ServerAlreadyExist", &server.ip));
        }
    }
    state.change(&group, |list| {
        for server in servers {
            if !list.iter().any(|old| is_same(old, &server)) {
                list.push(server);
            }
        }
    });
    written(state, &group, parameters)
}

fn set(state: &mut State, parameters: &Parameters) -> Outcome {
    let group = group_of(state, parameters)?;
    let servers = servers(state, parameters)?;
    for server in &servers {
        let is_there = state.group(&group).iter().any(|old| is_of(old, server));
        if !is_there {
            return Err(Refusal::about("InvalidParameter.ServerId", &server.ip));
        }
    }
    state.change(&group, |list| {
        for server in &servers {
            for old in list.iter_mut().filter(|old| is_of(old, server)) {
                old.weight = server.weight;
                old.description.clone_from(&server.description);
            }
        }
    });
    written(state, &group, parameters)
}

fn remove(state: &mut State, parameters: &Parameters) -> Outcome {
    let group = group_of(state, parameters)?;
    let servers = servers(state, parameters)?;
    state.change(&group, |list| {
        list.retain(|old| !servers.iter().any(|server| is_of(old, server)));
    });
    for server in servers {
        state.polls.remove(&(group.clone(), server.ip, server.port));
    }
    written(state, &group, parameters)
}

fn is_of(old: &Backend, server: &Backend) -> bool {
    old.server_id == server.server_id && old.ip == server.ip && old.port == server.port
}

/// The answer to a write: the servers of the group, whose addresses are not told, and weights as texts.
fn written(state: &State, group: &str, parameters: &Parameters) -> Outcome {
    let is_default = value(parameters, "VServerGroupId").is_none();
    let list: Vec<Value> = state
        .group(group)
        .iter()
        .map(|server| {
            let mut row = json!({
                "ServerId": server.server_id,
                "Type": server.kind,
                "Description": server.description,
                "Weight": server.weight.to_string(),
            });
            if !is_default {
                row["Weight"] = json!(server.weight);
                row["Port"] = json!(server.port);
            }
            row
        })
        .collect();
    Ok(json!({ "RequestId": "request-1", "BackendServers": { "BackendServer": list } }))
}

fn rows(servers: &[Backend], ports: bool) -> Value {
    let row = |server: &Backend| {
        let mut row = json!({
            "ServerId": server.server_id,
            "ServerIp": server.ip,
            "Type": server.kind,
            "Weight": server.weight,
            "Description": server.description,
        });
        if ports {
            row["Port"] = json!(server.port);
        }
        row
    };
    json!({ "BackendServer": servers.iter().map(row).collect::<Vec<_>>() })
}

fn load_balancer(state: &State, parameters: &Parameters) -> Result<String, Refusal> {
    let id = value(parameters, "LoadBalancerId").unwrap_or_default();
    match state.load_balancers.contains_key(id) {
        true => Ok(id.to_owned()),
        false => Err(Refusal::new(404, "InvalidLoadBalancerId.NotFound")),
    }
}

/// The group that a call names.
fn group_of(state: &State, parameters: &Parameters) -> Result<String, Refusal> {
    let Some(id) = value(parameters, "VServerGroupId") else {
        return load_balancer(state, parameters);
    };
    match state.groups.contains_key(id) {
        true => Ok(id.to_owned()),
        false => Err(Refusal {
            message: "The specified VServerGroupId does not exist.".to_owned(),
            ..Refusal::new(400, "InvalidParameter")
        }),
    }
}

/// The servers of a call.
fn servers(state: &State, parameters: &Parameters) -> Result<Vec<Backend>, Refusal> {
    let text = value(parameters, "BackendServers").unwrap_or_default();
    let list: Vec<Value> =
        serde_json::from_str(text).map_err(|_| Refusal::new(400, "InvalidParameter"))?;
    if list.is_empty() || list.len() > state.servers_per_call {
        return Err(Refusal::new(400, "BackendServersListExceeds"));
    }
    let in_group = value(parameters, "VServerGroupId").is_some();
    list.iter()
        .map(|server| backend(server, in_group))
        .collect()
}

fn backend(server: &Value, in_group: bool) -> Result<Backend, Refusal> {
    let text = |name: &str| server[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str, default: u32| match &server[name] {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
        _ => Some(default),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-/._".contains(c);
    let description = text("Description");
    let weight = number("Weight", 100).filter(|weight| *weight <= 100);
    let port = number("Port", 0).and_then(|port| u16::try_from(port).ok());
    let is_valid = description.len() <= 80 && description.chars().all(plain);
    let (Some(weight), Some(port), true) = (weight, port, is_valid) else {
        return Err(Refusal::about("InvalidParameter", &server.to_string()));
    };
    if in_group == (port == 0) {
        return Err(Refusal::about("InvalidParameter.Port", &server.to_string()));
    }
    Ok(Backend {
        server_id: text("ServerId"),
        ip: text("ServerIp"),
        kind: text("Type"),
        port,
        weight,
        description,
    })
}
