//! The `operating` command.
fn main() {}
