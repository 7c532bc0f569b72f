//! Refuses addresses that rules must not make the server call: addresses that only the machine itself should reach, and
//! the API server.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use ipnet::IpNet;

use crate::api::podtransitionrule::PodTransitionRuleSpec;

/// Metadata and host services of clouds outside the link-local range: Alibaba, Oracle, Azure.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// IPv6 addresses of such services: AWS, Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Which addresses the endpoints of rules may have.
#[derive(Clone, Debug, Default)]
pub struct EndpointNetworks {
    /// Addresses that are always allowed.
    pub allowed: Vec<IpNet>,
    /// Addresses that are refused, in addition to loopback, the API server, link-local and cloud metadata addresses.
    pub denied: Vec<IpNet>,
    /// Whether link-local and cloud metadata addresses are allowed.
    pub link_local: bool,
    /// Addresses of the API server, where the configuration contains an address and not a name.
    pub api_server: HashSet<IpAddr>,
}

impl EndpointNetworks {
    /// Why an address is refused, with the flag that allows it. `None` if the server may connect to it. `api_server`
    /// are the addresses that the names of the API server resolve to.
    pub fn refusal_reason(&self, address: IpAddr, api_server: &HashSet<IpAddr>) -> Option<String> {
        let refusal = |kind: &str, flag: &str| {
            Some(format!(
                "{address} is {kind}, which rules may not name; {flag} allows it"
            ))
        };
        let forms = equivalent_addresses(address);
        let is_in = |nets: &[IpNet]| {
            let mut forms = forms.iter();
            forms.any(|form| nets.iter().any(|net| net.contains(form)))
        };
        // Only the forms that lead to the same host count: a translated address may lead to another host.
        let canonical = address.to_canonical();
        if self
            .allowed
            .iter()
            .any(|net| net.contains(&canonical) || net.contains(&address))
        {
            return None;
        }
        if is_in(&self.denied) {
            return refusal("in --endpoint-deny-cidrs", "--endpoint-allow-cidrs");
        }
        if forms.iter().any(is_loopback) {
            return refusal("a loopback address of the server", "--endpoint-allow-cidrs");
        }
        if !self.link_local && forms.iter().any(is_link_local) {
            let flag = "--allow-link-local-endpoints";
            return refusal("a link-local or cloud metadata address", flag);
        }
        let is_api_server = |form: &IpAddr| {
            let form = form.to_canonical();
            self.api_server.contains(&form) || api_server.contains(&form)
        };
        if forms.iter().any(is_api_server) {
            return refusal("an address of the API server", "--endpoint-allow-cidrs");
        }
        None
    }

    /// Warnings for a user who applies rules whose endpoints will not be called. They depend only on addresses in the
    /// URLs, and on `localhost`. Other names are resolved when the server connects.
    pub fn network_warnings(&self, spec: &PodTransitionRuleSpec) -> Vec<String> {
        let mut warnings = Vec::new();
        for (index, rule) in spec.rules.iter().enumerate() {
            let config = rule.webhook.as_ref().and_then(|w| w.client_config.as_ref());
            let poll = config.and_then(|config| config.poll.as_ref());
            let urls = [
                ("url", config.map(|c| &c.url)),
                ("poll.url", poll.map(|p| &p.url)),
            ];
            for (field, url) in urls {
                let address = url.and_then(|url| literal_address(url));
                if let Some(reason) = address.and_then(|a| self.refusal_reason(a, &HashSet::new()))
                {
                    warnings.push(format!(
                        "spec.rules[{index}].webhook.clientConfig.{field}: the server will not call this endpoint: {reason}"
                    ));
                }
            }
        }
        warnings
    }
}

/// The address in a URL, if the host is an address or `localhost`.
fn literal_address(url: &str) -> Option<IpAddr> {
    let url: Uri = url.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']).trim_end_matches('.');
    let is_local = host.eq_ignore_ascii_case("localhost");
    if is_local {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.parse().ok()
}

/// The address, and the IPv4 or mapped IPv6 address that is equivalent to it.
fn equivalent_addresses(address: IpAddr) -> Vec<IpAddr> {
    let equivalent = match address {
        IpAddr::V4(v4) => Some(IpAddr::V6(v4.to_ipv6_mapped())),
        IpAddr::V6(v6) => embedded_ipv4(v6).map(IpAddr::V4),
    };
    [address].into_iter().chain(equivalent).collect()
}

/// Whether an address leads back to this machine. This includes the unspecified address, and on Linux all of
/// `0.0.0.0/8`.
fn is_loopback(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified(),
    }
}

/// Whether an address is link-local, or one where a cloud serves credentials to its machines.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(v4),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80 || METADATA_V6.contains(v6),
    }
}

/// The IPv4 address in a mapped, compatible, NAT64 or 6to4 address.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
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
    use serde_json::json;

    use super::*;

    fn reason_for(networks: &EndpointNetworks, address: &str) -> Option<String> {
        networks.refusal_reason(address.parse().unwrap(), &HashSet::new())
    }

    fn nets(cidrs: &[&str]) -> Vec<IpNet> {
        cidrs.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn link_local_and_metadata_addresses_are_refused_in_every_form() {
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
            let reason = reason_for(&EndpointNetworks::default(), refused).unwrap();
            assert!(reason.contains("--allow-link-local-endpoints"), "{reason}");
            let networks = EndpointNetworks {
                link_local: true,
                ..EndpointNetworks::default()
            };
            assert_eq!(reason_for(&networks, refused), None);
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
            assert_eq!(
                reason_for(&EndpointNetworks::default(), good),
                None,
                "{good}"
            );
        }
    }

    #[test]
    fn loopback_is_refused_in_every_form() {
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
            let networks = EndpointNetworks {
                link_local: true,
                ..EndpointNetworks::default()
            };
            let reason = reason_for(&networks, refused).unwrap();
            assert!(reason.contains("a loopback address"), "{reason}");
            assert!(reason.contains("--endpoint-allow-cidrs"), "{reason}");
        }
    }

    #[test]
    fn denied_networks_are_refused_in_every_form_unless_allowed() {
        let networks = EndpointNetworks {
            denied: nets(&["10.0.0.0/8", "::ffff:172.16.0.0/108", "2001:db8::/32"]),
            allowed: nets(&["10.1.0.0/16", "127.0.0.1/32", "169.254.1.0/24"]),
            ..EndpointNetworks::default()
        };
        for refused in [
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.1.0.1", // only the address itself is allowed
            "172.16.0.1",
            "2001:db8::1",
        ] {
            let reason = reason_for(&networks, refused).unwrap();
            assert!(reason.contains("--endpoint-deny-cidrs"), "{reason}");
        }
        for good in [
            "10.1.0.1",
            "::ffff:10.1.0.1",
            "127.0.0.1",
            "169.254.1.1",
            "11.0.0.1",
        ] {
            assert_eq!(reason_for(&networks, good), None, "{good}");
        }
        for refused in ["127.0.0.2", "::1", "169.254.2.1"] {
            assert!(reason_for(&networks, refused).is_some(), "{refused}");
        }
    }

    #[test]
    fn addresses_of_the_api_server_are_refused_in_every_form() {
        let networks = EndpointNetworks {
            api_server: ["10.96.0.1", "fd00::7"].map(|a| a.parse().unwrap()).into(),
            ..EndpointNetworks::default()
        };
        for refused in [
            "10.96.0.1",
            "::ffff:10.96.0.1",
            "64:ff9b::10.96.0.1",
            "fd00::7",
        ] {
            let reason = reason_for(&networks, refused).unwrap();
            assert!(reason.contains("an address of the API server"), "{reason}");
        }
        assert_eq!(reason_for(&networks, "10.96.0.2"), None);
    }

    #[test]
    fn refused_literal_address_warns_with_field_and_flag() {
        let networks = EndpointNetworks {
            denied: nets(&["10.0.0.0/8"]),
            allowed: nets(&["10.1.0.0/16"]),
            ..EndpointNetworks::default()
        };
        let warned = |url: &str, poll: &str| {
            let ask = json!({ "clientConfig": { "url": url, "poll": { "url": poll } } });
            let rules = json!([{ "name": "a", "labelCheck": {} }, { "name": "b", "webhook": ask }]);
            let spec = json!({ "selector": {}, "rules": rules });
            networks.network_warnings(&serde_json::from_value(spec).unwrap())
        };
        let good = "https://check.example.com/";
        for (url, flag) in [
            ("http://127.0.0.1:80/x", "--endpoint-allow-cidrs"),
            ("https://u:hunter2@LocalHost/", "--endpoint-allow-cidrs"),
            ("http://[::1]:9443/", "--endpoint-allow-cidrs"),
            ("http://10.2.0.1/", "--endpoint-deny-cidrs"),
            (
                "http://169.254.169.254/latest",
                "--allow-link-local-endpoints",
            ),
        ] {
            for (reason, field) in [(warned(url, good), "url"), (warned(good, url), "poll.url")] {
                let [reason] = &reason[..] else {
                    unreachable!("{url}: {reason:?}")
                };
                let start = format!("spec.rules[1].webhook.clientConfig.{field}: ");
                assert!(
                    reason.starts_with(&start) && reason.contains(flag),
                    "{reason}"
                );
                assert!(!reason.contains("hunter2"), "{reason}");
            }
        }
        for url in [
            "http://10.1.0.1/",
            "https://192.168.0.1/",
            "http://name",
            "odd",
        ] {
            assert_eq!(warned(url, good), [""; 0], "{url}");
        }
    }
}
