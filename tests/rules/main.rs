//! Rules of kind labelCheck and webhook on a real API server, with a real HTTPS endpoint that has its own CA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod asking;
mod certificates;
mod edits;
mod faults;
mod helpers;
mod labels;
mod mixed;
mod polling;
mod queued;
mod refused;
mod unasked;
mod walks;
