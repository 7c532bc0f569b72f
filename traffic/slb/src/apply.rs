//! The mode `write`: changes of groups.

use std::collections::{BTreeMap, VecDeque};

use traffic::{AdapterError, Applied, Changes, Employer, Member, Presence};

use crate::client::{Group, Write};
use crate::failure::Failure;
use crate::mark::{EmployerMark, Owner};
use crate::wire::{Server, ServerParameter};
use crate::write::{Writer, key};

/// Most servers in a call.
const BATCH: usize = 20;
/// Most calls that are made only to find out which servers of refused calls can't be changed.
const SPLITS: usize = 16;

/// What should happen to the members of a group.
#[derive(Default)]
struct Wanted<'a> {
    register: Vec<&'a Member>,
    drain: Vec<&'a Member>,
    deregister: Vec<&'a Member>,
}

impl<'a> Wanted<'a> {
    fn members(&self) -> impl Iterator<Item = &&'a Member> {
        let lists = [&self.register, &self.drain, &self.deregister];
        lists.into_iter().flatten()
    }
}

/// A server of a call.
struct Item<'a> {
    member: &'a Member,
    server: ServerParameter,
    /// What becomes of the member if the call succeeds.
    then: Presence,
}

/// The calls for a group.
#[derive(Default)]
struct Calls<'a> {
    add: Vec<Item<'a>>,
    set: Vec<Item<'a>>,
    remove: Vec<Item<'a>>,
}

const DRAINING: Presence = Presence::Draining { until: None };

/// Changes members. Members whose call was sent but not answered are missing in the result.
pub(crate) async fn apply(writer: &Writer, service: &Employer, changes: &Changes) -> Applied {
    let mut groups: BTreeMap<Group, Wanted<'_>> = BTreeMap::new();
    for member in &changes.register {
        let group = writer.group(&member.key.group);
        groups.entry(group).or_default().register.push(member);
    }
    for member in &changes.drain {
        let group = writer.group(&member.key.group);
        groups.entry(group).or_default().drain.push(member);
    }
    for member in &changes.deregister {
        let group = writer.group(&member.key.group);
        groups.entry(group).or_default().deregister.push(member);
    }
    let mut applied = Applied::new();
    for (group, wanted) in groups {
        match writer.owner(service, &group).await {
            Ok(owner) => {
                let lock = writer.lock(&owner);
                let _changing = lock.lock().await;
                change_group(writer, service, &group, &wanted, &mut applied).await;
            }
            Err(error) => fail(&wanted, &error, &mut applied),
        }
    }
    applied
}

fn fail(wanted: &Wanted<'_>, error: &AdapterError, applied: &mut Applied) {
    for member in wanted.members() {
        applied.insert(member.key.clone(), Err(error.clone()));
    }
}

async fn change_group(
    writer: &Writer,
    service: &Employer,
    group: &Group,
    wanted: &Wanted<'_>,
    applied: &mut Applied,
) {
    let servers = match writer.servers(group).await {
        Ok(servers) => servers,
        Err(error) => return fail(wanted, &error, applied),
    };
    let Some(servers) = &*servers else {
        let text = format!("the group {} does not exist", group.id());
        fail(wanted, &AdapterError::Permanent(text), applied);
        for member in wanted.drain.iter().chain(&wanted.deregister) {
            applied.insert(member.key.clone(), Ok(Presence::Absent));
        }
        return;
    };
    let mark = writer.mark(service);
    let mut calls = decide(writer, &mark, group, servers, wanted, applied);
    find_interfaces(writer, &mut calls.add, applied).await;
    let mut run = Run {
        writer,
        mark: &mark,
        group,
        splits: SPLITS,
        stopped: None,
        applied,
    };
    // New servers come before old ones go.
    run.write(Write::Add, calls.add).await;
    run.write(Write::Set, calls.set).await;
    run.write(Write::Remove, calls.remove).await;
}

/// Decides about each member by what the group has.
fn decide<'a>(
    writer: &Writer,
    mark: &EmployerMark,
    group: &Group,
    servers: &[Server],
    wanted: &Wanted<'a>,
    applied: &mut Applied,
) -> Calls<'a> {
    let mut calls = Calls::default();
    let find = |member: &Member| {
        let mut servers = servers.iter();
        let found = servers.find(|server| key(group, server).as_ref() == Some(&member.key));
        found.map(|server| (server, mark.owner(&server.description)))
    };
    for &member in &wanted.register {
        let Some(description) = mark.description(&member.pod.uid) else {
            let text = "the UID of the Pod can't be part of the description of a server";
            let error = AdapterError::Permanent(text.to_owned());
            applied.insert(member.key.clone(), Err(error));
            continue;
        };
        let then = Presence::Pending;
        match find(member) {
            Some((server, Owner::Other)) => {
                drop(applied.insert(member.key.clone(), Err(foreign(group, member, server))))
            }
            Some((server, _))
                if server.weight == member.weight && server.description == description =>
            {
                applied.insert(member.key.clone(), Ok(then));
            }
            Some((old, _)) => {
                let server = parameter(group, member, old, member.weight, description);
                calls.set.push(Item {
                    member,
                    server,
                    then,
                });
            }
            None => {
                let new = Server {
                    // The interface is found later.
                    server_id: String::new(),
                    address: Some(member.key.address),
                    kind: "eni".to_owned(),
                    port: member.key.port,
                    weight: member.weight,
                    description: description.clone(),
                };
                let server = parameter(group, member, &new, member.weight, description);
                calls.add.push(Item {
                    member,
                    server,
                    then,
                });
            }
        }
    }
    let leaving = wanted.drain.iter().map(|member| (*member, Write::Set));
    let leaving = leaving.chain(
        wanted
            .deregister
            .iter()
            .map(|member| (*member, Write::Remove)),
    );
    for (member, write) in leaving {
        match find(member) {
            Some((server, Owner::Other)) => {
                drop(applied.insert(member.key.clone(), Err(foreign(group, member, server))))
            }
            // The address has a new Pod, which stays.
            Some((_, Owner::Own(uid))) if !member.pod.uid.is_empty() && uid != member.pod.uid => {
                applied.insert(member.key.clone(), Ok(Presence::Absent));
            }
            // The group may not list it yet. The next observation tells.
            None if writer.may_be_there(mark, &member.key) => {}
            None => {
                applied.insert(member.key.clone(), Ok(Presence::Absent));
            }
            Some((server, _)) if write == Write::Set && server.weight == 0 => {
                applied.insert(member.key.clone(), Ok(DRAINING));
            }
            Some((old, _)) => {
                let description = old.description.clone();
                let server = parameter(group, member, old, 0, description);
                match write {
                    Write::Remove => calls.remove.push(Item {
                        member,
                        server,
                        then: Presence::Absent,
                    }),
                    _ => calls.set.push(Item {
                        member,
                        server,
                        then: DRAINING,
                    }),
                }
            }
        }
    }
    calls
}

fn parameter(
    group: &Group,
    member: &Member,
    server: &Server,
    weight: u32,
    description: String,
) -> ServerParameter {
    ServerParameter {
        server_id: server.server_id.clone(),
        server_ip: member.key.address.to_string(),
        kind: server.kind.clone(),
        port: match group {
            Group::Default(_) => String::new(),
            Group::Virtual(_) => member.key.port.to_string(),
        },
        weight: weight.to_string(),
        description,
    }
}

fn foreign(group: &Group, member: &Member, server: &Server) -> AdapterError {
    AdapterError::Permanent(format!(
        "somebody else has registered {} in the group {} (description {:?}); the adapter leaves that \
         server alone; remove it",
        member.key.address,
        group.id(),
        crate::failure::cut(&server.description)
    ))
}

/// Sets the interfaces of new servers. Servers without one are not added.
async fn find_interfaces(writer: &Writer, add: &mut Vec<Item<'_>>, applied: &mut Applied) {
    if add.is_empty() {
        return;
    }
    let pods: Vec<_> = add
        .iter()
        .map(|item| (item.member.key.address, item.member.pod.uid.as_str()))
        .collect();
    let mut found = writer.interfaces.find(&writer.client, &pods).await;
    add.retain_mut(|item| {
        let missing = || {
            let text = "no network interface was found".to_owned();
            Err(AdapterError::Transient(text))
        };
        // Two ports of a Pod have the same address.
        match found.entry(item.member.key.address).or_insert_with(missing) {
            Ok(id) => {
                item.server.server_id.clone_from(id);
                true
            }
            Err(error) => {
                applied.insert(item.member.key.clone(), Err(error.clone()));
                false
            }
        }
    });
}

/// Makes the calls for a group.
struct Run<'a> {
    writer: &'a Writer,
    mark: &'a EmployerMark,
    group: &'a Group,
    splits: usize,
    /// Why no more calls are made.
    stopped: Option<AdapterError>,
    applied: &'a mut Applied,
}

impl Run<'_> {
    async fn write(&mut self, write: Write, items: Vec<Item<'_>>) {
        let mut batches = VecDeque::new();
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            batches.push_back(items.by_ref().take(BATCH).collect::<Vec<_>>());
        }
        while let Some(mut batch) = batches.pop_front() {
            if let Some(error) = self.stopped.clone() {
                self.answer(&batch, |_| Err(error.clone()));
                continue;
            }
            if write == Write::Add {
                for item in &batch {
                    let pod = &item.member.pod;
                    self.writer.will_add(self.mark, &item.member.key, pod);
                }
            }
            let servers: Vec<_> = batch.iter().map(|item| item.server.clone()).collect();
            match self.writer.client.write(write, self.group, &servers).await {
                Ok(listed) => self.succeeded(write, &batch, &listed),
                // Nothing is known of these servers; they are left out.
                Err(failure) if failure.is_lost() => self.stopped = Some(failure.into_error()),
                Err(failure) => {
                    self.not_added(write, &batch);
                    if !failure.may_concern_one_server() {
                        self.stopped = Some(failure.clone().into_error());
                    } else if batch.len() > 1 && self.splits > 0 {
                        // One server that is refused must not stop the others.
                        self.splits -= 1;
                        let rest = batch.split_off(batch.len() / 2);
                        batches.push_front(rest);
                        batches.push_front(batch);
                        continue;
                    }
                    self.answer(&batch, |_| Err(refused(&failure)));
                }
            }
        }
    }

    fn succeeded(&mut self, write: Write, batch: &[Item<'_>], listed: &[Server]) {
        for item in batch {
            if write == Write::Remove {
                self.writer.is_not_there(self.mark, &item.member.key);
            }
            // The answer lists the servers of the group, though not their addresses.
            let mut descriptions = listed.iter().map(|server| &server.description);
            let is_missing = write != Write::Remove
                && !listed.is_empty()
                && !descriptions.any(|description| *description == item.server.description);
            let result = match is_missing {
                false => Ok(item.then.clone()),
                true => Err(AdapterError::Transient(format!(
                    "the load balancer accepted a call with {}, but its answer does not list that \
                     server",
                    item.server.server_ip
                ))),
            };
            self.applied.insert(item.member.key.clone(), result);
        }
    }

    fn not_added(&self, write: Write, batch: &[Item<'_>]) {
        if write == Write::Add {
            for item in batch {
                self.writer.is_not_there(self.mark, &item.member.key);
            }
        }
    }

    fn answer(
        &mut self,
        batch: &[Item<'_>],
        result: impl Fn(&Item<'_>) -> Result<Presence, AdapterError>,
    ) {
        for item in batch {
            self.applied.insert(item.member.key.clone(), result(item));
        }
    }
}

/// A server that is there already was not listed a moment ago. The next round reads it.
fn refused(failure: &Failure) -> AdapterError {
    match failure.clone().into_error() {
        AdapterError::Permanent(text) if failure.says_exists() => AdapterError::Transient(text),
        error => error,
    }
}
