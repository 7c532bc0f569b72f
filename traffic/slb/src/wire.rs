//! The answers of the API, as far as the adapter reads them.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ErrorBody {
    #[serde(rename = "Code", default)]
    pub code: String,
    #[serde(rename = "Message", default)]
    pub message: String,
}

/// A list inside an object with one field, as the API wraps each list.
#[derive(Debug, Deserialize)]
pub(crate) struct List<T> {
    #[serde(
        alias = "BackendServer",
        alias = "VServerGroup",
        alias = "NetworkInterfaceSet",
        alias = "PrivateIpSet",
        alias = "Ipv6Set",
        rename = "Item",
        default = "Vec::new"
    )]
    pub items: Vec<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List { items: Vec::new() }
    }
}

/// Health of a server on a listener.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Health {
    #[serde(rename = "ServerIp", default, deserialize_with = "address")]
    pub address: Option<IpAddr>,
    /// Port of the server; 0 if unknown.
    #[serde(default, deserialize_with = "port")]
    pub port: u16,
    /// Port of the listener; 0 if unknown.
    #[serde(default, deserialize_with = "port")]
    pub listener_port: u16,
    /// Protocol of the listener; empty if unknown.
    #[serde(default)]
    pub protocol: String,
    /// `normal`, `abnormal` or `unavailable`, which means that checks are off or not done yet.
    #[serde(rename = "ServerHealthStatus", default)]
    pub status: String,
}

/// `DescribeHealthStatus`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HealthBody {
    #[serde(default)]
    pub backend_servers: List<Health>,
}

/// A server of a group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Server {
    #[serde(default)]
    pub server_id: String,
    #[serde(rename = "ServerIp", default, deserialize_with = "address")]
    pub address: Option<IpAddr>,
    /// `ecs`, `eni` or `eci`.
    #[serde(rename = "Type", default)]
    pub kind: String,
    /// 0 in the default group.
    #[serde(default, deserialize_with = "port")]
    pub port: u16,
    #[serde(default, deserialize_with = "number")]
    pub weight: u32,
    #[serde(default)]
    pub description: String,
}

/// `DescribeVServerGroupAttribute`, `DescribeLoadBalancerAttribute`, and the answers to writes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ServersBody {
    #[serde(default)]
    pub backend_servers: List<Server>,
}

/// `DescribeVServerGroups`.
#[derive(Debug, Deserialize)]
pub(crate) struct GroupsBody {
    #[serde(rename = "VServerGroups", default)]
    pub groups: List<GroupId>,
}

/// A VServer group.
#[derive(Debug, Deserialize)]
pub(crate) struct GroupId {
    #[serde(rename = "VServerGroupId", default)]
    pub id: String,
}

/// `DescribeLoadBalancerListeners`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListenersBody {
    #[serde(default)]
    pub listeners: Vec<Listener>,
    #[serde(default)]
    pub next_token: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listener {
    #[serde(default, deserialize_with = "port")]
    pub listener_port: u16,
    /// `tcp`, `udp`, `http` or `https`.
    #[serde(default)]
    pub listener_protocol: String,
    /// `running` or `stopped`.
    #[serde(default)]
    pub status: String,
    /// Its VServer group; empty if it uses the default group or a group of primary and secondary servers.
    #[serde(rename = "VServerGroupId", default)]
    pub group: Option<String>,
    #[serde(rename = "TCPListenerConfig", default)]
    tcp: Option<ListenerConfig>,
    #[serde(rename = "UDPListenerConfig", default)]
    udp: Option<ListenerConfig>,
    #[serde(rename = "HTTPListenerConfig", default)]
    http: Option<ListenerConfig>,
    #[serde(rename = "HTTPSListenerConfig", default)]
    https: Option<ListenerConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListenerConfig {
    #[serde(default)]
    health_check: String,
    #[serde(default)]
    master_slave_server_group_id: Option<String>,
}

impl Listener {
    fn config(&self) -> Option<&ListenerConfig> {
        match self.listener_protocol.as_str() {
            "tcp" => self.tcp.as_ref(),
            "udp" => self.udp.as_ref(),
            "http" => self.http.as_ref(),
            "https" => self.https.as_ref(),
            _ => None,
        }
    }

    /// Whether the listener accepts connections. An unknown status counts as yes.
    pub(crate) fn is_running(&self) -> bool {
        self.status != "stopped"
    }

    /// Whether the listener checks the health of servers. Unless the API says `off`, it does.
    pub(crate) fn checks_health(&self) -> bool {
        self.config()
            .is_none_or(|config| config.health_check != "off")
    }

    /// Whether the servers of the listener are those of the default group.
    pub(crate) fn uses_default_group(&self) -> bool {
        let pair = self
            .config()
            .and_then(|config| config.master_slave_server_group_id.as_deref());
        self.group.as_deref().unwrap_or_default().is_empty() && pair.unwrap_or_default().is_empty()
    }
}

/// `DescribeNetworkInterfaces`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct InterfacesBody {
    #[serde(default)]
    pub network_interface_sets: List<Interface>,
    #[serde(default)]
    pub next_token: Option<String>,
}

/// A network interface.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Interface {
    #[serde(default)]
    pub network_interface_id: String,
    #[serde(default)]
    private_ip_sets: List<InterfaceAddress>,
    #[serde(default)]
    ipv6_sets: List<InterfaceAddress>,
}

#[derive(Debug, Deserialize)]
struct InterfaceAddress {
    #[serde(
        rename = "PrivateIpAddress",
        alias = "Ipv6Address",
        default,
        deserialize_with = "address"
    )]
    address: Option<IpAddr>,
}

impl Interface {
    /// All its addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let sets = self
            .private_ip_sets
            .items
            .iter()
            .chain(&self.ipv6_sets.items);
        sets.filter_map(|set| set.address)
    }
}

/// `AssumeRoleWithOIDC`. It has no `Debug`, since it has secrets.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RoleBody {
    pub credentials: RoleCredentials,
}

/// A temporary key.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RoleCredentials {
    pub access_key_id: String,
    pub access_key_secret: String,
    pub security_token: String,
    pub expiration: Timestamp,
}

/// A server in the parameter `BackendServers`. Numbers are written as texts, as in the reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ServerParameter {
    pub server_id: String,
    pub server_ip: String,
    #[serde(rename = "Type")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port: String,
    pub weight: String,
    pub description: String,
}

/// A number, or a text with a number. No value counts as 0.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = match Value::deserialize(deserializer)? {
        Value::Null => Some(0),
        Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
        Value::String(text) if text.is_empty() => Some(0),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| D::Error::custom("expected a number"))
}

/// A port, as [`number`]. Values that are no port, such as -520 for "the port of the server", count as 0.
fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    Ok(number.and_then(|n| u16::try_from(n).ok()).unwrap_or(0))
}

/// An address; `None` if there is none, or if it is no address.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn numbers_may_be_texts() {
        let text = r#"{"BackendServers":{"BackendServer":[
            {"ServerId":"eni-1","ServerIp":"10.0.0.1","Weight":"50","Port":"80"},
            {"ServerId":"eni-2","ServerIp":null,"Weight":7,"Port":-520}]}}"#;
        let body: ServersBody = serde_json::from_str(text).unwrap();
        let servers = body.backend_servers.items;
        assert_eq!((servers[0].weight, servers[0].port), (50, 80));
        assert_eq!((servers[1].weight, servers[1].port), (7, 0));
        assert_eq!(servers[1].address, None);
    }

    #[test]
    fn listener_says_group_and_checks() {
        let text = r#"{"Listeners":[
            {"ListenerPort":80,"ListenerProtocol":"tcp","VServerGroupId":"rsp-1","TCPListenerConfig":{"HealthCheck":"off"}},
            {"ListenerPort":81,"ListenerProtocol":"http","HTTPListenerConfig":{"HealthCheck":"on"},"Status":"stopped"},
            {"ListenerPort":82,"ListenerProtocol":"udp","UDPListenerConfig":{"HealthCheck":"on","MasterSlaveServerGroupId":"ms-1"}}]}"#;
        let body: ListenersBody = serde_json::from_str(text).unwrap();
        let [a, b, c] = &body.listeners[..] else {
            panic!("{body:?}")
        };
        assert!(!a.checks_health() && !a.uses_default_group() && a.is_running());
        assert!(b.checks_health() && b.uses_default_group() && !b.is_running());
        assert!(!c.uses_default_group());
    }

    #[test]
    fn answer_without_list_is_empty() {
        let body: HealthBody = serde_json::from_str(r#"{"BackendServers":{}}"#).unwrap();
        assert!(body.backend_servers.items.is_empty());
    }
}
