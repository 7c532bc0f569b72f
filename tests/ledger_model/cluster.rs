//! The Pods of the model, and what the API server, the kubelet and chance do to them.

use operating::domain::inplace::RestartProgress;
use operating::ledger::evidence::ClaimedPodState;
use operating::ledger::protocol::{ClaimOperation, Purpose};

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
    pub unmanaged: bool,
    /// It carries the availability label.
    pub label: bool,
    /// What its spec says.
    pub spec: u8,
    /// The spec that the kubelet has seen, by its own word.
    pub observed: u8,
    /// The kubelet's answer to its spec, if that is not yet made.
    pub pending: Option<Pending>,
    /// The spec that the kubelet starts the containers with, while it does.
    pub starting: Option<u8>,
    /// The spec that runs.
    pub running: u8,
    /// Identifies the run of the containers.
    pub run: u8,
    /// It is unavailable because of a request, and not by a fault.
    pub voluntary: bool,
}

/// Why the kubelet does not make an in-place change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// The node has no free resources now. The kubelet makes the change as soon as it has.
    Deferred,
    /// Never.
    Infeasible,
}

impl Pod {
    /// A Pod that serves.
    pub const NEW: Pod = Pod {
        version: 1,
        exists: true,
        terminating: false,
        ready: true,
        offline: false,
        unmanaged: false,
        label: true,
        spec: 0,
        observed: 0,
        pending: None,
        starting: None,
        running: 0,
        run: 0,
        voluntary: false,
    };

    /// Whether it serves, by its own state.
    pub fn serves(&self) -> bool {
        self.exists && self.ready && self.label && !self.offline && !self.terminating
    }

    /// Whether it counts as available for the rules.
    pub fn is_available(&self) -> bool {
        self.serves() && !self.unmanaged
    }

    /// Whether a managed-Pod watch shows it.
    pub fn is_watched(&self) -> bool {
        self.exists && !self.unmanaged
    }

    /// Whether a restart is still to come by which an available Pod goes down.
    pub fn will_restart(&self) -> bool {
        self.exists
            && !self.terminating
            && self.starting.is_none()
            && self.spec != self.running
            && self.pending != Some(Pending::Infeasible)
    }

    /// Whether the kubelet has said that it does not make the change now.
    pub fn is_pending(&self) -> bool {
        self.observed == self.spec && self.pending.is_some()
    }

    /// Whether that may change by itself.
    pub fn is_deferred(&self) -> bool {
        self.is_pending() && self.pending == Some(Pending::Deferred)
    }

    /// The Pod as evidence on a claim.
    pub fn sighting(&self, change: &Change) -> ClaimedPodState {
        ClaimedPodState::Seen {
            version: u64::from(self.version),
            terminating: self.terminating,
            available: self.serves(),
            applied: change.stacked || self.spec == change.target,
            restart: self.restart(change),
        }
    }

    fn restart(&self, change: &Change) -> RestartProgress {
        let in_force = self.spec == self.running && self.starting.is_none();
        if self.observed != self.spec || !self.ready || self.pending == Some(Pending::Deferred) {
            RestartProgress::Awaited
        } else if self.pending == Some(Pending::Infeasible)
            || (in_force && (change.stacked || self.run == change.run))
        {
            RestartProgress::Nothing
        } else if change.stacked || self.run == change.run {
            RestartProgress::Awaited
        } else if self.running == change.running {
            RestartProgress::Unproven
        } else {
            RestartProgress::Proven
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
    /// It has taken the place of a change that the kubelet had not begun with.
    pub stacked: bool,
}

impl Purpose for Change {
    fn may_replace(&self, earlier: &Change, _: ClaimOperation) -> bool {
        self.target == earlier.target || self.stacked
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
    /// Pods that serve; with `namesake` the last one is yet to be made.
    pub fn new(namesake: bool) -> History {
        let mut pods = [Pod::NEW; PODS];
        pods[PODS - 1].exists = !namesake;
        History {
            version: 1,
            past: vec![pods],
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
