//! Developer commands; see `cargo xtask --help`.

fn main() -> std::process::ExitCode {
    // The demo runs this program as the container of a Pod.
    testbed::containers::serve_if_asked();
    xtask::cli::main()
}
