//! The adapter against a double of the API that speaks its wire protocol.
#![allow(clippy::unwrap_used)]

mod common;
mod credentials;
mod faults;
mod observe;
mod planned;
mod write;
