//! The actions of a walk.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::endpoints::{MOODS, Mood};

/// Most rule objects in a walk.
pub const OBJECTS: usize = 3;

/// The condition of a rule.
#[derive(Clone, Debug)]
pub enum Kind {
    Webhook {
        endpoint: usize,
        polls: bool,
        ignores: bool,
    },
    Label,
    Limit(u32),
}

/// A rule that the walk writes.
#[derive(Clone, Debug)]
pub struct Draft {
    pub kind: Kind,
    pub after: bool,
    pub filtered: bool,
}

/// A change to a rule.
#[derive(Clone, Debug)]
pub enum Change {
    Limit(u32),
    Path,
    Policy,
    Disable(bool),
    Rename,
    Filter(bool),
    /// Moves the rule from PreCheck to PostCheck, or back.
    Stage,
}

/// One action of a user. Numbers select Pods and rules by their index.
#[derive(Clone, Debug)]
pub enum Act {
    Begin(usize, &'static [&'static str], &'static str),
    /// Finishes all operations of a Pod: only those that may be carried out, or all of them.
    Finish(usize, bool),
    Undo(usize, &'static str),
    /// Undoes an operation and begins it again, while the server may still ask an endpoint about it.
    Again(usize, &'static str),
    /// Deletes a Pod and creates it again.
    Remake(usize),
    Label(usize, &'static str, Option<&'static str>),
    Edit(usize, usize, Change),
    Drop(usize),
    Make(usize, Vec<Draft>),
    Turn(usize, Mood),
}

/// Draws one action for a walk with this number of Pods and endpoints.
pub fn draw(rng: &mut StdRng, pods: usize, endpoints: usize) -> Act {
    let (pod, object) = (rng.random_range(0..pods), rng.random_range(0..OBJECTS));
    match rng.random_range(0..100) {
        0..34 => {
            let ids: [&[&str]; 4] = [&["x"], &["x"], &["y"], &["x", "y"]];
            let types = ["upgrade", "upgrade", "restart"];
            Act::Begin(pod, ids.choose(rng).unwrap(), types.choose(rng).unwrap())
        }
        34..58 => Act::Finish(pod, false),
        58..61 => Act::Finish(pod, true),
        61..63 => Act::Undo(pod, ["x", "y"].choose(rng).unwrap()),
        63..65 => Act::Again(pod, ["x", "y"].choose(rng).unwrap()),
        65..68 => Act::Remake(pod),
        68..75 => {
            let labels = [
                ("fit", Some("yes")),
                ("fit", Some("yes")),
                ("fit", None),
                ("tier", Some("a")),
                ("tier", Some("b")),
            ];
            let (key, value) = *labels.choose(rng).unwrap();
            Act::Label(pod, key, value)
        }
        75..82 => Act::Edit(object, rng.random_range(0..3), change(rng)),
        82..83 => Act::Drop(object),
        83..86 => Act::Make(object, drafts(rng, endpoints)),
        _ => Act::Turn(rng.random_range(0..endpoints), *MOODS.choose(rng).unwrap()),
    }
}

fn change(rng: &mut StdRng) -> Change {
    match rng.random_range(0..9) {
        0 | 1 => Change::Limit(rng.random_range(1..4)),
        2 => Change::Path,
        3 => Change::Policy,
        4 => Change::Disable(true),
        5 => Change::Disable(false),
        6 => Change::Rename,
        7 => Change::Stage,
        _ => Change::Filter(rng.random_bool(0.5)),
    }
}

/// The rules of one object.
pub fn drafts(rng: &mut StdRng, endpoints: usize) -> Vec<Draft> {
    let count = rng.random_range(1..=3);
    let draft = |_| {
        let kind = match rng.random_range(0..10) {
            0 => Kind::Label,
            1 => Kind::Limit(rng.random_range(1..4)),
            _ => Kind::Webhook {
                endpoint: rng.random_range(0..endpoints),
                polls: rng.random_bool(0.6),
                ignores: rng.random_bool(0.4),
            },
        };
        Draft {
            after: !matches!(kind, Kind::Limit(_)) && rng.random_bool(0.3),
            filtered: rng.random_bool(0.2),
            kind,
        }
    };
    (0..count).map(draft).collect()
}
