//! Revisions: how a template is stored, which stored revision is that of the template, and how two revisions compare
//! (contract 6.1, contract 6.5).

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
