//! Between the JSON of the calls and the types of the framework.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use traffic::{
    AdapterError, Applied, Changes, Employer, Member, MemberKey, Observation, Pod, PodId, Presence,
    Registration,
};

use crate::Config;
use crate::members::ports;
use crate::wire::{
    ApplyAnswer, ApplyRequest, EmployerInfo, Failure, MemberInfo, MemberState, ObserveAnswer,
    ObserveRequest, PodInfo, PortInfo, PresenceInfo,
};

/// Labels and annotations with this prefix are always sent.
const OWN_PREFIX: &str = "resource-consist.kusionstack.io/";

/// The request that asks for all registered members.
pub(crate) fn observe_request(
    config: &Config,
    employer: &Employer,
    pods: &[Pod],
) -> ObserveRequest {
    let pods = pods.iter().map(|pod| PodInfo {
        uid: pod.id.uid.clone(),
        name: pod.id.name.clone(),
        addresses: pod.addresses.clone(),
        node: pod.node.clone(),
        labels: permitted(&pod.labels, &config.forward_labels),
        on: pod.on,
    });
    ObserveRequest {
        employer: employer_info(config, employer),
        pods: pods.collect(),
    }
}

/// The request that makes changes.
pub(crate) fn apply_request(
    config: &Config,
    employer: &Employer,
    changes: &Changes,
) -> ApplyRequest {
    let infos = |members: &[Member]| members.iter().map(member_info).collect();
    ApplyRequest {
        employer: employer_info(config, employer),
        register: infos(&changes.register),
        drain: infos(&changes.drain),
        deregister: infos(&changes.deregister),
    }
}

fn employer_info(config: &Config, employer: &Employer) -> EmployerInfo {
    // A Service that is refused may still have members that must go.
    let ports = ports(config, employer).unwrap_or_default();
    let ports = ports.iter().map(|port| PortInfo {
        group: port.label(),
        port: port.number,
        target_port: port.target(),
        protocol: port.protocol.clone(),
    });
    EmployerInfo {
        kind: employer.kind.clone(),
        namespace: employer.namespace.clone(),
        name: employer.name.clone(),
        uid: employer.uid.clone(),
        labels: permitted(&employer.labels, &config.forward_labels),
        annotations: permitted(&employer.annotations, &config.forward_annotations),
        ports: ports.collect(),
        deleting: employer.deleting,
    }
}

/// Other entries may contain secrets of tenants, so they are not sent.
fn permitted(all: &BTreeMap<String, String>, listed: &[String]) -> BTreeMap<String, String> {
    let mut found = all.clone();
    found.retain(|key, _| key.starts_with(OWN_PREFIX) || listed.contains(key));
    found
}

fn member_info(member: &Member) -> MemberInfo {
    MemberInfo {
        group: member.key.group.clone(),
        address: member.key.address,
        port: member.key.port,
        weight: member.weight,
        pod_uid: member.pod.uid.clone(),
        pod_name: member.pod.name.clone(),
    }
}

/// What the answer to `observe` says.
///
/// # Errors
/// Transient if it lists a member twice: it is unclear which entry holds.
pub(crate) fn observation(answer: ObserveAnswer) -> Result<Observation, AdapterError> {
    let mut seen = BTreeSet::new();
    let mut registrations = Vec::new();
    for state in answer.members {
        let registration = registration(state);
        let key = &registration.member.key;
        if !seen.insert(key.clone()) {
            let text = format!("the answer can't be read: it lists the member {key} twice");
            return Err(AdapterError::Transient(text));
        }
        registrations.push(registration);
    }
    let unreadable = answer.unreadable_groups.into_iter();
    Ok(Observation {
        registrations,
        unreadable_groups: unreadable.map(|g| (g.group, failure(g.error))).collect(),
    })
}

fn registration(state: MemberState) -> Registration {
    let member = Member {
        key: MemberKey {
            group: state.group,
            address: state.address,
            port: state.port,
        },
        pod: PodId {
            uid: state.pod_uid,
            name: state.pod_name,
        },
        weight: state.weight,
    };
    Registration {
        member,
        presence: presence(state.presence, state.drain_until),
        connections: state.connections,
    }
}

/// A change, and the presences that it can lead to.
type Change = (&'static str, &'static [PresenceInfo]);

const REGISTER: Change = (
    "register",
    &[
        PresenceInfo::Serving,
        PresenceInfo::Pending,
        PresenceInfo::Unknown,
    ],
);
/// It may lead to no member, because it is no error if the member is not registered.
const DRAIN: Change = (
    "drain",
    &[
        PresenceInfo::Draining,
        PresenceInfo::Absent,
        PresenceInfo::Unknown,
    ],
);
const DEREGISTER: Change = ("deregister", DRAIN.1);

/// What the answer to `apply` says of the changes. Results of other members, and results with neither a presence nor an
/// error, are left out, and so is a member with two results: it is unclear which one holds.
pub(crate) fn applied(changes: &Changes, answer: ApplyAnswer) -> Applied {
    let mut asked: BTreeMap<MemberKey, Change> = BTreeMap::new();
    for (members, change) in [
        (&changes.register, REGISTER),
        (&changes.drain, DRAIN),
        (&changes.deregister, DEREGISTER),
    ] {
        asked.extend(members.iter().map(|member| (member.key.clone(), change)));
    }
    let mut results: BTreeMap<MemberKey, Vec<_>> = BTreeMap::new();
    for result in answer.results {
        let key = MemberKey {
            group: result.group,
            address: result.address,
            port: result.port,
        };
        let Some(change) = asked.get(&key) else {
            continue;
        };
        let outcome = match (result.error, result.presence) {
            (Some(error), _) => Err(failure(error)),
            (None, Some(found)) => outcome(*change, found, result.drain_until),
            (None, None) => continue,
        };
        results.entry(key).or_default().push(outcome);
    }
    let only = |(key, mut outcomes): (MemberKey, Vec<_>)| match (outcomes.pop(), outcomes.pop()) {
        (Some(outcome), None) => Some((key, outcome)),
        _ => None,
    };
    results.into_iter().filter_map(only).collect()
}

/// A presence that contradicts the change is a failure: the change would be repeated at once, and without end.
fn outcome(
    (name, expected): Change,
    found: PresenceInfo,
    until: Option<Timestamp>,
) -> Result<Presence, AdapterError> {
    match expected.contains(&found) {
        true => Ok(presence(found, until)),
        false => Err(AdapterError::Transient(format!(
            "the endpoint answered to `{name}` that the member is {found:?}"
        ))),
    }
}

fn presence(found: PresenceInfo, until: Option<Timestamp>) -> Presence {
    match found {
        PresenceInfo::Serving => Presence::Serving,
        PresenceInfo::Pending => Presence::Pending,
        PresenceInfo::Draining => Presence::Draining { until },
        PresenceInfo::Absent => Presence::Absent,
        PresenceInfo::Unknown => Presence::Unknown,
    }
}

fn failure(failure: Failure) -> AdapterError {
    let text = match failure.message {
        text if text.is_empty() => "the endpoint gave no reason".to_owned(),
        text => text,
    };
    match failure.retryable {
        true => AdapterError::Transient(text),
        false => AdapterError::Permanent(text),
    }
}
