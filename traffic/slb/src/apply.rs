//! The mode `write`: makes the changes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use traffic::{AdapterError, Applied, Changes, Employer, Presence};

use crate::client::{Group, Write};
use crate::decide::{Item, Wanted, decide};
use crate::failure::Failure;
use crate::mark::EmployerMark;
use crate::wire::Server;
use crate::write::{Writer, no_group};

/// Most servers in a call.
const BATCH: usize = 20;
/// Most calls that are made only to find out which servers of refused calls can't be changed.
const SPLITS: usize = 16;

/// Changes members. The error of a call that was sent but not answered says why nothing is known of its members.
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
    for (group, mut wanted) in groups {
        match writer.owner(service, &group).await {
            Ok(owner) => {
                if let Err(error) = writer.may_fill(service, Some(&owner), &group) {
                    let refused = std::mem::take(&mut wanted.register);
                    let results = refused.iter().map(|member| member.key.clone());
                    applied.extend(results.map(|key| (key, Err(error.clone()))));
                }
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
    let servers = match writer.groups.servers(group, Duration::ZERO).await {
        Ok(servers) => servers,
        Err(error) => return fail(wanted, &error, applied),
    };
    let Some(servers) = &*servers else {
        fail(wanted, &no_group(group), applied);
        for member in wanted.drain.iter().chain(&wanted.deregister) {
            applied.insert(member.key.clone(), Ok(Presence::Absent));
        }
        return;
    };
    let mark = writer.mark(service);
    let (mut calls, decided) = decide(&writer.added, &mark, group, servers, wanted);
    applied.extend(decided);
    let mut run = Run {
        writer,
        mark: &mark,
        group,
        splits: SPLITS,
        stopped: None,
        applied,
    };
    let replaced: Vec<_> = calls.replace.iter().map(|item| item.member).collect();
    run.write(Write::Remove, calls.replace).await;
    calls.add.retain(|item| {
        let is_removed = || run.applied.get(&item.member.key) == Some(&Ok(Presence::Absent));
        !replaced.contains(&item.member) || is_removed()
    });
    find_interfaces(writer, &mut calls.add, run.applied).await;
    // New servers come before old ones go.
    run.write(Write::Add, calls.add).await;
    run.write(Write::Set, calls.set).await;
    run.write(Write::Remove, calls.remove).await;
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
                    self.writer.added.will_add(self.mark, item.member);
                }
            }
            let servers: Vec<_> = batch.iter().map(|item| item.server.clone()).collect();
            // Before the call, since this future may be dropped during the call.
            self.writer.groups.changed(self.group);
            match self.writer.client.write(write, self.group, &servers).await {
                Ok(listed) => self.succeeded(write, &batch, &listed),
                Err(failure) if failure.is_lost() => {
                    let error = failure.into_error();
                    self.answer(&batch, |_| Err(error.clone()));
                    self.stopped = Some(error);
                }
                Err(failure) => {
                    self.not_added(write, &batch, &failure);
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
                self.writer.added.is_not_there(self.mark, &item.member.key);
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
            if write == Write::Add && result.is_ok() {
                self.writer.added.was_added(self.mark, item.member);
            }
            self.applied.insert(item.member.key.clone(), result);
        }
    }

    /// A refusal that is not final may come after the effect.
    fn not_added(&self, write: Write, batch: &[Item<'_>], failure: &Failure) {
        let error = failure.clone().into_error();
        if write == Write::Add && !matches!(error, AdapterError::Transient(_)) {
            for item in batch {
                self.writer.added.is_not_there(self.mark, &item.member.key);
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
