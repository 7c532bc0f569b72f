//! Operating: Pod operations whose availability rules are enforced at admission.
//!
//! The server receives a review and returns a verdict. A ledger of claims in the status of each rule keeps the budget
//! exact for any number of replicas. Controllers do the work that takes longer than a review.
//!
//! Each layer uses only the layers before it, and `tests/layers.rs` checks this:
//!
//! 1. [`api`]: the kinds of `apps.kusionstack.io`, and all labels, annotations and finalizers ([`api::keys`]).
//! 2. [`domain`]: pure decisions about the lifecycle ([`domain::lifecycle`]) and the rules ([`domain::rules`]).
//! 3. [`ledger`]: claims, and the protocol that takes and releases them ([`ledger::protocol`], [`ledger::evidence`]).
//! 4. [`cluster`]: what this replica knows of the cluster ([`cluster::index`]), and its writes to the cluster.
//! 5. [`admission`] decides requests, and [`controllers`] complete them. Neither uses the other.
//! 6. [`server`]: the listeners. They use only [`admission::review`] of admission.
//! 7. [`cli`]: the command `operating`, which connects all layers ([`cli::serve`]).
//!
//! [`tls`] and [`telemetry`] are used by the server and the command. [`tasks`] supervises long-lived tasks.
//!
//! # What is public
//!
//! The crate is not a library for other projects: it has no stable interface. A module is `pub` for one of two reasons,
//! and all others are `pub(crate)` or private, so that the compiler finds code that nothing uses:
//!
//! - It defines what users and reviewers read: the kinds, keys and validation of [`api`], the decisions of
//!   [`domain::rules`] and [`domain::lifecycle`], the protocol of the [`ledger`], and [`admission::review`].
//! - The binary, `tests/`, `fuzz/` or `xtask/` use it.
//!
//! # Example
//!
//! An operator begins an operation on a Pod by a patch of two labels:
//!
//! ```
//! use operating::domain::lifecycle::operator::begin_labels;
//! use operating::domain::pod::Pod;
//! use serde_json::json;
//!
//! let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "web-0", "labels": { "app": "web" } } }))?;
//! let now_nanos = 1_700_000_000_000_000_000;
//! let labels = begin_labels(&pod, "node-drain", "restart", false, now_nanos);
//! assert_eq!(
//!     labels.to_merge_patch(),
//!     json!({
//!         "operating.podopslifecycle.kusionstack.io/node-drain": "1700000000000000000",
//!         "operation-type.podopslifecycle.kusionstack.io/node-drain": "restart",
//!     })
//! );
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod admission;
pub mod api;
pub(crate) mod api_request;
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
