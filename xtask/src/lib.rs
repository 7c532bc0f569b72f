//! Developer commands, as a library so that tests can run a part of `matrix` and `soak`.

pub mod bench;
pub mod book;
pub mod build;
mod cargo;
pub mod check;
pub mod cli;
mod collasets;
pub mod daemon;
pub mod demo;
pub mod fuzz;
pub mod matrix;
pub mod soak;
mod test_programs;
