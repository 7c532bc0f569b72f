//! The two listeners: webhook calls over TLS, and probes and metrics over plain HTTP.
//!
//! [`webhooks`] turns a call into a verdict, [`health`] tells the truth about readiness, [`connections`] serves either
//! of them within [`Limits`], and [`Shutdown`] ends both without a failed review.

pub use self::limits::Limits;
pub use self::shutdown::Shutdown;

mod body;
mod caller;
pub mod connections;
pub mod dial;
pub mod doors;
pub mod health;
mod limits;
mod memory;
mod places;
mod quiet;
mod shares;
mod shutdown;
mod source;
mod status;
mod timeout;
pub mod webhooks;
