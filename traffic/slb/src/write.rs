//! The mode `write`: what is registered.
//!
//! A Pod has a member in each group that its Service names. The group of a member is the ID of a VServer group, or that
//! of the load balancer for its default group, whose members have the port 0. Servers of the employer are known by the
//! [mark](crate::mark) in their descriptions. The adapter never changes other servers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use traffic::{
    AdapterError, Employer, Member, MemberKey, Observation, Pod, PodId, Presence, Registration,
};

use crate::client::{Client, Group};
use crate::health::{listeners_of, registered};
use crate::interfaces::Interfaces;
use crate::mark::{EmployerMark, Owner};
use crate::observe::{LoadBalancers, SPACING, no_load_balancer};
use crate::reads::Reads;
use crate::service::{address, groups, load_balancer, weight};
use crate::settings::Settings;
use crate::wire::Server;

/// How long a server that was added, or that may have been added, is believed to be there although it is not listed.
/// Reads may be older than writes.
const BELIEVED: Duration = Duration::from_secs(10);

/// Age at which all groups of the load balancers of a namespace are read again. Another replica may have written while
/// it was the leader.
const RESCAN: Duration = Duration::from_secs(600);

/// Reads and changes groups.
pub(crate) struct Writer {
    pub(crate) settings: Settings,
    pub(crate) client: Arc<Client>,
    pub(crate) interfaces: Interfaces,
    load_balancers: LoadBalancers,
    /// Servers by group; `None` if there is no such group.
    servers: Reads<Group, Option<Vec<Server>>>,
    lists: Reads<String, Vec<String>>,
    /// The load balancer of each VServer group that was listed. A group never moves to another load balancer.
    owners: Mutex<HashMap<String, String>>,
    /// Groups in which an employer may have servers.
    scanned: Mutex<HashMap<EmployerMark, Scanned>>,
    /// A load balancer refuses a change while another one is under way.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    added: Mutex<HashMap<(EmployerMark, MemberKey), (Instant, PodId)>>,
}

struct Scanned {
    at: Instant,
    /// The groups that the Service named when all groups were read.
    named: BTreeSet<Group>,
    /// Those and all others that had servers of the employer.
    groups: BTreeSet<Group>,
}

impl Writer {
    pub(crate) fn new(settings: Settings, client: Arc<Client>) -> Writer {
        Writer {
            settings,
            interfaces: Interfaces::default(),
            load_balancers: LoadBalancers::new(client.clone()),
            client,
            servers: Reads::new(SPACING),
            lists: Reads::new(SPACING),
            owners: Mutex::default(),
            scanned: Mutex::default(),
            locks: Mutex::default(),
            added: Mutex::default(),
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

    /// The servers of a group now; `None` if there is no such group.
    pub(crate) async fn servers(
        &self,
        group: &Group,
    ) -> Result<Arc<Option<Vec<Server>>>, AdapterError> {
        let read = || async {
            match self.client.servers(group).await {
                Ok(servers) => Ok(Some(servers)),
                Err(failure) => match failure.code() {
                    _ if failure.says_no_load_balancer() => Ok(None),
                    "InvalidParameter.VServerGroupId"
                    | "InvalidVServerGroupId.NotFound"
                    | "RspoolNotExist" => Ok(None),
                    _ => Err(failure.into_error()),
                },
            }
        };
        self.servers.read(group, Duration::ZERO, read).await
    }

    /// The VServer groups of a load balancer.
    async fn list(&self, load_balancer: &str) -> Result<Arc<Vec<String>>, AdapterError> {
        let read = || async {
            let groups = self.client.groups(load_balancer).await;
            groups.map_err(|failure| failure.into_error())
        };
        let key = load_balancer.to_owned();
        let list = self.lists.read(&key, Duration::ZERO, read).await?;
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        for group in list.iter() {
            owners.insert(group.clone(), key.clone());
        }
        Ok(list)
    }

    fn known_owner(&self, group: &Group) -> Option<String> {
        match group {
            Group::Default(id) => Some(id.clone()),
            Group::Virtual(id) => {
                let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
                owners.get(id).cloned()
            }
        }
    }

    /// The load balancer of a group, if the Service may change the group. A tenant may name any group in the annotation,
    /// so the load balancer itself must list it.
    pub(crate) async fn owner(
        &self,
        service: &Employer,
        group: &Group,
    ) -> Result<String, AdapterError> {
        let allowed = || self.settings.of_namespace(&service.namespace);
        if self.known_owner(group).is_none() {
            for load_balancer in allowed() {
                self.list(load_balancer).await?;
                if self.known_owner(group).is_some() {
                    break;
                }
            }
        }
        match self.known_owner(group) {
            Some(owner) if allowed().any(|allowed| allowed == owner) => Ok(owner),
            _ => Err(AdapterError::Permanent(format!(
                "the group {} belongs to no load balancer that the configuration lists for the \
                 namespace {}",
                group.id(),
                service.namespace
            ))),
        }
    }

    /// Says why the Service can't be managed, if so.
    pub(crate) fn check(&self, service: &Employer) -> Result<(), AdapterError> {
        groups(service)?;
        weight(service)?;
        let id = load_balancer(service)?;
        match self.settings.allows(&service.namespace, id) {
            true => Ok(()),
            false => Err(not_allowed(service, id)),
        }
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
        let member = |named: crate::service::Named| {
            let port = match &named.port {
                None => 0,
                Some(port) => port.on(pod).ok_or_else(|| {
                    AdapterError::Permanent(format!(
                        "no container of the Pod has the target port of the port {:?} of the Service",
                        if port.name.is_empty() { port.number.to_string() } else { port.name.clone() }
                    ))
                })?,
            };
            Ok(Member {
                key: MemberKey {
                    group: named.group.id().to_owned(),
                    address,
                    port,
                },
                pod: pod.id.clone(),
                weight,
                attributes: BTreeMap::new(),
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
        let mut observation = Observation::default();
        let remembered = self.remembered(&mark, &named);
        let is_scan = remembered.is_none();
        let (groups, mut is_complete) = match remembered {
            Some(groups) => (groups, true),
            None => self.all_groups(service, &named, &mut observation).await,
        };
        let (mut found, mut readable) = (BTreeSet::new(), BTreeSet::new());
        for group in &groups {
            match self.read_group(service, &mark, pods, group).await {
                Ok(Some(registrations)) => {
                    readable.insert(group.id());
                    if !registrations.is_empty() {
                        found.insert(group.clone());
                    }
                    observation.registrations.extend(registrations);
                }
                // A group that is gone has no servers.
                Ok(None) if !named.contains(group) => {}
                Ok(None) => {
                    let text = format!("the group {} does not exist", group.id());
                    unreadable(&mut observation, group, AdapterError::Permanent(text));
                }
                Err(error) => {
                    is_complete = false;
                    unreadable(&mut observation, group, error);
                }
            }
        }
        self.believe_added(&mark, &readable, &mut observation);
        if service.deleting && observation.registrations.is_empty() {
            let mut all = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
            all.remove(&mark);
        } else if is_scan && is_complete {
            found.extend(named.iter().cloned());
            let scanned = Scanned {
                at: Instant::now(),
                named,
                groups: found,
            };
            let mut all = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(mark, scanned);
        }
        Ok(observation)
    }

    /// The groups to read, if all groups were read already while the Service named the same ones.
    fn remembered(&self, mark: &EmployerMark, named: &BTreeSet<Group>) -> Option<BTreeSet<Group>> {
        let all = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        let scanned = all
            .get(mark)
            .filter(|scanned| scanned.named == *named && scanned.at.elapsed() < RESCAN)?;
        Some(scanned.groups.clone())
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
            match self.list(id).await {
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
        group: &Group,
    ) -> Result<Option<Vec<Registration>>, AdapterError> {
        let owner = self.owner(service, group).await?;
        let servers = self.servers(group).await?;
        let Some(servers) = &*servers else {
            return Ok(None);
        };
        let mut registrations = Vec::new();
        let mut open = Vec::new();
        for server in servers {
            let (Some(key), Owner::Own(uid)) =
                (key(group, server), mark.owner(&server.description))
            else {
                continue;
            };
            if server.weight > 0 {
                open.push(registrations.len());
            }
            let name = pods.iter().find(|pod| pod.id.uid == uid);
            let name = name.map(|pod| pod.id.name.clone()).unwrap_or_default();
            registrations.push(Registration {
                member: Member {
                    key,
                    pod: PodId { uid, name },
                    weight: server.weight,
                    attributes: BTreeMap::new(),
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
        self.add_foreign(service, mark, pods, group, servers, &mut registrations);
        Ok(Some(registrations))
    }

    /// A Pod that should not serve, but whose address somebody else has registered, still serves. Its removal fails
    /// with the reason. For a Pod that should serve, the registration fails with the reason.
    fn add_foreign(
        &self,
        service: &Employer,
        mark: &EmployerMark,
        pods: &[Pod],
        group: &Group,
        servers: &[Server],
        registrations: &mut Vec<Registration>,
    ) {
        for pod in pods.iter().filter(|pod| !pod.on) {
            let members = self.members(service, pod).unwrap_or_default();
            for member in members.into_iter().filter(|m| m.key.group == group.id()) {
                let is_foreign = servers.iter().any(|server| {
                    server.weight > 0
                        && key(group, server).as_ref() == Some(&member.key)
                        && mark.owner(&server.description) == Owner::Other
                });
                if is_foreign {
                    registrations.push(Registration {
                        member,
                        presence: Presence::Serving,
                        connections: None,
                    });
                }
            }
        }
    }

    /// Remembers that a server is being added.
    pub(crate) fn will_add(&self, mark: &EmployerMark, key: &MemberKey, pod: &PodId) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        added.retain(|_, (at, _)| at.elapsed() < BELIEVED);
        added.insert((mark.clone(), key.clone()), (Instant::now(), pod.clone()));
    }

    /// The server was not added, or it was removed.
    pub(crate) fn is_not_there(&self, mark: &EmployerMark, key: &MemberKey) {
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        added.remove(&(mark.clone(), key.clone()));
    }

    /// Whether a server may be there although it is not listed.
    pub(crate) fn may_be_there(&self, mark: &EmployerMark, key: &MemberKey) -> bool {
        let added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = added.get(&(mark.clone(), key.clone()));
        entry.is_some_and(|(at, _)| at.elapsed() < BELIEVED)
    }

    fn believe_added(
        &self,
        mark: &EmployerMark,
        readable: &BTreeSet<&str>,
        observation: &mut Observation,
    ) {
        let added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        for ((owner, key), (at, pod)) in added.iter() {
            let is_read = readable.contains(key.group.as_str());
            let mut listed = observation.registrations.iter();
            let is_listed = listed.any(|registration| registration.member.key == *key);
            if owner == mark && is_read && !is_listed && at.elapsed() < BELIEVED {
                observation.registrations.push(Registration {
                    member: Member {
                        key: key.clone(),
                        pod: pod.clone(),
                        weight: 0,
                        attributes: BTreeMap::new(),
                    },
                    presence: Presence::Pending,
                    connections: None,
                });
            }
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
