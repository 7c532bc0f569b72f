//! The `operating` command.

use std::process::ExitCode;

use operating::cli::adapter_types::AdapterTypes;

fn main() -> ExitCode {
    operating::cli::main_with(&AdapterTypes::built_in())
}
