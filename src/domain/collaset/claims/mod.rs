//! PersistentVolumeClaims: which serves which instance, and what becomes of those that are left (contract 6.8).

pub mod hash;
mod mislabelled;
mod plan;

pub use mislabelled::{corrected, give_back};
pub use plan::{
    Wanted, changed, for_instance, give_up, has_hash, instance, is_generated, is_named_by,
    is_usable, left, leftovers, missing,
};
