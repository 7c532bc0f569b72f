//! Decides which addresses endpoints may have, and resolves the names of the API server for this decision.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::net::lookup_host;

use crate::domain::rules::webhook::EndpointNetworks;

/// The addresses that the endpoints of rules may have. The decision uses the resolved address of an endpoint,
/// immediately before it is dialled.
#[derive(Debug, Default)]
pub struct AddressPolicy {
    /// The networks that the flags and the addresses themselves allow.
    pub networks: EndpointNetworks,
    /// The API server, as this process knows it.
    pub api_server: ApiServer,
}

impl AddressPolicy {
    /// Why an address is refused, and which setting allows it; `None` if it may be dialled.
    pub async fn refusal_reason(&self, address: IpAddr) -> Option<String> {
        let api_server = self.api_server.resolve_addresses().await;
        self.networks.refusal_reason(address, &api_server)
    }
}

/// The names and addresses of the API server.
#[derive(Debug, Default)]
pub struct ApiServer {
    /// Names and addresses.
    hosts: Vec<String>,
    /// The addresses of each name, from its last resolution that succeeded.
    last_addresses: Mutex<HashMap<String, Vec<IpAddr>>>,
}

impl ApiServer {
    /// An API server with these names and addresses. IPv6 addresses may have brackets.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> ApiServer {
        let bare = |host: String| host.trim_matches(['[', ']']).to_owned();
        ApiServer {
            hosts: hosts
                .into_iter()
                .map(bare)
                .filter(|h| !h.is_empty())
                .collect(),
            last_addresses: Mutex::default(),
        }
    }

    /// The hosts that are addresses. IPv4-mapped IPv6 addresses are converted to IPv4.
    pub fn literal_addresses(&self) -> HashSet<IpAddr> {
        let hosts = self.hosts.iter();
        let addresses = hosts.filter_map(|host| host.parse().ok());
        addresses
            .map(|address: IpAddr| address.to_canonical())
            .collect()
    }

    /// All addresses. IPv4-mapped IPv6 addresses are converted to IPv4. If a name can't be resolved now, its last known
    /// addresses are used.
    async fn resolve_addresses(&self) -> HashSet<IpAddr> {
        for host in &self.hosts {
            if let Ok(addresses) = lookup_host((host.as_str(), 443)).await {
                let addresses = addresses.map(|a| a.ip().to_canonical()).collect();
                self.last_addresses.lock().insert(host.clone(), addresses);
            }
        }
        self.last_addresses
            .lock()
            .values()
            .flatten()
            .copied()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn refusal_reason(policy: &AddressPolicy, address: &str) -> Option<String> {
        policy.refusal_reason(address.parse().unwrap()).await
    }

    #[tokio::test]
    async fn addresses_of_the_api_server_are_refused_in_every_form() {
        let hosts = ["10.96.0.1", "[fd00::7]", ""].map(str::to_owned);
        let policy = AddressPolicy {
            api_server: ApiServer::new(hosts),
            ..AddressPolicy::default()
        };
        assert_eq!(policy.api_server.literal_addresses().len(), 2);
        for refused in [
            "10.96.0.1",
            "::ffff:10.96.0.1",
            "64:ff9b::10.96.0.1",
            "fd00::7",
        ] {
            let reason = refusal_reason(&policy, refused).await.unwrap();
            assert!(reason.contains("an address of the API server"), "{reason}");
        }
        assert_eq!(refusal_reason(&policy, "10.96.0.2").await, None);
    }

    #[tokio::test]
    async fn names_of_the_api_server_are_resolved_and_remembered() {
        let mut server = ApiServer::new(["localhost".to_owned()]);
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(server.resolve_addresses().await.contains(&loopback));
        server.hosts = vec!["none.invalid".to_owned()];
        assert!(server.resolve_addresses().await.contains(&loopback));
    }
}
