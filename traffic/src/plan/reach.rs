//! Which registered members may send requests to a Pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::known::Known;
use super::view::View;
use crate::MemberKey;

/// Registered members by the Pod that they name, or else by address.
pub(super) struct Reach<'a> {
    by_uid: BTreeMap<&'a str, Vec<&'a Known>>,
    unnamed: BTreeMap<IpAddr, Vec<&'a Known>>,
}

impl<'a> Reach<'a> {
    pub fn new(members: impl Iterator<Item = &'a Known>) -> Reach<'a> {
        let mut reach = Reach {
            by_uid: BTreeMap::new(),
            unnamed: BTreeMap::new(),
        };
        for known in members {
            let member = &known.member;
            let list = match member.pod.uid.as_str() {
                "" => reach.unnamed.entry(member.key.address).or_default(),
                uid => reach.by_uid.entry(uid).or_default(),
            };
            list.push(known);
            for uid in known.late.on_for().filter(|uid| *uid != member.pod.uid) {
                reach.by_uid.entry(uid).or_default().push(known);
            }
        }
        reach
    }

    /// The members that may send requests to a Pod, whether the Pod plans them or not: those that are registered for it,
    /// and those that name no Pod and have an address of it, unless another Pod plans them.
    fn members(&self, view: &'a View, uid: &'a str) -> impl Iterator<Item = &'a Known> {
        let named = self.by_uid.get(uid).into_iter().flatten().copied();
        let input = view.pods.get(uid);
        let addresses = input.into_iter().flat_map(|input| &input.pod.addresses);
        let unnamed = addresses.filter_map(|address| self.unnamed.get(address));
        let unnamed = unnamed.flatten().copied();
        named.chain(unnamed.filter(|known| !view.is_of_another(&known.member.key, uid)))
    }

    /// The members that may send requests to a Pod, and those that it plans.
    pub fn keys(&self, view: &View, uid: &str) -> BTreeSet<MemberKey> {
        let reaching = self.members(view, uid);
        let mut keys = view.planned_keys(uid);
        keys.extend(reaching.map(|known| known.member.key.clone()));
        keys
    }
}
