//! The adapter against a double of the API that speaks its wire protocol.
#![allow(clippy::unwrap_used, clippy::panic)]

mod changed_service;
mod common;
mod credentials;
mod faults;
mod hostile;
mod observe;
mod planned;
mod shared;
mod write;
