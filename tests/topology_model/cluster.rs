//! The Pods, and the effects of owners, the scheduler, the kubelet and failures on them.

/// Most Pods in a world.
pub const PODS: usize = 4;

/// A slot of the set, which an owner fills with one Pod after another.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The zone of its first Pod, and of all its Pods if owners set the zone. `None`: its Pods have no zone label.
    pub zone: Option<u8>,
    /// The partition.
    pub group: u8,
    /// A Pod beyond the expected ones, as in a rollout with surge. It does not exist at first.
    pub extra: bool,
}

/// The state of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Is {
    /// Not there.
    Gone,
    /// Not scheduled.
    Pending,
    /// Scheduled and not yet available.
    Starting,
    /// Available.
    Up,
    /// Not available because of an outage.
    Failed,
    /// Taken off traffic by an operation, or restarted in place.
    Offline,
    /// Being deleted.
    Terminating,
}

/// A Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// The version of its last change.
    pub version: u8,
    /// The incarnation.
    pub uid: u8,
    /// The state of the Pod.
    pub is: Is,
    /// Its zone label. A Pod that is absent or not scheduled has the label of its predecessor.
    pub zone: Option<u8>,
}

/// The Pods at one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The version.
    pub version: u8,
    /// The Pods.
    pub pods: [Pod; PODS],
}

impl Snapshot {
    /// The initial Pods.
    pub fn new(slots: &[Slot]) -> Snapshot {
        let pod = |slot: usize| {
            let slot = slots.get(slot).filter(|slot| !slot.extra);
            Pod {
                version: 0,
                uid: 0,
                is: slot.map_or(Is::Gone, |_| Is::Up),
                zone: slot.and_then(|slot| slot.zone),
            }
        };
        Snapshot {
            version: 0,
            pods: std::array::from_fn(pod),
        }
    }

    /// The Pods after a change of one of them.
    pub fn with(&self, slot: usize, change: impl FnOnce(&mut Pod)) -> Snapshot {
        let mut next = *self;
        next.version += 1;
        next.pods[slot].version = next.version;
        change(&mut next.pods[slot]);
        next
    }
}
