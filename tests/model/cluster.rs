//! The Pods of the model, and what the API server, the kubelet and fate do to them.

use operating::domain::inplace::Restart;
use operating::ledger::evidence::Sighting;
use operating::ledger::protocol::{Operation, Purpose};

/// Most Pods that a scenario has.
pub const PODS: usize = 3;

/// A Pod, as small as the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// resourceVersion.
    pub version: u8,
    /// Whether the object is still there.
    pub exists: bool,
    /// Deletion has begun.
    pub terminating: bool,
    /// The containers serve.
    pub ready: bool,
    /// A lifecycle has taken it offline.
    pub offline: bool,
    /// It has left the management: no cache shows it, no rule counts it.
    pub left: bool,
    /// What its spec says.
    pub spec: u8,
    /// The spec that the kubelet has seen, by its own word.
    pub observed: u8,
    /// The spec that the kubelet starts the containers with, while it does.
    pub starting: Option<u8>,
    /// The spec that runs.
    pub running: u8,
    /// Identifies the run of the containers.
    pub run: u8,
    /// It is unavailable because somebody wanted something of it.
    pub voluntary: bool,
}

impl Pod {
    /// A Pod that serves.
    pub const NEW: Pod = Pod {
        version: 1,
        exists: true,
        terminating: false,
        ready: true,
        offline: false,
        left: false,
        spec: 0,
        observed: 0,
        starting: None,
        running: 0,
        run: 0,
        voluntary: false,
    };

    /// Whether it serves, by its own state.
    pub fn serves(&self) -> bool {
        self.exists && self.ready && !self.offline && !self.terminating
    }

    /// Whether it counts as available for the rules.
    pub fn is_available(&self) -> bool {
        self.serves() && !self.left
    }

    /// Whether a managed-Pod watch shows it.
    pub fn is_watched(&self) -> bool {
        self.exists && !self.left
    }

    /// Whether a restart is still to come by which an available Pod goes down.
    pub fn will_restart(&self) -> bool {
        self.exists && !self.terminating && self.starting.is_none() && self.spec != self.running
    }

    /// The Pod as evidence on a claim.
    pub fn sighting(&self, change: &Change) -> Sighting {
        Sighting::Seen {
            version: u64::from(self.version),
            terminating: self.terminating,
            available: self.serves(),
            applied: self.spec == change.target,
            restart: self.restart(change),
        }
    }

    fn restart(&self, change: &Change) -> Restart {
        if self.observed != self.spec || !self.ready || self.run == change.run {
            Restart::Awaited
        } else if self.running == change.running {
            Restart::Unproven
        } else {
            Restart::Proven
        }
    }
}

/// The detail of a claim: for an in-place change its target, and what it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Change {
    /// The spec to come.
    pub target: u8,
    /// The run at the time of the admission.
    pub run: u8,
    /// What ran at that time.
    pub running: u8,
}

impl Purpose for Change {
    fn may_replace(&self, earlier: &Change, _: Operation) -> bool {
        self.target == earlier.target
    }
}

/// All Pods in all versions that some cache has yet to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    /// The newest version.
    pub version: u8,
    past: Vec<[Pod; PODS]>,
}

impl History {
    /// Pods that serve.
    pub fn new() -> History {
        History {
            version: 1,
            past: vec![[Pod::NEW; PODS]],
        }
    }

    /// The Pods as etcd has them.
    pub fn now(&self) -> &[Pod; PODS] {
        self.at(self.version)
    }

    /// The Pods as a cache at this position has them.
    pub fn at(&self, position: u8) -> &[Pod; PODS] {
        &self.past[self.past.len() - 1 - usize::from(self.version - position)]
    }

    /// Forgets what no cache can read any more.
    pub fn forget_before(&mut self, position: u8) {
        let keep = usize::from(self.version - position) + 1;
        self.past.drain(..self.past.len() - keep);
    }

    /// Writes a Pod.
    pub fn write(&mut self, pod: u8, voluntary: bool, change: impl FnOnce(&mut Pod)) {
        let mut pods = *self.now();
        let p = &mut pods[usize::from(pod)];
        let before = p.is_available();
        change(p);
        self.version += 1;
        p.version = self.version;
        p.voluntary = !p.is_available() && (p.voluntary || (before && voluntary));
        self.past.push(pods);
    }
}
