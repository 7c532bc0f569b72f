//! Revisions: how a template is stored, which stored revision is that of the template, and how two revisions compare
//! (contract 6.1, contract 6.5).

pub(crate) mod data;
mod environment;
pub(crate) mod hash;
pub(crate) mod history;
pub(crate) mod inplace;
pub(crate) mod progress;
mod qos;
pub(crate) mod resize;
pub(crate) mod stable;
#[cfg(test)]
mod tests;
