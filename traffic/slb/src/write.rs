//! The mode `write`: what is registered.
//!
//! A Pod has a member in each group that its Service names. The group of a member is the ID of a VServer group, or that
//! of the load balancer for its default group, whose members have the port 0. Servers of the employer are known by the
//! [mark](crate::mark) in their descriptions. The adapter never changes other servers.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use traffic::{
    AdapterError, Employer, Member, MemberKey, Observation, Pod, Presence, Registration,
    service_ports,
};

use crate::added::Added;
use crate::client::{Client, Group};
use crate::groups::Groups;
use crate::health::{listeners_of, registered};
use crate::interfaces::Interfaces;
use crate::load_balancers::{LoadBalancers, no_load_balancer};
use crate::mark::{EmployerMark, Owner};
use crate::scans::Scans;
use crate::service::{GROUPS, Named, address, groups, load_balancer, weight};
use crate::settings::Settings;
use crate::wire::Server;

/// Age of reads while all groups are looked through, so that the next attempt goes on where a dropped one was.
const WHILE_SCANNING: Duration = Duration::from_secs(60);

/// Reads and changes groups.
pub(crate) struct Writer {
    pub(crate) settings: Settings,
    pub(crate) client: Arc<Client>,
    pub(crate) interfaces: Interfaces,
    pub(crate) groups: Groups,
    pub(crate) added: Added,
    load_balancers: LoadBalancers,
    scans: Scans,
    /// A load balancer refuses a change while another one is under way.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Writer {
    pub(crate) fn new(settings: Settings, client: Arc<Client>) -> Writer {
        Writer {
            settings,
            interfaces: Interfaces::default(),
            groups: Groups::new(client.clone()),
            added: Added::default(),
            load_balancers: LoadBalancers::new(client.clone()),
            client,
            scans: Scans::default(),
            locks: Mutex::default(),
        }
    }

    /// What identifies an employer in marks.
    pub(crate) fn mark(&self, service: &Employer) -> EmployerMark {
        EmployerMark::new(&self.settings.cluster, service)
    }

    /// The group with an ID from a [`MemberKey`].
    pub(crate) fn group(&self, id: &str) -> Group {
        let mut load_balancers = self.settings.load_balancers.iter();
        match load_balancers.any(|load_balancer| load_balancer.id == id) {
            true => Group::Default(id.to_owned()),
            false => Group::Virtual(id.to_owned()),
        }
    }

    /// The lock of a load balancer for changes.
    pub(crate) fn lock(&self, load_balancer: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry(load_balancer.to_owned()).or_default().clone()
    }

    /// The load balancer of a group that the Service may change.
    pub(crate) async fn owner(
        &self,
        service: &Employer,
        group: &Group,
    ) -> Result<String, AdapterError> {
        self.groups.owner(&self.settings, service, group).await
    }

    /// Says why the Service can't be managed, if so.
    pub(crate) fn check(&self, service: &Employer) -> Result<(), AdapterError> {
        service_ports(service)?;
        let groups = groups(service)?;
        weight(service)?;
        let id = load_balancer(service)?;
        if !self.settings.allows(&service.namespace, id) {
            return Err(not_allowed(service, id));
        }
        for Named { group, .. } in groups {
            let load_balancer = match &group {
                Group::Default(id) => Some(id.as_str()),
                Group::Virtual(id) if self.group(id) == group => None,
                Group::Virtual(id) => {
                    return Err(AdapterError::Permanent(format!(
                        "the annotation {GROUPS} names the load balancer {id} as a group; remove the annotation to use \
                         its default group"
                    )));
                }
            };
            self.may_fill(service, load_balancer, &group)?;
        }
        Ok(())
    }

    /// Checks that the Service may add servers to a group of its load balancers, or of this one.
    pub(crate) fn may_fill(
        &self,
        service: &Employer,
        load_balancer: Option<&str>,
        group: &Group,
    ) -> Result<(), AdapterError> {
        let settings = &self.settings;
        settings.may_fill(&service.namespace, load_balancer, group.id())
    }

    /// The members of a Pod.
    pub(crate) fn members(
        &self,
        service: &Employer,
        pod: &Pod,
    ) -> Result<Vec<Member>, AdapterError> {
        let Some(address) = address(pod)? else {
            return Ok(Vec::new());
        };
        let weight = weight(service)?;
        let member = |named: Named| {
            let port = match &named.port {
                None => 0,
                Some(port) => port.on(pod)?,
            };
            Ok(Member {
                key: MemberKey {
                    group: named.group.id().to_owned(),
                    address,
                    port,
                },
                pod: pod.id.clone(),
                weight,
            })
        };
        groups(service)?.into_iter().map(member).collect()
    }

    /// Reads what is registered.
    pub(crate) async fn observe(
        &self,
        service: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        let named: BTreeSet<Group> = match self.check(service).and_then(|()| groups(service)) {
            Ok(named) => named.into_iter().map(|named| named.group).collect(),
            // What it has had is found in the groups of all load balancers of its namespace.
            Err(_) if service.deleting => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        let mark = self.mark(service);
        let leaving = self.leaving(service, pods);
        let mut observation = Observation::default();
        let remembered = self.scans.groups(&mark, &named);
        let is_scan = remembered.is_none();
        let (groups, mut is_complete) = match remembered {
            Some(groups) => (groups, true),
            None => self.all_groups(service, &named, &mut observation).await,
        };
        let (mut found, mut readable) = (BTreeSet::new(), BTreeSet::new());
        for group in &groups {
            let age = match is_scan && !service.deleting && !named.contains(group) {
                true => WHILE_SCANNING,
                false => Duration::ZERO,
            };
            let read = self.read_group(service, &mark, pods, &leaving, group, age);
            match read.await {
                Ok(Some(registrations)) => {
                    readable.insert(group.id());
                    if !registrations.is_empty() {
                        found.insert(group.clone());
                    }
                    observation.registrations.extend(registrations);
                }
                // A group that is gone has no servers.
                Ok(None) if !named.contains(group) => {}
                Ok(None) => unreadable(&mut observation, group, no_group(group)),
                Err(error) => {
                    is_complete = false;
                    unreadable(&mut observation, group, error);
                }
            }
        }
        self.believe_added(&mark, &readable, &mut observation);
        if service.deleting && observation.registrations.is_empty() {
            self.scans.forget(&mark);
        } else if is_scan && is_complete {
            self.scans.scanned(mark, named, found);
        }
        Ok(observation)
    }

    /// All groups of all load balancers of the namespace: the Service may have named other ones before. Returns whether
    /// all of them are known.
    async fn all_groups(
        &self,
        service: &Employer,
        named: &BTreeSet<Group>,
        observation: &mut Observation,
    ) -> (BTreeSet<Group>, bool) {
        let mut groups = named.clone();
        let mut is_complete = true;
        for id in self.settings.of_namespace(&service.namespace) {
            let default = Group::Default(id.to_owned());
            match self.groups.list(id, WHILE_SCANNING).await {
                Ok(list) => {
                    groups.extend(list.iter().cloned().map(Group::Virtual));
                    groups.insert(default);
                }
                // A load balancer that does not exist, or may not be read, is no reason to stop a Service that does
                // not name it.
                Err(AdapterError::Permanent(_)) if !named.contains(&default) => is_complete = false,
                Err(error) => {
                    is_complete = false;
                    unreadable(observation, &default, error);
                }
            }
        }
        (groups, is_complete)
    }

    /// The registrations of an employer in a group; `None` if there is no such group.
    async fn read_group(
        &self,
        service: &Employer,
        mark: &EmployerMark,
        pods: &[Pod],
        leaving: &[Member],
        group: &Group,
        age: Duration,
    ) -> Result<Option<Vec<Registration>>, AdapterError> {
        let owner = self.owner(service, group).await?;
        let servers = self.groups.servers(group, age).await?;
        let Some(servers) = &*servers else {
            return Ok(None);
        };
        let mut registrations = Vec::new();
        let mut open = Vec::new();
        for server in servers {
            let (Some(key), Owner::Own(mut id)) =
                (key(group, server), mark.owner(&server.description))
            else {
                continue;
            };
            if let Some(pod) = pods.iter().find(|pod| pod.id.uid == id.uid) {
                id = pod.id.clone();
            }
            if server.weight > 0 {
                open.push(registrations.len());
            }
            registrations.push(Registration {
                member: Member {
                    key,
                    pod: id,
                    weight: server.weight,
                },
                presence: Presence::Draining { until: None },
                connections: None,
            });
        }
        if !open.is_empty() {
            let listeners = self.load_balancers.listeners(&owner).await?;
            let Some(listeners) = &*listeners else {
                return Err(no_load_balancer(&owner));
            };
            let listeners = listeners_of(group, listeners);
            let checks = listeners.iter().any(|listener| listener.checks_health());
            let health = match checks {
                true => self.load_balancers.health(&owner, &listeners).await?,
                false => Arc::default(),
            };
            for index in open {
                let key = &registrations[index].member.key;
                let presence = registered(key.address, key.port, &listeners, &health);
                registrations[index].presence = presence;
            }
        }
        add_foreign(mark, leaving, group, servers, &mut registrations);
        Ok(Some(registrations))
    }

    /// The members that Pods which should not serve have while they serve.
    fn leaving(&self, service: &Employer, pods: &[Pod]) -> Vec<Member> {
        let leaving = pods.iter().filter(|pod| !pod.on);
        let members = leaving.map(|pod| self.members(service, pod).unwrap_or_default());
        members.flatten().collect()
    }

    /// Adds the servers that may be there although no group lists them.
    fn believe_added(
        &self,
        mark: &EmployerMark,
        readable: &BTreeSet<&str>,
        observation: &mut Observation,
    ) {
        for member in self.added.in_groups(mark, readable) {
            let mut listed = observation.registrations.iter();
            if listed.any(|registration| registration.member.key == member.key) {
                continue;
            }
            observation.registrations.push(Registration {
                member,
                presence: Presence::Pending,
                connections: None,
            });
        }
    }
}

/// A Pod that should not serve, but whose address somebody else has registered, still serves. Its removal fails with the
/// reason. For a Pod that should serve, the registration fails with the reason.
fn add_foreign(
    mark: &EmployerMark,
    leaving: &[Member],
    group: &Group,
    servers: &[Server],
    registrations: &mut Vec<Registration>,
) {
    for member in leaving.iter().filter(|m| m.key.group == group.id()) {
        let is_foreign = servers.iter().any(|server| {
            server.weight > 0
                && key(group, server).as_ref() == Some(&member.key)
                && mark.owner(&server.description) == Owner::Other
        });
        if is_foreign {
            registrations.push(Registration {
                member: member.clone(),
                presence: Presence::Serving,
                connections: None,
            });
        }
    }
}

/// The key of a server; `None` if its address is not told.
pub(crate) fn key(group: &Group, server: &Server) -> Option<MemberKey> {
    Some(MemberKey {
        group: group.id().to_owned(),
        address: server.address?,
        port: match group {
            Group::Default(_) => 0,
            Group::Virtual(_) => server.port,
        },
    })
}

/// The error for a load balancer that the configuration does not list for the namespace.
pub(crate) fn not_allowed(service: &Employer, id: &str) -> AdapterError {
    AdapterError::Permanent(format!(
        "the load balancer {id} is not listed for the namespace {} in `loadBalancers` of the \
         configuration of the adapter",
        service.namespace
    ))
}

fn unreadable(observation: &mut Observation, group: &Group, error: AdapterError) {
    let id = group.id().to_owned();
    let groups = &mut observation.unreadable_groups;
    if !groups.iter().any(|(group, _)| *group == id) {
        groups.push((id, error));
    }
}

/// The error for a group that does not exist.
pub(crate) fn no_group(group: &Group) -> AdapterError {
    AdapterError::Permanent(format!("the group {} does not exist", group.id()))
}
