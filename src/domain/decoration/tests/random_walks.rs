//! Random walks over two sets whose members progress in any order. Every step keeps the invariants, and each world comes
//! to rest as the spec asks.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::world::{SimSet, World};
use crate::api::resourcecontext::data;
use crate::domain::decoration::plan::{DecorationPlan, plan_decoration};
use crate::domain::decoration::{MemberKey, Reach};

/// Number of walks.
const WALKS: u64 = 150;
/// Steps of a walk.
const STEPS: usize = 60;

struct Walk {
    rng: StdRng,
    world: World,
    version: u32,
    partition: usize,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new();
        // Half of the PodDecorations are older than their sets.
        if rng.random_bool(0.5) {
            world.settle();
        }
        let world = world
            .with_set("api", rng.random_range(0..4))
            .with_set("web", rng.random_range(0..5));
        Walk {
            rng,
            world,
            version: 1,
            partition: 0,
        }
    }

    fn draw_instance(&mut self) -> Option<(String, i64)> {
        let instances = self.world.instances();
        let index = self.rng.random_range(0..instances.len().max(1));
        instances.get(index).cloned()
    }

    fn step(&mut self) {
        match self.rng.random_range(0..20) {
            0 => {
                self.version = self.rng.random_range(1..6); // a former version is a rollback
                self.world.change_template(&self.version.to_string());
            }
            1..4 => {
                self.partition = self.rng.random_range(0..7);
                self.world.set_partition(self.partition);
            }
            4..6 => self.world.last = None, // another leader
            6 => {
                let instance = self.draw_instance();
                if let Some((set, id)) = instance {
                    self.lose_pod(&set, id);
                }
            }
            7 => self.scale_out(),
            8 => {
                let instance = self.draw_instance();
                if let Some((set, id)) = instance {
                    self.scale_in(&set, id);
                }
            }
            9 => self.open_pair(),
            10 => self.world.refused.revision = self.rng.random_bool(0.3).then(|| "no".into()),
            11..14 => {
                // The pool is written before the Pod, and a crash may come between.
                if let Some((set, id)) = self.draw_instance() {
                    self.world.record(&set, id);
                }
            }
            _ => {
                if let Some((set, id)) = self.draw_instance() {
                    self.world.update_pod(&set, id);
                }
            }
        }
    }

    fn lose_pod(&mut self, set: &str, id: i64) {
        let pods = &mut self.world.set(set).pods;
        match pods.get_mut(&id) {
            Some(pod) if !pod.is_terminating => pod.is_terminating = true,
            _ => drop(pods.remove(&id)),
        }
    }

    fn scale_out(&mut self) {
        let set = if self.rng.random_bool(0.5) {
            "api"
        } else {
            "web"
        };
        let entries = &self.world.set(set).entries;
        let id = (0..).find(|id| !entries.contains_key(id)).unwrap();
        if id < 8 {
            self.world
                .add_entry(set, id, &[(data::JUST_CREATE, "true")]);
        }
    }

    fn scale_in(&mut self, set: &str, id: i64) {
        let set = self.world.set(set);
        let entry = set.entries.get_mut(&id).unwrap();
        let is_marked = entry
            .insert(data::SCALE_IN.to_owned(), "true".to_owned())
            .is_some();
        if is_marked {
            set.entries.remove(&id);
            set.pods.remove(&id);
        }
    }

    /// Opens a pair, or ends it: the new Pod takes the place of its origin.
    fn open_pair(&mut self) {
        let Some((name, id)) = self.draw_instance() else {
            return;
        };
        let set = self.world.set(&name);
        let entry = set.entries.get(&id).unwrap();
        if entry.contains_key(data::SCALE_IN) || data::origin_of(entry).is_some() {
            return;
        }
        match data::new_of(entry) {
            Some(new) if set.pods.contains_key(&new) => {
                set.entries.remove(&id);
                set.pods.remove(&id);
                set.entries
                    .get_mut(&new)
                    .unwrap()
                    .remove(data::REPLACE_ORIGIN);
            }
            Some(_) => {}
            None if set.pods.contains_key(&id) => {
                let new = (10..).find(|id| !set.entries.contains_key(id)).unwrap();
                let entry = set.entries.get_mut(&id).unwrap();
                entry.insert(data::REPLACE_NEW.to_owned(), new.to_string());
                let marks = [
                    (data::JUST_CREATE, "true"),
                    (data::REPLACE_ORIGIN, &id.to_string()),
                ];
                self.world.add_entry(&name, new, &marks);
            }
            None => {}
        }
    }

    /// Plans, and checks what must hold in every state.
    fn reconcile(&mut self) -> DecorationPlan {
        let plan = self.world.reconcile();
        if plan.publish.hold.is_none() {
            let again = plan_decoration(&self.world.observe());
            // Once the updated revision is the current one, the rollout reaches all members.
            if again.publish.current == plan.publish.current {
                assert_eq!(again.publish.reach, plan.publish.reach, "a choice stays");
            }
        }
        self.check_kept(&plan);
        for deleted in &plan.delete_revisions {
            let mut carried = self.world.carried().into_iter();
            assert!(!carried.any(|(_, _, on_pod)| on_pod.as_ref() == Some(&deleted.name)));
            let mut recorded = self.world.instances().into_iter();
            assert!(!recorded.any(|(set, id)| {
                let recorded = self.world.set(&set).recorded(id);
                recorded.as_ref() == Some(&deleted.name)
            }));
        }
        plan
    }

    /// No Pod is taken back from the updated revision, and the choice has the exact size.
    fn check_kept(&mut self, plan: &DecorationPlan) {
        let publish = &plan.publish;
        let Some(updated) = publish.updated.clone() else {
            return;
        };
        for (set, id, on_pod) in self.world.carried() {
            let wanted = self.world.wanted(&set, id);
            // The new Pod of a pair follows its origin.
            let is_half = data::origin_of(&self.world.set(&set).entries[&id]).is_some();
            if on_pod.as_ref() == Some(&updated) && !is_half {
                assert_eq!(wanted.as_ref(), Some(&updated), "{set}-{id} is taken back");
            }
            if let Some(wanted) = wanted.filter(|_| on_pod.is_some()) {
                assert!(publish.revisions.contains_key(&wanted));
            }
        }
        if let (Reach::Members(chosen), None) = (&publish.reach, &publish.hold) {
            let members = self.staying_members();
            let reached = members.iter().filter(|key| chosen.contains(*key)).count();
            let least = members.len().saturating_sub(self.partition);
            assert!(reached >= least, "{reached} of {} members", members.len());
            if reached > least {
                let not_done = members.iter().filter(|key| chosen.contains(*key));
                let mut not_done = not_done.filter(|key| !self.has_or_records(key, &updated));
                assert_eq!(
                    not_done.next(),
                    None,
                    "more members than the partition allows"
                );
            }
        }
    }

    /// The members that count for the partition.
    fn staying_members(&self) -> Vec<MemberKey> {
        let instances = self.world.instances().into_iter();
        let staying = instances.filter(|(set, id)| {
            let entries = &self.world.sets[set].entries;
            let is_staying = |id: &i64| !entries[id].contains_key(data::SCALE_IN);
            let origin =
                data::origin_of(&entries[id]).filter(|origin| entries.contains_key(origin));
            let half = half_of(&self.world.sets[set], *id);
            origin.is_none() && (is_staying(id) || half.is_some_and(|half| is_staying(&half)))
        });
        staying.collect()
    }

    fn has_or_records(&self, key: &MemberKey, updated: &str) -> bool {
        let set = &self.world.sets[&key.0];
        let half = half_of(set, key.1);
        [Some(key.1), half].into_iter().flatten().any(|id| {
            let pod = set.pods.get(&id).and_then(|pod| pod.revision.as_deref());
            let is_new = set
                .entries
                .get(&id)
                .is_some_and(|e| e.contains_key(data::JUST_CREATE));
            pod == Some(updated) || set.recorded(id).as_deref() == Some(updated) || is_new
        })
    }

    /// Everything comes to rest, with the revisions that the partition asks for.
    fn rest(&mut self) {
        self.world.refused.revision = None;
        let plan = self.world.roll_out();
        assert!(plan.is_empty());
        let updated = plan.publish.updated.clone().unwrap();
        for (set, id, on_pod) in self.world.carried() {
            assert_eq!(on_pod, self.world.wanted(&set, id), "{set}-{id}");
        }
        let members = self.staying_members();
        let done = members
            .iter()
            .filter(|key| self.has_or_records(key, &updated))
            .count();
        assert!(done >= members.len().saturating_sub(self.partition));
        if self.partition == 0 {
            assert_eq!(done, members.len());
            assert_eq!(self.world.stored_status().current_revision, updated);
        }
        let (ready, reason, message) = self.world.condition("Ready").unwrap();
        assert_eq!(
            (ready.as_str(), reason.as_str()),
            ("True", "AsWanted"),
            "{message}"
        );
    }
}

/// The ID of the new Pod of a pair.
fn half_of(set: &SimSet, origin: i64) -> Option<i64> {
    let mut entries = set.entries.iter();
    let found = entries.find(|(_, data)| data::origin_of(data) == Some(origin));
    found.map(|(id, _)| *id)
}

#[test]
fn random_walks_keep_invariants_and_come_to_rest() {
    for seed in 0..WALKS {
        let mut walk = Walk::new(seed);
        for step in 0..STEPS {
            walk.step();
            if walk.rng.random_bool(0.7) {
                walk.reconcile();
            }
            if step % 20 == 19 {
                walk.rest();
            }
        }
    }
}
