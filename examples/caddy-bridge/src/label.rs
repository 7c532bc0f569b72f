//! The `@id` of an upstream: what the bridge must know of a member, and Caddy does not.
//!
//! Caddy removes each `@id` before it reads its configuration, and refuses a configuration with two equal ones.

use std::net::{IpAddr, SocketAddr};

use traffic_http::wire::MemberInfo;

/// Separates the parts of a label. No part contains it.
const SEPARATOR: char = '|';

/// A member in Caddy's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub address: IpAddr,
    pub port: u16,
    pub weight: u32,
    pub pod_uid: String,
    pub pod_name: String,
    /// When the drain began, in milliseconds since 1970.
    pub drained_at: Option<i64>,
}

impl Entry {
    /// The entry of a member that serves. The error is for the owner of the Service.
    pub fn new(member: &MemberInfo) -> Result<Entry, String> {
        for (field, text) in [("podUid", &member.pod_uid), ("podName", &member.pod_name)] {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            if text.len() > 253 || !text.chars().all(allowed) {
                return Err(format!("`{field}` is no name of Kubernetes"));
            }
        }
        if member.port == 0 {
            return Err("`port` is 0; Caddy needs a port".to_owned());
        }
        if member.weight == 0 {
            return Err("`weight` is 0; drain the member instead".to_owned());
        }
        Ok(Entry {
            address: member.address,
            port: member.port,
            weight: member.weight,
            pod_uid: member.pod_uid.clone(),
            pod_name: member.pod_name.clone(),
            drained_at: None,
        })
    }

    /// Whether this is the entry of a member.
    pub fn is_of(&self, member: &MemberInfo) -> bool {
        (self.address, self.port) == (member.address, member.port)
    }

    pub fn to_label(&self, server: &str) -> String {
        let socket = SocketAddr::new(self.address, self.port);
        let drained = self.drained_at.unwrap_or_default();
        let Entry {
            weight,
            pod_uid,
            pod_name,
            ..
        } = self;
        format!("{server}|{socket}|{weight}|{pod_uid}|{pod_name}|{drained}")
    }

    /// `None` if the label is not of the bridge, or of another server.
    pub fn from_label(label: &str, server: &str) -> Option<Entry> {
        let parts: Vec<_> = label.split(SEPARATOR).collect();
        let [of, socket, weight, pod_uid, pod_name, drained] = parts[..] else {
            return None;
        };
        let socket: SocketAddr = socket.parse().ok()?;
        let drained: i64 = drained.parse().ok()?;
        (of == server).then_some(Entry {
            address: socket.ip(),
            port: socket.port(),
            weight: weight.parse().ok()?,
            pod_uid: pod_uid.to_owned(),
            pod_name: pod_name.to_owned(),
            drained_at: (drained != 0).then_some(drained),
        })
    }
}
