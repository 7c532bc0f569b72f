//! The operations of the soak, as data, and their sequence by a seed.

/// The kinds of operations of a tenant, the kubelet or an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it all
pub enum Kind {
    // DELETE of a Pod.
    Delete,
    DeleteGraceZero,
    DeleteWithUid,
    DeleteWithWrongUid,
    DeleteForeground,
    DeleteOrphan,
    DeleteDryRun,
    DeleteCollection,
    // pods/eviction.
    Evict,
    EvictWithUid,
    EvictWithVersion,
    EvictGraceZero,
    EvictDryRun,
    // Labels of a Pod.
    DropControl,
    RestoreControl,
    ChangeApp,
    DropTier,
    RestoreTier,
    DropAvailable,
    Begin,
    BeginMany,
    Finish,
    Undo,
    // Metadata of a Pod.
    Annotate,
    AddFinalizer,
    DropFinalizer,
    Protect,
    Unprotect,
    DropOwner,
    InventOwner,
    ChangeOwner,
    // Spec and subresources of a Pod.
    Deadline,
    Image,
    BadImage,
    ImageAndLabel,
    Replace,
    ResizeCpu,
    ResizeMemory,
    ResizeSameMemory,
    ResizePod,
    EphemeralContainer,
    Status,
    CreatePod,
    // Owners.
    Scale,
    ScaleSubresource,
    RollOut,
    RolloutRestart,
    Pause,
    Resume,
    Strategy,
    CreateOwner,
    DeleteOwner,
    DeleteOwnerForeground,
    OrphanPods,
    // PodDisruptionBudgets.
    CreateBudget,
    EditBudget,
    DeleteBudget,
    // Not by the tenant.
    Cordon,
    Uncordon,
    Flap,
}

/// The weight with which each operation is drawn.
pub const WEIGHTS: &[(Kind, u64)] = &[
    (Kind::Delete, 120),
    (Kind::DeleteGraceZero, 30),
    (Kind::DeleteWithUid, 30),
    (Kind::DeleteWithWrongUid, 5),
    (Kind::DeleteForeground, 10),
    (Kind::DeleteOrphan, 10),
    (Kind::DeleteDryRun, 15),
    (Kind::DeleteCollection, 6),
    (Kind::Evict, 90),
    (Kind::EvictWithUid, 30),
    (Kind::EvictWithVersion, 20),
    (Kind::EvictGraceZero, 15),
    (Kind::EvictDryRun, 10),
    (Kind::DropControl, 8),
    (Kind::RestoreControl, 30),
    (Kind::ChangeApp, 8),
    (Kind::DropTier, 5),
    (Kind::RestoreTier, 15),
    (Kind::DropAvailable, 20),
    (Kind::Begin, 40),
    (Kind::BeginMany, 4),
    (Kind::Finish, 60),
    (Kind::Undo, 15),
    (Kind::Annotate, 20),
    (Kind::AddFinalizer, 6),
    (Kind::DropFinalizer, 20),
    (Kind::Protect, 6),
    (Kind::Unprotect, 20),
    (Kind::DropOwner, 6),
    (Kind::InventOwner, 15),
    (Kind::ChangeOwner, 10),
    (Kind::Deadline, 20),
    (Kind::Image, 50),
    (Kind::BadImage, 4),
    (Kind::ImageAndLabel, 20),
    (Kind::Replace, 10),
    (Kind::ResizeCpu, 15),
    (Kind::ResizeMemory, 30),
    (Kind::ResizeSameMemory, 10),
    (Kind::ResizePod, 15),
    (Kind::EphemeralContainer, 10),
    (Kind::Status, 3),
    (Kind::CreatePod, 25),
    (Kind::Scale, 20),
    (Kind::ScaleSubresource, 20),
    (Kind::RollOut, 12),
    (Kind::RolloutRestart, 6),
    (Kind::Pause, 3),
    (Kind::Resume, 8),
    (Kind::Strategy, 4),
    (Kind::CreateOwner, 8),
    (Kind::DeleteOwner, 3),
    (Kind::DeleteOwnerForeground, 2),
    (Kind::OrphanPods, 3),
    (Kind::CreateBudget, 4),
    (Kind::EditBudget, 4),
    (Kind::DeleteBudget, 8),
    (Kind::Cordon, 3),
    (Kind::Uncordon, 8),
    (Kind::Flap, 15),
];

/// An operation. Its target is drawn as a number, which selects among the objects that exist at the time of
/// the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Position in the sequence.
    pub index: usize,
    /// Kind of the operation.
    pub kind: Kind,
    /// Selects the object.
    pub target: u64,
    /// Selects everything else.
    pub detail: u64,
}

/// The first `count` operations of a seed.
#[must_use]
pub fn sequence(seed: u64, count: usize) -> Vec<Operation> {
    let total: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut random = Random(seed);
    let mut draw = |index| {
        let mut rest = random.next() % total;
        let mut kind = WEIGHTS[0].0;
        for (candidate, weight) in WEIGHTS {
            kind = *candidate;
            if rest < *weight {
                break;
            }
            rest -= weight;
        }
        Operation {
            index,
            kind,
            target: random.next(),
            detail: random.next(),
        }
    };
    (0..count).map(&mut draw).collect()
}

/// SplitMix64: the same numbers for a seed on every machine and with every version of every library.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_gives_same_operations_every_time() {
        assert_eq!(sequence(7, 500), sequence(7, 500));
        assert_eq!(sequence(7, 500)[..100], sequence(7, 100));
        assert_ne!(sequence(7, 100), sequence(8, 100));
    }

    #[test]
    fn ten_thousand_operations_contain_every_kind() {
        let drawn = sequence(1, 10_000);
        for (kind, _) in WEIGHTS {
            assert!(drawn.iter().any(|o| o.kind == *kind), "{kind:?}");
        }
    }
}
