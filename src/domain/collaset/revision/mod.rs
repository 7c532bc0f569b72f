//! Revisions: what a template is stored as, which of the stored ones it is, and how two compare (contract 6.1, contract 6.5).

pub mod data;
mod environment;
pub mod hash;
pub mod history;
pub mod inplace;
mod progress;
mod qos;
pub mod resize;
pub mod stable;
#[cfg(test)]
mod tests;
