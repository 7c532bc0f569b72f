//! Starts cargo from within `cargo xtask`.

use std::process::Command;

/// The variables that `cargo run` sets for the package that it runs.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The cargo that runs this program, so that all steps use the same cargo.
///
/// It does not inherit the variables of the package xtask. The build script of `ring` runs again when their values
/// change, so with them each command would compile TLS and all that uses it anew.
pub fn command() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        let is_of_this_package = name.to_str().is_some_and(|name| {
            OF_THIS_PACKAGE
                .iter()
                .any(|prefix| name.starts_with(prefix))
        });
        if is_of_this_package {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_inherits_no_variable_of_xtask() {
        let command = command();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some(), "cargo test sets {name}");
            let change = command.get_envs().find(|(key, _)| *key == name);
            assert!(matches!(change, Some((_, None))), "{name}");
        }
    }
}
