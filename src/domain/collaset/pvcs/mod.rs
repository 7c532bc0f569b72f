//! Plans PersistentVolumeClaims (PVCs): which PVC serves which instance, and what happens to PVCs that are left over
//! (contract 6.8).

pub mod hash;
mod label_repair;
mod plan_pvcs;

pub use label_repair::{restore_labels, with_corrected_labels};
pub use plan_pvcs::{
    InstancePvcs, delete_or_release, has_generated_name, have_templates_changed, instance_id_label,
    is_generated, is_usable_pvc, left_behind_labels, leftover_pvcs, matches_hash, missing_pvcs,
    plan_instance_pvcs,
};
