//! The Pods, and what owners, the scheduler, the kubelet and chance do to them.

/// Most Pods that a world has.
pub const PODS: usize = 4;

/// A place in the set, which an owner fills with one Pod after another.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The zone of its first Pod, and of all if owners tell the zone. `None`: its Pods have no label.
    pub zone: Option<u8>,
    /// The partition.
    pub group: u8,
    /// A Pod beyond the expected ones, as in a rollout with surge; not there at first.
    pub extra: bool,
}

/// What a Pod is.
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
    /// Not available by an outage.
    Failed,
    /// Taken off traffic by a lifecycle, or restarted in place.
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
    /// What it is.
    pub is: Is,
    /// Its label; of a Pod that is not there or not scheduled, the label of the one before.
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
    /// The Pods at the beginning.
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

    /// The Pods after one of them has changed.
    pub fn with(&self, slot: usize, change: impl FnOnce(&mut Pod)) -> Snapshot {
        let mut next = *self;
        next.version += 1;
        next.pods[slot].version = next.version;
        change(&mut next.pods[slot]);
        next
    }
}
