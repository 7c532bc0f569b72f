//! Revisions of decorations: their data, how two data compare, and which revisions are kept (contract 6.1).

mod data;
mod history;
#[cfg(test)]
mod tests;

pub use data::{is_equal_data, parse_revision, revision_data};
pub use history::{RevisionHistory, RevisionWrite, plan_history};
