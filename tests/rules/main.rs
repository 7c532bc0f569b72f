//! Rules of kind labelCheck and webhook on a real API server, with a real HTTPS endpoint that has its own CA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod certificates;
mod combined_rules;
mod edited_rules;
mod endpoint_faults;
mod helpers;
mod ignored_failures;
mod immediate_answers;
mod label_check;
mod polling;
mod queued_calls;
mod random_walks;
mod rule_validation;
