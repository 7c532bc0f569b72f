//! Claims: how an availability rule stays exact with any number of replicas deciding at once.
//!
//! A claim bridges the time between an admission and the moment its effect is seen in the Pod itself. It lives in the
//! status of the rule, is written by compare-and-swap, and is released only on evidence newer than itself. The
//! protocol is pure ([`protocol`], [`evidence`]) and exhaustively checked by the model in `tests/model`; [`commit`]
//! runs it against a store, one write for all admissions that wait at the same time.

mod claim_recovery;
pub mod commit;
pub mod evidence;
pub mod protocol;
pub mod store;
