//! Addresses that a rule must not make the server talk to: what only the machine itself should reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Whether an address is link-local, or one where a cloud tells its machines their credentials; IPv4 addresses in any
/// IPv6 form included.
pub fn is_refused(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_refused_v4(v4),
        IpAddr::V6(v6) => {
            v6.segments()[0] & 0xffc0 == 0xfe80
                || METADATA_V6.contains(&v6)
                || embedded(v6).is_some_and(is_refused_v4)
        }
    }
}

fn is_refused_v4(address: Ipv4Addr) -> bool {
    address.is_link_local() || METADATA_V4.contains(&address)
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
            assert!(is_refused(refused.parse().unwrap()), "{refused}");
        }
        for good in [
            "127.0.0.1",
            "10.0.0.1",
            "169.253.255.255",
            "169.255.0.1",
            "192.0.0.193",
            "1.1.1.1",
            "::1",
            "::ffff:10.0.0.1",
            "fec0::1",
            "fd00:ec2::253",
            "2001:db8::1",
            "64:ff9b::10.0.0.1",
        ] {
            assert!(!is_refused(good.parse().unwrap()), "{good}");
        }
    }
}
