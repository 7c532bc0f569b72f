//! The Pods of the model, and the effects of the API server, the kubelet and failures on them.

use operating::domain::inplace::RestartProgress;
use operating::ledger::evidence::ClaimedPodState;
use operating::ledger::protocol::{ClaimOperation, Purpose};

/// Most Pods that a scenario has.
pub const PODS: usize = 3;

/// A Pod, with as few fields as the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// The resourceVersion.
    pub version: u8,
    /// Whether the object still exists.
    pub exists: bool,
    /// Deletion has begun.
    pub terminating: bool,
    /// The containers serve.
    pub ready: bool,
    /// An operation has taken it off traffic.
    pub offline: bool,
    /// It is not managed any more: no cache shows it, and no rule counts it.
    pub unmanaged: bool,
    /// It carries the availability label.
    pub label: bool,
    /// The spec, as a number.
    pub spec: u8,
    /// The spec that the kubelet has observed, as its status says.
    pub observed: u8,
    /// The kubelet's reason not to make the change yet, if there is one.
    pub pending: Option<Pending>,
    /// The spec with which the kubelet is starting the containers.
    pub starting: Option<u8>,
    /// The spec that runs.
    pub running: u8,
    /// Identifies the run of the containers.
    pub run: u8,
    /// It is unavailable because of a request, and not because of a failure.
    pub voluntary: bool,
}

/// Why the kubelet does not make an in-place change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// The node has no free resources now. The kubelet makes the change once the node has.
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

    /// Whether the Pod serves.
    pub fn serves(&self) -> bool {
        self.exists && self.ready && self.label && !self.offline && !self.terminating
    }

    /// Whether it counts as available for the rules.
    pub fn is_available(&self) -> bool {
        self.serves() && !self.unmanaged
    }

    /// Whether a watch of managed Pods shows it.
    pub fn is_watched(&self) -> bool {
        self.exists && !self.unmanaged
    }

    /// Whether the Pod is available and will go down by a restart that is still to come.
    pub fn will_restart(&self) -> bool {
        self.exists
            && !self.terminating
            && self.starting.is_none()
            && self.spec != self.running
            && self.pending != Some(Pending::Infeasible)
    }

    /// Whether the kubelet has reported that it does not make the change now.
    pub fn is_pending(&self) -> bool {
        self.observed == self.spec && self.pending.is_some()
    }

    /// Whether this state may change by itself.
    pub fn is_deferred(&self) -> bool {
        self.is_pending() && self.pending == Some(Pending::Deferred)
    }

    /// The Pod as evidence about a claim.
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

/// The detail of a claim. For an in-place change: the target, and the run that the change ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Change {
    /// The target spec.
    pub target: u8,
    /// The run of the containers at the admission.
    pub run: u8,
    /// The spec that ran at the admission.
    pub running: u8,
    /// The change replaced another change that the kubelet had not begun.
    pub stacked: bool,
}

impl Purpose for Change {
    fn may_replace(&self, earlier: &Change, _: ClaimOperation) -> bool {
        self.target == earlier.target || self.stacked
    }
}

/// All versions of the Pods that a cache has not read yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    /// The newest version.
    pub version: u8,
    past: Vec<[Pod; PODS]>,
}

impl History {
    /// The initial Pods, all serving. With `namesake` the last one does not exist yet.
    pub fn new(namesake: bool) -> History {
        let mut pods = [Pod::NEW; PODS];
        pods[PODS - 1].exists = !namesake;
        History {
            version: 1,
            past: vec![pods],
        }
    }

    /// The Pods in etcd.
    pub fn now(&self) -> &[Pod; PODS] {
        self.at(self.version)
    }

    /// The Pods in a cache at this position.
    pub fn at(&self, position: u8) -> &[Pod; PODS] {
        &self.past[self.past.len() - 1 - usize::from(self.version - position)]
    }

    /// Forgets the versions that all caches have read.
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
