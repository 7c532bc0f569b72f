#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::world::{NAME, World};
use crate::api::resourcecontext::data;
use crate::domain::decoration::MemberKey;
use crate::domain::decoration::choice::choose_members;
use crate::domain::decoration::labels;
use crate::domain::decoration::members::{Member, selected_members};

/// The state of an instance: what its Pod carries and its pool records (0 nothing, 1 an old revision, 2 the updated one),
/// and a kind: 0 to 4 an available Pod, 5 a Pod that is down, 6 vacant, 7 new, 8 leaving.
type Draw = (u8, u8, u8);

fn revision(number: u8) -> Option<&'static str> {
    match number {
        1 => Some("log-1"),
        2 => Some("log-2"),
        _ => None,
    }
}

/// Two sets with these instances. The first two instances of `api` are a pair if `is_paired`.
fn members(draws: &[Draw], is_paired: bool) -> Vec<Member> {
    let mut world = World::new().with_set("api", 0).with_set("web", 0);
    for (index, (carried, recorded, kind)) in draws.iter().enumerate() {
        let set = if index % 2 == 0 { "api" } else { "web" };
        let id = i64::try_from(index / 2).unwrap();
        world.add_entry(set, id, &[]);
        let entry = world.set(set).entries.get_mut(&id).unwrap();
        if let Some(revision) = revision(*recorded) {
            let revisions = [(NAME.to_owned(), revision.to_owned())].into();
            entry.insert(data::DECORATIONS.to_owned(), labels::to_json(&revisions));
        }
        match kind {
            7 => drop(entry.insert(data::JUST_CREATE.to_owned(), "true".to_owned())),
            8 => drop(entry.insert(data::SCALE_IN.to_owned(), "true".to_owned())),
            _ => {}
        }
        if ![6, 7].contains(kind) {
            world.add_pod(set, id, revision(*carried));
            world.set(set).pods.get_mut(&id).unwrap().is_available = *kind != 5;
        }
    }
    let api = world.set("api");
    if is_paired && api.entries.len() > 1 {
        let link = |key: &str, id: &str| (key.to_owned(), id.to_owned());
        api.entries
            .get_mut(&0)
            .unwrap()
            .extend([link(data::REPLACE_NEW, "1")]);
        api.entries
            .get_mut(&1)
            .unwrap()
            .extend([link(data::REPLACE_ORIGIN, "0")]);
    }
    let observed = world.observe();
    let selector = observed.object.spec.selector.clone().unwrap();
    let selector = crate::api::selector::Selector::compile(&selector).unwrap();
    selected_members(&observed, &[], &selector)
}

fn choose(members: &[Member], partition: usize) -> BTreeSet<MemberKey> {
    choose_members(members, "log-2", partition, &BTreeSet::new())
}

fn keys_of(members: &[Member], test: impl Fn(&Member) -> bool) -> BTreeSet<MemberKey> {
    let matching = members.iter().filter(|member| test(member));
    matching.map(|member| member.key.clone()).collect()
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    proptest::collection::vec((0..3u8, 0..3u8, 0..9u8), 0..12)
}

proptest! {
    #[test]
    fn partition_reaches_the_exact_number(draws in draws(), is_paired: bool, p in 0..14usize) {
        let members = members(&draws, is_paired);
        let staying = keys_of(&members, |m| !m.is_leaving());
        let done = keys_of(&members, |m| m.has_revision("log-2"));
        let chosen = choose(&members, p);
        prop_assert!(chosen.is_superset(&done), "nobody is taken back");
        let count = chosen.intersection(&staying).count();
        let done = done.intersection(&staying).count();
        prop_assert_eq!(count, staying.len().saturating_sub(p).max(done));
    }

    #[test]
    fn lower_partition_only_adds_members(draws in draws(), is_paired: bool, p in 0..14usize) {
        let members = members(&draws, is_paired);
        prop_assert!(choose(&members, p).is_superset(&choose(&members, p + 1)));
    }

    #[test]
    fn order_of_input_does_not_matter(draws in draws(), is_paired: bool, p in 0..14usize) {
        let mut members = members(&draws, is_paired);
        let chosen = choose(&members, p);
        members.reverse();
        prop_assert_eq!(chosen, choose(&members, p));
    }

    #[test]
    fn progress_of_chosen_members_changes_nothing(
        draws in draws(), is_paired: bool, p in 0..14usize, progress: u16,
    ) {
        let mut members = members(&draws, is_paired);
        let chosen = choose(&members, p);
        for (index, member) in members.iter_mut().enumerate() {
            if progress >> index & 1 == 0 || !chosen.contains(&member.key) {
                continue;
            }
            for instance in &mut member.instances {
                // Some are only recorded, others are updated and not available yet.
                instance.recorded = Some("log-2".to_owned());
                if progress >> (index + 4) & 1 == 0 {
                    instance.held = Some("log-2".to_owned());
                    instance.is_new = false;
                }
            }
        }
        prop_assert_eq!(&choose_members(&members, "log-2", p, &chosen), &chosen);
        prop_assert_eq!(choose_members(&members, "log-2", p + 1, &chosen).is_subset(&chosen), true);
    }
}

#[test]
fn cheap_updates_come_first_and_last_choice_stays() {
    let key = |set: &str, id| (set.to_owned(), id);
    // api-0 serves without decoration, web-0 serves with an old one, api-1 is down, web-1 is vacant, api-2 is recorded.
    let draws = [(0, 0, 0), (1, 0, 0), (0, 0, 5), (0, 0, 6), (0, 2, 0)];
    let members = members(&draws, false);
    let order = ["api-2", "web-0", "web-1", "api-1", "api-0"];
    let mut before = BTreeSet::new();
    for (index, name) in order.iter().enumerate() {
        let chosen = choose(&members, 4 - index);
        let (set, id) = name.split_once('-').unwrap();
        let added: Vec<_> = chosen.difference(&before).cloned().collect();
        assert_eq!(added, [key(set, id.parse().unwrap())], "{name}");
        before = chosen;
    }
    let last = [key("api", 0)].into();
    let want = [key("api", 0), key("api", 2)].into();
    assert_eq!(choose_members(&members, "log-2", 3, &last), want);
}
