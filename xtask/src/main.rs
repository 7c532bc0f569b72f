//! Developer commands; see `cargo xtask --help`.
fn main() {}
