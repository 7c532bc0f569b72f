//! The mode `observe`: the cloud controller of the cluster registers Pods, and the adapter reads.
//!
//! A Pod has one member: its address, and its port for the first port of the Service. The port tells Pods apart that
//! share the address of their node. The group of the member is empty. Two Pods on the network of the same node can't
//! have the same port, so both are told apart by it; if they share an address, only the rows with their own ports count.

use std::collections::BTreeMap;
use std::net::IpAddr;

use traffic::{
    AdapterError, Employer, Member, MemberKey, Observation, Pod, PodId, Presence, Registration,
    service_ports,
};

use crate::health::{is_of_ports, observed, row_is_of_ports};
use crate::load_balancers::{LoadBalancers, no_load_balancer};
use crate::service::{address, load_balancer};
use crate::wire::{Health, Listener};

/// The member of a Pod.
pub(crate) fn member(service: &Employer, pod: &Pod) -> Result<Option<Member>, AdapterError> {
    let Some(address) = address(pod)? else {
        return Ok(None);
    };
    let ports = service_ports(service)?;
    let port = ports.iter().find_map(|port| port.on(pod).ok());
    Ok(Some(Member {
        key: MemberKey {
            group: String::new(),
            address,
            port: port.unwrap_or(0),
        },
        pod: pod.id.clone(),
        weight: 100,
    }))
}

/// Reads which Pods are registered.
pub(crate) async fn observe(
    load_balancers: &LoadBalancers,
    service: &Employer,
    pods: &[Pod],
) -> Result<Observation, AdapterError> {
    if pods.is_empty() {
        return Ok(Observation::default());
    }
    let id = match load_balancer(service) {
        Ok(id) => id,
        // The load balancer went with the Service. Nothing else is known of its members.
        Err(_) if service.deleting => return Ok(Observation::default()),
        Err(error) => return Err(error),
    };
    let ports = match service_ports(service) {
        // Then the rows of all listeners count.
        Err(_) if service.deleting => Vec::new(),
        ports => ports?,
    };
    let listeners = load_balancers.listeners(id).await?;
    let listeners = match &*listeners {
        Some(listeners) => listeners,
        None if service.deleting => return Ok(Observation::default()),
        // Nothing is concluded from it: the region or the label may be wrong.
        None => return Err(no_load_balancer(id)),
    };
    let of_service: Vec<&Listener> = listeners
        .iter()
        .filter(|listener| is_of_ports(listener, &ports))
        .collect();
    let health = load_balancers.health(id, &of_service).await?;

    let mut sharers: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in pods.iter().filter_map(|pod| pod.addresses.first()) {
        *sharers.entry(*address).or_default() += 1;
    }
    let mut registrations = Vec::new();
    for pod in pods {
        // A Pod that can't be a member is reported by `members`.
        let Ok(Some(member)) = member(service, pod) else {
            continue;
        };
        let shares = sharers.get(&member.key.address).is_some_and(|n| *n > 1);
        let own_ports: Vec<u16> = ports.iter().filter_map(|port| port.on(pod).ok()).collect();
        let is_own = |row: &&Health| {
            row.address == Some(member.key.address)
                && row_is_of_ports(row, &ports)
                && (!shares || row.port == 0 || own_ports.contains(&row.port))
        };
        let rows: Vec<&Health> = health.iter().filter(is_own).collect();
        let presence = observed(&rows, &of_service);
        if presence != Presence::Absent {
            registrations.push(Registration {
                // The load balancer knows addresses, not Pods.
                member: Member {
                    pod: PodId::default(),
                    ..member
                },
                presence,
                connections: None,
            });
        }
    }
    Ok(Observation {
        registrations,
        unreadable_groups: Vec::new(),
    })
}
