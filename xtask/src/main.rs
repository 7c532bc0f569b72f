//! Developer commands; see `cargo xtask --help`.

fn main() -> std::process::ExitCode {
    xtask::cli::main()
}
