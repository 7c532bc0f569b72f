//! The mode `write`: decides which calls change the members of a group, without I/O.

use traffic::{AdapterError, Applied, Member, Presence};

use crate::added::Added;
use crate::client::Group;
use crate::failure::cut;
use crate::mark::{EmployerMark, Owner};
use crate::wire::{Server, ServerParameter};
use crate::write::key;

/// What should happen to the members of a group.
#[derive(Default)]
pub(crate) struct Wanted<'a> {
    pub register: Vec<&'a Member>,
    pub drain: Vec<&'a Member>,
    pub deregister: Vec<&'a Member>,
}

impl<'a> Wanted<'a> {
    /// All members.
    pub(crate) fn members(&self) -> impl Iterator<Item = &&'a Member> {
        let lists = [&self.register, &self.drain, &self.deregister];
        lists.into_iter().flatten()
    }
}

/// A server of a call.
pub(crate) struct Item<'a> {
    pub member: &'a Member,
    pub server: ServerParameter,
    /// What becomes of the member if the call succeeds.
    pub then: Presence,
}

/// The calls for a group.
#[derive(Default)]
pub(crate) struct Calls<'a> {
    /// Servers of earlier Pods whose addresses have new Pods. They are removed before the new Pods are added: a new Pod
    /// may be on another network interface, and no call changes the description of a server for sure.
    pub replace: Vec<Item<'a>>,
    /// New servers. Their network interfaces are found later.
    pub add: Vec<Item<'a>>,
    /// Servers that get another weight.
    pub set: Vec<Item<'a>>,
    /// Servers that go.
    pub remove: Vec<Item<'a>>,
}

const DRAINING: Presence = Presence::Draining { until: None };

/// Decides about each member by what the group has: the calls, and the results of members that need none.
pub(crate) fn decide<'a>(
    added: &Added,
    mark: &EmployerMark,
    group: &Group,
    servers: &[Server],
    wanted: &Wanted<'a>,
) -> (Calls<'a>, Applied) {
    let mut decision = Decision {
        mark,
        group,
        servers,
        calls: Calls::default(),
        results: Applied::new(),
    };
    for member in &wanted.register {
        decision.register(member);
    }
    for member in &wanted.drain {
        decision.drain(added, member);
    }
    for member in &wanted.deregister {
        decision.deregister(added, member);
    }
    (decision.calls, decision.results)
}

struct Decision<'a, 'b> {
    mark: &'b EmployerMark,
    group: &'b Group,
    servers: &'b [Server],
    calls: Calls<'a>,
    results: Applied,
}

impl<'a, 'b> Decision<'a, 'b> {
    fn result(&mut self, member: &Member, result: Result<Presence, AdapterError>) {
        self.results.insert(member.key.clone(), result);
    }

    /// The server with the key of a member, and its owner. If several servers have the key, the own server counts.
    fn find(&self, member: &Member) -> Option<(&'b Server, Owner)> {
        let servers = self.with_key(member);
        servers.min_by_key(|(_, owner)| *owner == Owner::Other)
    }

    fn with_key(&self, member: &Member) -> impl Iterator<Item = (&'b Server, Owner)> {
        let has_key = |server: &&Server| key(self.group, server).as_ref() == Some(&member.key);
        let servers = self.servers.iter().filter(has_key);
        servers.map(|server| (server, self.mark.owner(&server.description)))
    }

    fn register(&mut self, member: &'a Member) {
        let Some(description) = self.mark.description(&member.pod) else {
            let text = "the UID of the Pod can't be part of the description of a server";
            return self.result(member, Err(AdapterError::Permanent(text.to_owned())));
        };
        let new = Server {
            server_id: String::new(),
            address: Some(member.key.address),
            kind: "eni".to_owned(),
            port: member.key.port,
            weight: member.weight,
            description,
        };
        let then = Presence::Pending;
        match self.find(member) {
            Some((server, Owner::Other)) => {
                let error = self.foreign(member, server);
                self.result(member, Err(error));
            }
            Some((old, Owner::Own(pod))) if pod.uid == member.pod.uid => {
                if old.weight == member.weight {
                    return self.result(member, Ok(then));
                }
                let item = self.item(member, old, member.weight, then);
                self.calls.set.push(item);
            }
            Some((old, Owner::Own(_))) => {
                let item = self.item(member, old, 0, Presence::Absent);
                self.calls.replace.push(item);
                let item = self.item(member, &new, member.weight, then);
                self.calls.add.push(item);
            }
            None => {
                let item = self.item(member, &new, member.weight, then);
                self.calls.add.push(item);
            }
        }
    }

    fn drain(&mut self, added: &Added, member: &'a Member) {
        if let Some(server) = self.leaving(added, member) {
            if server.weight == 0 {
                let is_open =
                    |(other, owner): &(&Server, Owner)| *owner == Owner::Other && other.weight > 0;
                let open = self.with_key(member).find(is_open);
                let result = match open {
                    Some((other, _)) => Err(self.foreign(member, other)),
                    None => Ok(DRAINING),
                };
                return self.result(member, result);
            }
            let item = self.item(member, server, 0, DRAINING);
            self.calls.set.push(item);
        }
    }

    fn deregister(&mut self, added: &Added, member: &'a Member) {
        if let Some(server) = self.leaving(added, member) {
            let item = self.item(member, server, 0, Presence::Absent);
            self.calls.remove.push(item);
        }
    }

    /// The server of a member that should leave. If there is none, the result is set, unless nothing is known.
    fn leaving(&mut self, added: &Added, member: &Member) -> Option<&'b Server> {
        match self.find(member) {
            Some((server, Owner::Other)) => {
                let error = self.foreign(member, server);
                self.result(member, Err(error));
                None
            }
            // The address has a new Pod, which stays.
            Some((_, Owner::Own(pod)))
                if !member.pod.uid.is_empty() && pod.uid != member.pod.uid =>
            {
                self.result(member, Ok(Presence::Absent));
                None
            }
            Some((server, Owner::Own(_))) => Some(server),
            // The group may not list it yet. The next observation tells.
            None if added.may_be_there(self.mark, &member.key) => None,
            None => {
                self.result(member, Ok(Presence::Absent));
                None
            }
        }
    }

    fn item(&self, member: &'a Member, server: &Server, weight: u32, then: Presence) -> Item<'a> {
        let server = ServerParameter {
            server_id: server.server_id.clone(),
            server_ip: member.key.address.to_string(),
            kind: server.kind.clone(),
            port: match self.group {
                Group::Default(_) => String::new(),
                Group::Virtual(_) => member.key.port.to_string(),
            },
            weight: weight.to_string(),
            description: server.description.clone(),
        };
        Item {
            member,
            server,
            then,
        }
    }

    fn foreign(&self, member: &Member, server: &Server) -> AdapterError {
        AdapterError::Permanent(format!(
            "somebody else has registered {} in the group {} (description {:?}); the adapter leaves \
             that server alone; remove it",
            member.key.address,
            self.group.id(),
            cut(&server.description)
        ))
    }
}
