//! Moves of the employer to another load balancer.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::balancer::Balancer;
use super::world::World;
use crate::plan::{Mark, Memory, Place, View, mark_in_move, places};
use crate::{Control, Member};

/// A load balancer with members of the employer that another one manages now.
pub struct Former {
    pub balancer: Balancer,
    pub memory: Memory,
}

impl World {
    /// Another leader knows nothing.
    pub fn lead_anew(&mut self) {
        // It does not know either which changes were lost.
        for delayed in &mut self.balancer.delayed {
            delayed.at = self.now;
        }
        self.balancer.make_delayed(&mut self.random, self.now);
        self.memory = Memory::default();
        if let Some(other) = &mut self.other {
            for delayed in &mut other.balancer.delayed {
                delayed.at = self.now;
            }
            other.balancer.make_delayed(&mut self.random, self.now);
            other.memory = Memory::default();
            self.places = BTreeMap::new();
            self.is_new = false;
        }
    }

    /// The employer moves to a load balancer without members, or back to the former one.
    pub fn move_to_another(&mut self) {
        match self.control {
            // Somebody else registers members and removes them.
            Control::Observes => {}
            _ if self.other.is_some() => {
                self.swap();
                self.is_new = false;
                (self.served, self.places) = (false, BTreeMap::new());
            }
            _ => {
                self.is_new = true;
                (self.served, self.places) = (false, BTreeMap::new());
                let mut balancer = Balancer::new(self.random.below(60), self.control);
                balancer.tells_pods = self.balancer.tells_pods; // Pods may be unknown only if both tell
                std::mem::swap(&mut self.balancer, &mut balancer);
                let memory = std::mem::take(&mut self.memory);
                self.other = Some(Former { balancer, memory });
            }
        }
    }

    fn swap(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.balancer, &mut other.balancer);
            std::mem::swap(&mut self.memory, &mut other.memory);
        }
    }

    /// A look at the former load balancer, if there is one. If it retires, all its members go.
    pub fn look_at_former(&mut self, retires: bool, settled: bool) -> Option<Timestamp> {
        self.other.as_ref()?;
        self.swap();
        (self.former, self.retires) = (true, retires);
        self.memory.confirm_settled(false, self.now);
        let mut view = self.view();
        view.registers &= !settled;
        let wake = self.call(&mut view);
        self.memory.end_look();
        let is_clean = retires && self.memory.is_empty();
        self.places = places(&view, &self.memory, self.now);
        (self.former, self.retires) = (false, false);
        self.swap();
        if is_clean {
            let former = self.other.take();
            let left = former.map(|former| former.balancer.entries);
            assert!(left.is_some_and(|left| left.is_empty()), "members are left");
            self.memory.read_again();
            return Some(self.now + SignedDuration::from_secs(1));
        }
        wake
    }

    /// During a move, what both load balancers do with a Pod decides about its mark.
    pub fn check_mark_in_move(&mut self, view: &View, uid: &str, mark: &Mark) {
        let Some(other) = self.other.as_ref() else {
            return;
        };
        let place = self
            .places
            .get(uid)
            .map(|place| place.as_of(view, &self.memory, uid));
        let formers = [place.unwrap_or(Place::Unclear)];
        let mark = mark_in_move(view, &self.memory, uid, mark.clone(), &formers, self.is_new);
        let input = &self.pods[uid];
        let both = [&self.balancer, &other.balancer];
        let mut entries = both.into_iter().flat_map(|all| all.entries.values());
        match mark {
            Mark::Protect => {
                let addresses = &input.pod.addresses;
                let serves =
                    entries.any(|e| e.serves() && addresses.contains(&e.member.key.address));
                assert!(serves, "{uid} is not on traffic");
                self.protected.insert(uid.to_owned());
            }
            Mark::Release => {
                let should_serve = view.should_serve(uid);
                if !should_serve && input.operations.is_empty() {
                    self.protected.remove(uid); // nobody waits for it
                    return;
                }
                let on = entries.find(|entry| {
                    let counts = !should_serve || entry.serves();
                    entry.owner == uid && counts && !input.ended
                });
                assert!(on.is_none(), "{uid} is on traffic: {on:?}");
                self.protected.remove(uid);
            }
            Mark::Keep(reason) => assert!(!reason.is_empty()),
        }
    }

    /// A Pod that should serve does not leave the former load balancer before it serves at the present one, or at another
    /// member of the former one.
    pub fn check_move(&self, member: &Member) {
        let Some(present) = self.other.as_ref().filter(|_| self.former) else {
            return;
        };
        let entry = self.balancer.entries.get(&member.key);
        let Some(entry) = entry.filter(|entry| entry.serves()) else {
            return;
        };
        let address = member.key.address;
        let mut pods = self.pods.iter().filter(|(uid, input)| {
            let should_serve = input.selected && input.pod.on && !self.deleting;
            let is_owner = **uid == entry.owner && !self.uncached.contains(*uid);
            should_serve && is_owner && input.pod.addresses.contains(&address)
        });
        let serves = || {
            let mut entries = present.balancer.entries.values();
            entries.any(|entry| entry.serves() && entry.member.key.address == address)
        };
        let elsewhere = || {
            let mut entries = self.balancer.entries.values();
            entries.any(|entry| {
                let key = &entry.member.key;
                entry.serves() && key.address == address && *key != member.key
            })
        };
        let left = pods.find(|_| !serves() && (self.retires || !elsewhere()));
        assert!(left.is_none(), "{left:?} serves nowhere");
    }
}

/// While the present load balancer is down, the former one has all the traffic. Whoever should not serve leaves it, and
/// nobody else does.
#[test]
fn former_load_balancer_is_kept_as_the_pods_need_while_the_present_one_is_down() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    for _ in 0..3 {
        world.add_pod();
    }
    let uids: Vec<_> = world.pods.keys().cloned().collect();
    for uid in &uids[..2] {
        world.pods.get_mut(uid).unwrap().pod.on = true;
    }
    world.pods.get_mut(&uids[2]).unwrap().pod.on = false;
    world.look();
    world.move_to_another();
    world.balancer.down = true;
    world.pods.get_mut(&uids[0]).unwrap().pod.on = false;
    world.pods.get_mut(&uids[2]).unwrap().pod.on = true;
    for _ in 0..6 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    let former = &world.other.as_ref().unwrap().balancer;
    let left: Vec<_> = former.entries.values().map(|entry| &entry.owner).collect();
    assert_eq!(
        left,
        [&uids[1], &uids[2]],
        "a Pod that comes back serves there"
    );
    world.balancer.down = false;
    for _ in 0..6 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    assert!(world.other.is_none());
    let serving: Vec<_> = world.balancer.entries.values().map(|e| &e.owner).collect();
    assert_eq!(serving, [&uids[1], &uids[2]]);
}

/// A Pod that is off while the move fails loses the protection, by which it would count as available when it comes back. It
/// gets it again when it serves at the former load balancer.
#[test]
fn pod_that_comes_back_in_a_move_is_protected_when_it_serves() {
    let (mut world, uid) = super::cases::world_of_one(Control::Drains);
    world.look();
    assert!(world.protected.contains(&uid));
    world.move_to_another();
    world.balancer.down = true;
    world.pods.get_mut(&uid).unwrap().pod.on = false;
    for _ in 0..6 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    let former = |world: &World| world.other.as_ref().unwrap().balancer.entries.len();
    assert_eq!((former(&world), world.protected.contains(&uid)), (0, false));
    world.pods.get_mut(&uid).unwrap().pod.on = true;
    for _ in 0..3 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    assert_eq!((former(&world), world.protected.contains(&uid)), (1, true));
}

/// A Pod that was released is on traffic and off again between two looks. What was known of it before proves nothing.
#[test]
fn pod_that_was_on_between_two_looks_is_drained_again() {
    let (mut world, uid) = super::cases::world_of_one(Control::Observes);
    world.pass();
    world.look();
    let turn = |world: &mut World, on: bool| {
        world.pods.get_mut(&uid).unwrap().pod.on = on;
        match on {
            true => world.protected.remove(&uid),
            false => world.protected.insert(uid.clone()), // by the write that begins the operation
        };
        world.pass();
        world.now += SignedDuration::from_secs(3);
    };
    turn(&mut world, false);
    for _ in 0..4 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    assert!(!world.protected.contains(&uid));
    let view = world.view();
    let place = places(&view, &world.memory, world.now)[&uid].as_of(&view, &world.memory, &uid);
    assert_eq!(place, Place::Unclear);
    turn(&mut world, true);
    turn(&mut world, false);
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// A former load balancer at which nobody is registered any more. Pods that have left the selection do not wait there for
/// others to serve.
#[test]
fn pod_that_left_the_selection_leaves_a_former_load_balancer() {
    let (mut world, blue) = super::cases::world_of_one(Control::Drains);
    world.look();
    world.move_to_another();
    world.balancer.faults = false;
    world.other.as_mut().unwrap().balancer.down = true;
    for _ in 0..2 {
        world.now += SignedDuration::from_secs(2);
        world.look();
    }
    assert!(world.served && world.other.is_some());
    for _ in 0..2 {
        world.add_pod();
    }
    let new: Vec<_> = world
        .pods
        .keys()
        .filter(|uid| **uid != blue)
        .cloned()
        .collect();
    for uid in &new {
        world.pods.get_mut(uid).unwrap().pod.on = true;
    }
    // One can't be a member, so the move does not end.
    world.pods.get_mut(&new[1]).unwrap().pod.addresses.clear();
    world.pods.get_mut(&blue).unwrap().selected = false;
    world.other.as_mut().unwrap().balancer.down = false;
    for _ in 0..20 {
        world.now += SignedDuration::from_secs(11);
        world.look();
    }
    let former = world
        .other
        .as_ref()
        .map(|other| other.balancer.entries.len());
    assert_eq!(former, Some(0));
}

/// The present load balancer serves all, and the former one has lost its first members. Another leader does not register
/// these again, only because it has not read twice.
#[test]
fn another_leader_registers_nobody_again_at_the_former_load_balancer() {
    let mut world = World::new(1, Control::Drains);
    world.balancer.faults = false;
    for _ in 0..3 {
        world.add_pod();
    }
    for input in world.pods.values_mut() {
        input.pod.on = true;
    }
    world.look();
    world.move_to_another();
    world.balancer.faults = false;
    let serving = |world: &World| {
        let former = world
            .other
            .as_ref()
            .map(|other| other.balancer.entries.values());
        former.map_or(0, |entries| entries.filter(|entry| entry.serves()).count())
    };
    while serving(&world) > 0 {
        world.now += SignedDuration::from_secs(2);
        world.look();
    }
    assert!(world.other.is_some());
    world.lead_anew();
    world.served = false;
    world.now += SignedDuration::from_secs(2);
    world.look();
    assert_eq!(serving(&world), 0);
}

/// The present load balancer of a move still serves a Pod that is not selected any more, because its successors do not
/// serve yet. Without both marks, the next operation would not wait: the employer neither selects it nor is expected.
#[test]
fn pod_that_left_the_selection_and_serves_keeps_its_marks_in_a_move() {
    let (mut world, uid) = super::cases::world_of_one(Control::Drains);
    world.look();
    assert!(world.protected.contains(&uid));
    world.pods.get_mut(&uid).unwrap().selected = false;
    world.add_pod();
    let next = world
        .pods
        .keys()
        .find(|other| **other != uid)
        .unwrap()
        .clone();
    world.pods.get_mut(&next).unwrap().pod.on = true;
    world.balancer.refuses = [next].into();
    world.now += SignedDuration::from_secs(2);
    world.look();
    assert!(
        world
            .balancer
            .entries
            .values()
            .any(|entry| entry.owner == uid && entry.serves())
    );
    let view = world.view();
    let mark = crate::plan::marks(&view, &world.memory, world.now)[&uid].clone();
    let formers = [Place::Off];
    let mark = mark_in_move(&view, &world.memory, &uid, mark, &formers, false);
    assert!(matches!(mark, Mark::Keep(_)), "{mark:?}");
}
