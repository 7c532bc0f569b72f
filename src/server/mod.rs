//! Serves the two listeners: webhook calls over TLS, and probes and metrics over plain HTTP.
//!
//! [`webhooks`] turns a call into a verdict, and [`health`] reports readiness and liveness. [`connections`] serves both
//! within [`Limits`], and [`Shutdown`] ends both without a failed review.

pub use self::limits::Limits;
pub use self::shutdown::Shutdown;

mod body;
mod call_timeout;
mod caller;
mod connection_slots;
pub mod connections;
mod fair_shares;
pub mod health;
mod limits;
mod log_limiter;
pub mod path_filter;
mod review_memory;
pub mod self_check;
mod shutdown;
mod source_network;
mod status;
pub mod webhooks;
