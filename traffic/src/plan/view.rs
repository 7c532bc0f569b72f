//! What should be: the wanted members, and to whom a member belongs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::{Adapter, AdapterError, Employer, Member, MemberKey, Pod, PodId, Settings};

/// A Pod of an employer, and what the cluster knows of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInput {
    /// The Pod.
    pub pod: Pod,
    /// Whether the employer selects the Pod. A Pod that has left the selection is still listed while it has a mark of
    /// the employer, or a registered member.
    pub selected: bool,
    /// Whether the employer protects the Pod, so that somebody may wait until it is off traffic.
    pub protected: bool,
    /// Whether the containers of the Pod have ended for good, so that no request can go on.
    pub ended: bool,
    /// The operations that keep the Pod off traffic, each with the time of its begin, and its deletion. By them a Pod that was
    /// on between two looks is told from one that was off all the time. If there are none, nobody waits until the Pod is off.
    pub operations: BTreeSet<String>,
    /// Since when the Pod is Ready or not, as it says; `None` if it does not. By it a Pod that has turned twice between two
    /// looks is told from one that has not.
    pub ready_since: Option<String>,
}

impl PodInput {
    /// Whether the Pod may have been on traffic since these operations kept it off: others do so now.
    pub(super) fn may_have_been_on(&self, before: &BTreeSet<String>) -> bool {
        let now = &self.operations;
        !before.is_empty() && !now.is_empty() && before.is_disjoint(now)
    }

    fn should_serve(&self, deleting: bool) -> bool {
        self.selected && self.pod.on && !deleting
    }
}

/// What should be.
#[derive(Clone, Debug)]
pub struct View {
    /// How the adapter wants to be driven.
    pub settings: Settings,
    /// How long a member that gets no new requests stays protected.
    pub drain_time: Duration,
    /// Whether the employer is being deleted.
    pub deleting: bool,
    /// The Pods, by UID.
    pub pods: BTreeMap<String, PodInput>,
    /// The members that should serve.
    pub wanted: BTreeMap<MemberKey, Member>,
    /// The members that each Pod has while it serves, by its UID; or why it can't have any.
    pub planned: BTreeMap<String, Result<Vec<MemberKey>, AdapterError>>,
    /// A Pod that plans this member: its UID.
    planners: BTreeMap<MemberKey, String>,
    /// A Pod with this address: its UID.
    residents: BTreeMap<IpAddr, String>,
    /// Pods whose member is already taken by another Pod: UID, and the name of the other Pod.
    pub shared: BTreeMap<String, String>,
    /// Pods of registered members that are gone for certain: their UIDs.
    pub gone: BTreeSet<String>,
    /// Whether members are registered. If not, those that are registered are still kept, drained and removed as the Pods
    /// need.
    pub registers: bool,
    /// Why the traffic of the employer can't be managed. Then nothing changes.
    pub refused: Option<AdapterError>,
}

impl View {
    /// Computes what should be.
    pub fn new(
        adapter: &dyn Adapter,
        employer: &Employer,
        drain_time: Option<Duration>,
        pods: Vec<PodInput>,
    ) -> View {
        let settings = adapter.settings();
        let refused = match employer.deleting {
            true => None, // what is registered must go in any case
            false => adapter.check(employer).err(),
        };
        let mut view = View {
            drain_time: drain_time.unwrap_or(settings.drain_time),
            settings,
            deleting: employer.deleting,
            pods: BTreeMap::new(),
            wanted: BTreeMap::new(),
            planned: BTreeMap::new(),
            planners: BTreeMap::new(),
            residents: BTreeMap::new(),
            shared: BTreeMap::new(),
            gone: BTreeSet::new(),
            registers: true,
            refused,
        };
        for input in pods {
            view.add_pod(adapter, employer, input);
        }
        view
    }

    fn add_pod(&mut self, adapter: &dyn Adapter, employer: &Employer, input: PodInput) {
        let PodId { uid, name } = input.pod.id.clone();
        let members = adapter.members(employer, &input.pod);
        let should_serve = input.should_serve(employer.deleting);
        let keys = members.as_ref().map(|members| {
            let keys = members.iter().map(|member| member.key.clone());
            keys.collect::<Vec<_>>()
        });
        for key in keys.iter().flatten() {
            let planner = self.planners.entry(key.clone());
            let planner = planner.or_insert_with(|| uid.clone());
            // An address can be used again while the Pod that had it is still stored.
            if !input.ended {
                planner.clone_from(&uid);
            }
        }
        for address in &input.pod.addresses {
            let resident = self.residents.entry(*address);
            let resident = resident.or_insert_with(|| uid.clone());
            if !input.ended {
                resident.clone_from(&uid);
            }
        }
        self.planned.insert(uid.clone(), keys.map_err(Clone::clone));
        if let (true, Ok(members)) = (should_serve, members) {
            for member in members {
                let taken = self.wanted.get(&member.key);
                if let Some(other) = taken.filter(|other| other.pod.uid != uid) {
                    self.shared.insert(uid.clone(), other.pod.name.clone());
                    continue;
                }
                let pod = PodId {
                    uid: uid.clone(),
                    name: name.clone(),
                };
                self.wanted
                    .insert(member.key.clone(), Member { pod, ..member });
            }
        }
        self.pods.insert(uid, input);
    }

    /// Whether a Pod should serve. The memory says whether it does.
    pub fn should_serve(&self, uid: &str) -> bool {
        let input = self.pods.get(uid);
        input.is_some_and(|input| input.should_serve(self.deleting))
    }

    /// Why a Pod that should serve has no member, if it has none.
    pub fn obstacle(&self, uid: &str) -> Option<String> {
        match (self.planned.get(uid), self.shared.get(uid)) {
            (Some(Err(error)), _) => Some(error.to_string()),
            (None, _) => Some("it has no address or no port yet".to_owned()),
            (Some(Ok(keys)), _) if keys.is_empty() => {
                Some("it has no address or no port yet".to_owned())
            }
            (_, Some(other)) => Some(format!("its address and port are those of Pod {other}")),
            (Some(Ok(_)), None) => None,
        }
    }

    /// Whether somebody may wait until a Pod is off traffic.
    pub fn is_protected(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|input| input.protected)
    }

    /// The Pods that should not serve, and until whose traffic is off somebody may wait: their UIDs.
    pub fn off_pods(&self) -> impl Iterator<Item = &String> {
        let uids = self.pods.keys();
        uids.filter(|uid| self.is_protected(uid) && !self.should_serve(uid))
    }

    /// The Pod behind a registered member: the one that the load balancer names, or else one that plans it, or else one
    /// that has its address, because the port of an employer can change.
    pub fn pod_behind(&self, member: &Member) -> Option<&PodInput> {
        let planner = || self.living_planner(&member.key);
        let resident = || self.residents.get(&member.key.address);
        match member.pod.uid.as_str() {
            "" => self.pods.get(planner().or_else(resident)?),
            uid => self.pods.get(uid),
        }
    }

    /// The Pod that plans a member, unless it has ended: its address may be that of another Pod now.
    fn living_planner(&self, key: &MemberKey) -> Option<&String> {
        let has_ended = |uid: &&String| self.pods.get(*uid).is_some_and(|input| input.ended);
        self.planners.get(key).filter(|uid| !has_ended(uid))
    }

    /// Whether a Pod other than this one plans a member.
    pub fn is_of_another(&self, key: &MemberKey, uid: &str) -> bool {
        let planner = self.living_planner(key);
        planner.is_some_and(|planner| planner != uid)
    }

    /// All planned members, each with its Pod.
    pub fn planned_members(&self) -> impl Iterator<Item = (&MemberKey, &PodInput)> {
        let planners = self.planners.iter();
        planners.filter_map(|(key, uid)| Some((key, self.pods.get(uid)?)))
    }

    /// The members that a Pod plans.
    pub fn planned_keys(&self, uid: &str) -> BTreeSet<MemberKey> {
        let keys = self.planned.get(uid).and_then(|keys| keys.as_ref().ok());
        keys.into_iter().flatten().cloned().collect()
    }
}
