//! The ledger keeps an availability rule exact, with any number of replicas that decide at once.
//!
//! A claim covers the time from the admission of a disruption until the Pod itself shows the effect. Claims are stored
//! in the status of the rule. A replica writes a claim by compare-and-swap, and the leader releases it only on evidence
//! that is newer than the claim. The protocol ([`protocol`], [`evidence`]) is pure, and the model in
//! `tests/ledger_model` checks it exhaustively. [`commit`] runs the protocol against a store, with one write for all
//! admissions that wait at the same time.

mod claim_recovery;
pub mod commit;
pub mod evidence;
pub mod protocol;
pub mod store;
