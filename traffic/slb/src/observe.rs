//! The mode `observe`: the cloud controller of the cluster registers Pods, and the adapter reads.
//!
//! A Pod has one member: its address, and its port for the first port of the Service. The port tells Pods apart that
//! share the address of their node. The group of the member is empty. Two Pods on the network of the same node can't
//! have the same port, so both are told apart by it; if they share an address, only the rows with their own ports count.
//!
//! A Pod that should serve does so at the listeners of its Service. A Pod that is off may still get requests elsewhere:
//! the Service can change before the cloud controller does. So the listeners of all ports count for it, and those of the
//! load balancers that the Service named before.

use std::collections::BTreeMap;
use std::net::IpAddr;

use traffic::{
    AdapterError, Employer, Member, MemberKey, Observation, Pod, PodId, Presence, Registration,
    ServicePort, service_ports,
};

use crate::health::{is_of_ports, observed, row_is_of_ports};
use crate::load_balancers::{LoadBalancers, no_load_balancer};
use crate::occupied::Occupied;
use crate::service::{address, load_balancer};
use crate::wire::{Health, Listener};

/// Reads which Pods are registered.
pub(crate) struct Observer {
    load_balancers: LoadBalancers,
    occupied: Occupied,
}

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

impl Observer {
    pub(crate) fn new(load_balancers: LoadBalancers) -> Observer {
        Observer {
            load_balancers,
            occupied: Occupied::default(),
        }
    }

    /// Reads which Pods are registered.
    pub(crate) async fn observe(
        &self,
        service: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        if service.deleting {
            self.occupied.forget(&service.uid); // no Pod waits for such a Service
        }
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
        let listeners = self.load_balancers.listeners(id).await?;
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
        let mut servers = servers(service, pods, &ports);
        let any_off = servers.iter().any(|server| server.is_off);
        let read = match any_off {
            true => listeners.iter().collect(),
            false => of_service.clone(),
        };
        let health = self.load_balancers.health(id, &read).await?;
        for server in &mut servers {
            let rows = health.iter().filter(|row| server.is_at(row, &ports));
            server.presence = observed(&rows.collect::<Vec<_>>(), &of_service);
            server.note_if_off(&health);
        }
        let mut unreadable_groups = Vec::new();
        if !service.deleting {
            let found = servers.iter().any(Server::is_registered);
            self.occupied.note(&service.uid, id, found);
            if any_off {
                let former = self.occupied.former(&service.uid, id);
                unreadable_groups = self.read_former(service, former, &mut servers).await;
            }
        }
        let registered = servers.into_iter().filter(Server::is_registered);
        Ok(Observation {
            registrations: registered.map(Server::into_registration).collect(),
            unreadable_groups,
        })
    }

    /// Reads the load balancers that the Service named before, for the Pods that are off. Returns those that can't be
    /// read.
    async fn read_former(
        &self,
        service: &Employer,
        former: Vec<String>,
        servers: &mut [Server<'_>],
    ) -> Vec<(String, AdapterError)> {
        let mut unreadable = Vec::new();
        for id in former {
            let health = match self.all_rows(&id).await {
                Ok(health) => health,
                Err(error) => {
                    unreadable.push((id, error));
                    continue;
                }
            };
            for server in servers.iter_mut() {
                server.note_if_off(&health);
            }
            let found = servers.iter().any(|server| server.is_anywhere(&health));
            self.occupied.note(&service.uid, &id, found);
        }
        unreadable
    }

    /// The rows of all listeners of a load balancer. None if there is no such load balancer.
    async fn all_rows(&self, id: &str) -> Result<Vec<Health>, AdapterError> {
        let listeners = self.load_balancers.listeners(id).await?;
        let Some(listeners) = &*listeners else {
            return Ok(Vec::new());
        };
        let all: Vec<&Listener> = listeners.iter().collect();
        let health = self.load_balancers.health(id, &all).await?;
        Ok(health.to_vec())
    }
}

/// A Pod as load balancers know it.
struct Server<'a> {
    pod: &'a Pod,
    member: Member,
    is_off: bool,
    /// Whether another Pod has the same address.
    shares: bool,
    /// The ports of the Pod to which the Service leads.
    own_ports: Vec<u16>,
    presence: Presence,
}

fn servers<'a>(service: &Employer, pods: &'a [Pod], ports: &[ServicePort]) -> Vec<Server<'a>> {
    let mut sharers: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in pods.iter().filter_map(|pod| pod.addresses.first()) {
        *sharers.entry(*address).or_default() += 1;
    }
    let server = |pod: &'a Pod| {
        // A Pod that can't be a member is reported by `members`.
        let member = member(service, pod).ok()??;
        Some(Server {
            is_off: !pod.on && !service.deleting,
            shares: sharers.get(&member.key.address).is_some_and(|n| *n > 1),
            own_ports: ports.iter().filter_map(|port| port.on(pod).ok()).collect(),
            presence: Presence::Absent,
            member,
            pod,
        })
    };
    pods.iter().filter_map(server).collect()
}

impl Server<'_> {
    /// Whether a row says that the Pod is registered for its Service.
    fn is_at(&self, row: &Health, ports: &[ServicePort]) -> bool {
        row.address == Some(self.member.key.address)
            && row_is_of_ports(row, ports)
            && (!self.shares || row.port == 0 || self.own_ports.contains(&row.port))
    }

    /// Whether the Pod is registered at any listener. Pods on the network of one node have the same address, perhaps as
    /// Pods of other Services, so only its own ports count.
    fn is_anywhere(&self, health: &[Health]) -> bool {
        let is_own_port = |port: u16| {
            let mut declared = self.pod.ports.iter();
            port == 0
                || self.own_ports.contains(&port)
                || declared.any(|declared| declared.number == port)
        };
        let mut of_pod = health
            .iter()
            .filter(|row| row.address == Some(self.member.key.address));
        of_pod.any(|row| is_own_port(row.port))
    }

    /// A Pod that is off counts as registered while any listener has it.
    fn note_if_off(&mut self, health: &[Health]) {
        if self.is_off && self.presence == Presence::Absent && self.is_anywhere(health) {
            self.presence = Presence::Pending;
        }
    }

    fn is_registered(&self) -> bool {
        self.presence != Presence::Absent
    }

    fn into_registration(self) -> Registration {
        Registration {
            // The load balancer knows addresses, not Pods.
            member: Member {
                pod: PodId::default(),
                ..self.member
            },
            presence: self.presence,
            connections: None,
        }
    }
}
