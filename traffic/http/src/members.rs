//! The members of a Pod, from the ports of the Service.

use traffic::{AdapterError, Employer, Member, MemberKey, Pod, ServicePort, service_ports};

use crate::Config;

/// The ports of a Service that get members. The group of a port is its label. An error says which field of the Service is wrong.
pub(crate) fn ports(
    config: &Config,
    employer: &Employer,
) -> Result<Vec<ServicePort>, AdapterError> {
    let mut ports = service_ports(employer)?;
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
        let port = service_port.on(pod)?;
        for address in of_family.clone() {
            members.push(Member {
                key: MemberKey {
                    group: service_port.label(),
                    address: *address,
                    port,
                },
                pod: pod.id.clone(),
                weight: config.weight,
            });
        }
    }
    Ok(members)
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
