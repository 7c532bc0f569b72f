//! The members of a Pod, from the ports of the Service.

use std::collections::BTreeMap;

use serde::Deserialize;
use traffic::{AdapterError, Employer, Member, MemberKey, Pod};

use crate::Config;

/// A port of `spec.ports` of a Service.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicePort {
    #[serde(default)]
    name: String,
    pub port: u16,
    target_port: Option<Target>,
    #[serde(default = "tcp")]
    pub protocol: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Target {
    Number(u16),
    Name(String),
}

fn tcp() -> String {
    "TCP".to_owned()
}

impl ServicePort {
    /// Group of the members: the name of the port, or its number.
    pub fn group(&self) -> String {
        match self.name.is_empty() {
            true => self.port.to_string(),
            false => self.name.clone(),
        }
    }

    /// Number or name of the port of the Pods.
    pub fn target(&self) -> String {
        match &self.target_port {
            Some(Target::Name(name)) => name.clone(),
            Some(Target::Number(number)) if *number != 0 => number.to_string(),
            _ => self.port.to_string(),
        }
    }

    fn number(&self, pod: &Pod) -> Result<u16, AdapterError> {
        match &self.target_port {
            Some(Target::Name(name)) => pod.port_named(name).ok_or_else(|| {
                AdapterError::Permanent(format!(
                    "no container of the Pod declares a port {name:?}, the `targetPort` of port {:?} of the Service; \
                     declare it in `ports`, or set `targetPort` to a number",
                    self.group()
                ))
            }),
            Some(Target::Number(number)) if *number != 0 => Ok(*number),
            _ => Ok(self.port),
        }
    }
}

/// The ports of a Service that get members. An error says which field of the Service is wrong.
pub(crate) fn ports(
    config: &Config,
    employer: &Employer,
) -> Result<Vec<ServicePort>, AdapterError> {
    let ports = employer.spec.get("ports").cloned().unwrap_or_default();
    let ports: Option<Vec<ServicePort>> = serde_json::from_value(ports)
        .map_err(|error| AdapterError::Permanent(format!("`spec.ports` can't be read: {error}")))?;
    let mut ports = ports.unwrap_or_default();
    ports.retain(|port| config.protocols.contains(&port.protocol));
    if let Some(name) = &config.port_name {
        ports.retain(|port| port.name == *name);
    }
    if !ports.is_empty() {
        return Ok(ports);
    }
    let protocols = config.protocols.join(" or ");
    let named = match &config.port_name {
        Some(name) => format!(" with the name {name:?}"),
        None => String::new(),
    };
    Err(AdapterError::Permanent(format!(
        "`spec.ports` has no {protocols} port{named}; add one"
    )))
}

/// A member for each port of the Service and each address of the first family of the Pod.
pub(crate) fn members(
    config: &Config,
    employer: &Employer,
    pod: &Pod,
) -> Result<Vec<Member>, AdapterError> {
    let Some(first) = pod.addresses.first() else {
        return match pod.on {
            // An empty list would mean that the Pod serves with no member at all.
            true => Err(AdapterError::Transient(
                "the Pod has no address yet".to_owned(),
            )),
            false => Ok(Vec::new()),
        };
    };
    let of_family = pod
        .addresses
        .iter()
        .filter(|a| a.is_ipv4() == first.is_ipv4());
    let mut members = Vec::new();
    for service_port in ports(config, employer)? {
        let port = service_port.number(pod)?;
        for address in of_family.clone() {
            members.push(Member {
                key: MemberKey {
                    group: service_port.group(),
                    address: *address,
                    port,
                },
                pod: pod.id.clone(),
                weight: config.weight,
                attributes: BTreeMap::new(),
            });
        }
    }
    Ok(members)
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
