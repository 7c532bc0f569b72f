//! Operating: Pod operations whose availability rules are held at admission.
//!
//! A review goes in, a verdict comes out; behind it a ledger of claims in the rule's own status keeps the budget exact
//! for any number of replicas. Reconcilers finish what takes time.
//!
//! The layers point one way, each using only those before it, and `tests/layers.rs` keeps it so:
//!
//! 1. [`api`]: the kinds of `apps.kusionstack.io`, and every label, annotation and finalizer once ([`api::keys`]).
//! 2. [`domain`]: pure decisions, the lifecycle ([`domain::lifecycle`]) and the rules ([`domain::rules`]).
//! 3. [`ledger`]: claims, the protocol that gives and releases them ([`ledger::protocol`], [`ledger::evidence`]).
//! 4. [`cluster`]: what this replica knows of the cluster ([`cluster::index`]), and how it writes to it.
//! 5. [`admission`] decides requests and [`controllers`] finish them; neither knows the other.
//! 6. [`server`]: the listeners, knowing of admission only [`admission::review`].
//! 7. [`cli`]: the command `operating`, which wires all of it together ([`cli::serve`]).
//!
//! [`tls`] and [`telemetry`] stand beside them, for the server and the command; [`tasks`] supervises what runs for long.
#![forbid(unsafe_code)]

pub mod admission;
pub mod api;
pub mod apirequest;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod domain;
#[doc(hidden)]
pub mod fuzzing;
pub mod ledger;
pub mod server;
pub mod tasks;
pub mod telemetry;
pub mod tls;
