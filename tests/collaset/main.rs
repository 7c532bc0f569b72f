//! CollaSets on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod admission_policies;
mod cancelled_updates;
mod deletion;
mod external_tools;
mod fixtures;
mod in_place_updates;
mod instance_id_pools;
mod invariants;
mod kept_pvcs;
mod kuperator_takeover;
mod lost_nodes;
mod membership;
mod memory;
mod operation_delay;
mod persistent_names;
mod pod_creation_failures;
mod pvc_safety;
mod pvcs;
mod random_walks;
mod refused_writes;
mod replace;
mod replace_update;
mod request_counts;
mod rollout;
mod rollout_steps;
mod scale;
mod spec_changes;
mod stale_leaders;
mod status_conditions;
mod update;
mod update_pace;
mod write_faults;
