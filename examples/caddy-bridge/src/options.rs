//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;

/// Drives Caddy for the HTTP adapter.
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Address that the adapter calls
    #[arg(long, default_value = "127.0.0.1:9100")]
    pub listen: SocketAddr,
    /// URL of Caddy's admin API
    #[arg(long, default_value = "http://127.0.0.1:2019")]
    pub admin: String,
    /// A group of a Service, and the address on which Caddy serves it: `NAMESPACE/SERVICE/GROUP=ADDRESS`
    #[arg(long = "frontend", required = true)]
    pub frontends: Vec<Frontend>,
    /// Calls addresses of the first network at the same place in the second one: `10.244.0.0/16=127.244.0.0/16`
    #[arg(long = "map")]
    pub mappings: Vec<Mapping>,
    /// Caddy has the module `operating_members`: members change without a new configuration, so that no connection is cut
    #[arg(long)]
    pub members_module: bool,
    /// File with the key that signs each call; without it, everybody who reaches the bridge may call it
    #[arg(long)]
    pub hmac_key_file: Option<PathBuf>,
    /// Time after the beginning of a drain before requests are counted, in milliseconds. A request that Caddy was
    /// reading when the drain began may still go to the member
    #[arg(long, default_value_t = 1000)]
    pub settle_milliseconds: u64,
}

/// Whether a text can be a part of the name of a server.
pub(crate) fn is_name(part: &str) -> bool {
    // No dots, because they separate the parts.
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !part.is_empty() && part.chars().all(allowed)
}

/// A group of a Service, and where Caddy serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Group of the members.
    pub group: String,
    /// Address on which Caddy listens, in Caddy's notation.
    pub listen: String,
}

impl Frontend {
    /// Name of the server in Caddy's configuration.
    pub(crate) fn server(&self) -> String {
        server(&self.namespace, &self.service, &self.group)
    }
}

/// Name of the server of a group in Caddy's configuration.
pub(crate) fn server(namespace: &str, service: &str, group: &str) -> String {
    format!("operating.{namespace}.{service}.{group}")
}

impl FromStr for Frontend {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Frontend> {
        let expected = || format!("`{text}` is not NAMESPACE/SERVICE/GROUP=ADDRESS");
        let (name, listen) = text.split_once('=').with_context(expected)?;
        let parts: Vec<_> = name.split('/').collect();
        let [namespace, service, group] = parts[..] else {
            bail!(expected());
        };
        if ![namespace, service, group].into_iter().all(is_name) || listen.is_empty() {
            bail!(expected());
        }
        Ok(Frontend {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            group: group.to_owned(),
            listen: listen.to_owned(),
        })
    }
}

/// Two IPv4 networks of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    from: Ipv4Net,
    to: Ipv4Net,
}

impl Mapping {
    /// The address at the same place in the second network.
    pub(crate) fn map(&self, address: IpAddr) -> Option<IpAddr> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let host = u32::from(address) & u32::from(self.from.hostmask());
        let mapped = Ipv4Addr::from(u32::from(self.to.network()) | host);
        self.from.contains(&address).then_some(mapped.into())
    }
}

impl FromStr for Mapping {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Mapping> {
        let expected = || format!("`{text}` is not NETWORK=NETWORK with IPv4 networks of one size");
        let (from, to) = text.split_once('=').with_context(expected)?;
        let from: Ipv4Net = from.parse().with_context(expected)?;
        let to: Ipv4Net = to.parse().with_context(expected)?;
        if from.prefix_len() != to.prefix_len() {
            bail!(expected());
        }
        Ok(Mapping { from, to })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn mapped_address_keeps_its_place() {
        let mapping: Mapping = "10.244.0.0/16=127.244.0.0/16".parse().unwrap();
        let map = |address: &str| mapping.map(address.parse().unwrap());
        assert_eq!(map("10.244.3.7"), Some([127, 244, 3, 7].into()));
        assert_eq!(map("10.245.3.7"), None);
        assert_eq!(map("fd00::1"), None);
    }

    #[test]
    fn wrong_arguments_say_what_is_expected() {
        for text in [
            "web=:80",
            "a/b/c",
            "a/b/c=",
            "a/b/c/d=:80",
            "a/b/=:80",
            "a/b.c/d=:80",
        ] {
            let error = text.parse::<Frontend>().unwrap_err().to_string();
            assert!(error.contains("NAMESPACE/SERVICE/GROUP=ADDRESS"), "{error}");
        }
        for text in [
            "10.0.0.0/8",
            "10.0.0.0/8=127.0.0.0/16",
            "fd00::/8=127.0.0.0/8",
        ] {
            assert!(text.parse::<Mapping>().is_err(), "{text}");
        }
    }
}
