//! Addresses that a rule must not make the server talk to: what only the machine itself should reach, and the API server.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::net::lookup_host;

/// Metadata and host services of clouds outside of the link-local range: Alibaba, Oracle, Azure.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// The same in IPv6: AWS, Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Which addresses the endpoints of rules may have. Judged is what a name has been resolved to, right before it is dialled.
#[derive(Debug, Default)]
pub struct Reach {
    /// Allowed whatever else is said.
    pub allowed: Vec<IpNet>,
    /// Refused besides loopback, the API server, link-local addresses and those of cloud metadata.
    pub denied: Vec<IpNet>,
    /// Whether link-local and cloud metadata addresses are allowed.
    pub link_local: bool,
    /// The API server, by what this process knows of it.
    pub api_server: ApiServer,
}

impl Reach {
    /// Why an address is refused, with what allows it; `None` if it may be dialled.
    pub async fn refuses(&self, address: IpAddr) -> Option<String> {
        let because = |what: &str, flag: &str| {
            Some(format!(
                "{address} is {what}, which rules may not name; {flag} allows it"
            ))
        };
        let forms = forms(address);
        let is_in = |nets: &[IpNet]| {
            let mut forms = forms.iter();
            forms.any(|form| nets.iter().any(|net| net.contains(form)))
        };
        // Only the forms that lead to the same place: a translated address leads to another machine's idea of it.
        let canonical = address.to_canonical();
        if self
            .allowed
            .iter()
            .any(|net| net.contains(&canonical) || net.contains(&address))
        {
            return None;
        }
        if is_in(&self.denied) {
            return because("in --endpoint-deny-cidrs", "--endpoint-allow-cidrs");
        }
        if forms.iter().any(is_loopback) {
            return because("a loopback address of the server", "--endpoint-allow-cidrs");
        }
        if !self.link_local && forms.iter().any(is_link_local) {
            let flag = "--allow-link-local-endpoints";
            return because("a link-local or cloud metadata address", flag);
        }
        let api_server = self.api_server.addresses().await;
        if forms.iter().any(|form| api_server.contains(form)) {
            return because("an address of the API server", "--endpoint-allow-cidrs");
        }
        None
    }
}

/// Where the API server is.
#[derive(Debug, Default)]
pub struct ApiServer {
    /// Names and addresses.
    hosts: Vec<String>,
    /// What each name was resolved to last.
    known: Mutex<HashMap<String, Vec<IpAddr>>>,
}

impl ApiServer {
    /// An API server under these names and addresses, IPv6 ones with or without brackets.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> ApiServer {
        let bare = |host: String| host.trim_matches(['[', ']']).to_owned();
        ApiServer {
            hosts: hosts
                .into_iter()
                .map(bare)
                .filter(|h| !h.is_empty())
                .collect(),
            known: Mutex::default(),
        }
    }

    /// All addresses, IPv4 ones in their own form. A name that can't be resolved now has those that it had before.
    async fn addresses(&self) -> HashSet<IpAddr> {
        for host in &self.hosts {
            if let Ok(found) = lookup_host((host.as_str(), 443)).await {
                let found = found.map(|a| a.ip().to_canonical()).collect();
                self.known.lock().insert(host.clone(), found);
            }
        }
        self.known.lock().values().flatten().copied().collect()
    }
}

/// The address, and the IPv4 address or the mapped IPv6 address that stands for the same.
fn forms(address: IpAddr) -> Vec<IpAddr> {
    let other = match address {
        IpAddr::V4(v4) => Some(IpAddr::V6(v4.to_ipv6_mapped())),
        IpAddr::V6(v6) => embedded(v6).map(IpAddr::V4),
    };
    [address].into_iter().chain(other).collect()
}

/// Whether an address leads back to this machine; the unspecified one does, and on Linux all of its network.
fn is_loopback(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified(),
    }
}

/// Whether an address is link-local, or one where a cloud tells its machines their credentials.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(v4),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80 || METADATA_V6.contains(v6),
    }
}

/// The IPv4 address in one that is mapped, compatible, NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some(v4(high, low))
        }
        [0x64, 0xff9b, .., high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn why(reach: &Reach, address: &str) -> Option<String> {
        reach.refuses(address.parse().unwrap()).await
    }

    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn link_local_and_metadata_addresses_are_refused_in_every_form() {
        for refused in [
            "169.254.169.254",
            "169.254.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            let said = why(&Reach::default(), refused).await.unwrap();
            assert!(said.contains("--allow-link-local-endpoints"), "{said}");
            let reach = Reach {
                link_local: true,
                ..Reach::default()
            };
            assert_eq!(why(&reach, refused).await, None);
        }
        for good in [
            "10.0.0.1",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.1",
            "192.0.0.193",
            "1.1.1.1",
            "::ffff:10.0.0.1",
            "fec0::1",
            "fd00:ec2::253",
            "2001:db8::1",
            "64:ff9b::10.0.0.1",
        ] {
            assert_eq!(why(&Reach::default(), good).await, None, "{good}");
        }
    }

    #[tokio::test]
    async fn loopback_is_refused_in_every_form() {
        for refused in [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::ffff:0:0",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
        ] {
            let reach = Reach {
                link_local: true,
                ..Reach::default()
            };
            let said = why(&reach, refused).await.unwrap();
            assert!(said.contains("a loopback address"), "{said}");
            assert!(said.contains("--endpoint-allow-cidrs"), "{said}");
        }
    }

    #[tokio::test]
    async fn addresses_of_the_api_server_are_refused_in_every_form() {
        let hosts = ["10.96.0.1", "[fd00::7]", ""].map(str::to_owned);
        let reach = Reach {
            api_server: ApiServer::new(hosts),
            ..Reach::default()
        };
        for refused in [
            "10.96.0.1",
            "::ffff:10.96.0.1",
            "64:ff9b::10.96.0.1",
            "fd00::7",
        ] {
            let said = why(&reach, refused).await.unwrap();
            assert!(said.contains("an address of the API server"), "{said}");
        }
        assert_eq!(why(&reach, "10.96.0.2").await, None);
    }

    #[tokio::test]
    async fn names_of_the_api_server_are_resolved_and_remembered() {
        let mut server = ApiServer::new(["localhost".to_owned()]);
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(server.addresses().await.contains(&loopback));
        server.hosts = vec!["none.invalid".to_owned()];
        assert!(server.addresses().await.contains(&loopback));
    }

    #[tokio::test]
    async fn denied_networks_are_refused_in_every_form_and_allowed_ones_win() {
        let reach = Reach {
            denied: nets(&["10.0.0.0/8", "::ffff:172.16.0.0/108", "2001:db8::/32"]),
            allowed: nets(&["10.1.0.0/16", "127.0.0.1/32", "169.254.1.0/24"]),
            ..Reach::default()
        };
        for refused in [
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.1.0.1", // allowed is the address itself
            "172.16.0.1",
            "2001:db8::1",
        ] {
            let said = why(&reach, refused).await.unwrap();
            assert!(said.contains("--endpoint-deny-cidrs"), "{said}");
        }
        for good in [
            "10.1.0.1",
            "::ffff:10.1.0.1",
            "127.0.0.1",
            "169.254.1.1",
            "11.0.0.1",
        ] {
            assert_eq!(why(&reach, good).await, None, "{good}");
        }
        for refused in ["127.0.0.2", "::1", "169.254.2.1"] {
            assert!(why(&reach, refused).await.is_some(), "{refused}");
        }
    }
}
