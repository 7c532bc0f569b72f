//! The network from which a connection comes, for limits by address.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or the /64 network of an IPv6 address. A client that has one address of such a network has all of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceNetwork(IpAddr);

impl SourceNetwork {
    pub(super) fn from_ip(address: IpAddr) -> SourceNetwork {
        SourceNetwork(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn ipv6_counts_by_network_and_mapped_ipv4_by_address() {
        let source = |text: &str| SourceNetwork::from_ip(text.parse().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
