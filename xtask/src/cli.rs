//! The command line of `cargo xtask`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::binaries::{self, Kubernetes};

use crate::daemon;
use crate::{bench, book, check, demo, fuzz, matrix, soak};

/// Developer commands of the project
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A Kubernetes control plane on loopback ports, with simulated nodes
    #[command(subcommand)]
    Plane(PlaneCommand),
    /// Format, lints, licences and all tests, as CI runs them
    Test(check::Args),
    /// Run the fuzz targets with new input, and report what makes one fail
    Fuzz(fuzz::Args),
    /// Build the programs that planes are made of into the cache
    Binaries,
    /// Measure the cost of the server, in counts and ratios, on its own control plane
    Bench(bench::Args),
    /// Do every kind of disruption to every kind of owner under a rule of one, and print a table
    Matrix(matrix::Args),
    /// Do random operations of a tenant while replicas die and watches stall
    Soak(soak::Args),
    /// Build the documentation as a book with mdBook
    Book,
    /// Show the guarantee on a real control plane, and remove everything at the end
    Demo(demo::Args),
    /// Run a server while the demo's plane is up, for `demo --keep`
    #[command(hide = true)]
    HoldServer(demo::keep::HoldArgs),
}

#[derive(Debug, Subcommand)]
enum PlaneCommand {
    /// Start a plane in the background and print the path of its kubeconfig
    Up(PlaneArgs),
    /// Stop a plane and remove its files
    Down {
        #[command(flatten)]
        name: Name,
    },
    /// List the planes that are up
    Status,
    /// Run a plane in the foreground until Ctrl-C
    Run(PlaneArgs),
}

#[derive(Debug, clap::Args)]
struct PlaneArgs {
    #[command(flatten)]
    name: Name,
    /// Number of simulated nodes, 5,000 Pods each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=5000))]
    nodes: u16,
    /// Version of Kubernetes
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Name of the plane; planes of different names run side by side
    #[arg(long, default_value = "default")]
    name: String,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Test(args) => return check::run(&args),
        Command::Fuzz(args) => return fuzz::run(&args),
        Command::Book => return book::run(),
        Command::Binaries => binaries::build_all(Kubernetes::of_environment()?)?,
        Command::Plane(command) => block_on(plane(command))?,
        Command::Bench(args) => block_on(bench::run(args))?,
        Command::Matrix(args) => block_on(matrix::run(args))?,
        Command::Soak(args) => block_on(soak::run(args))?,
        Command::Demo(args) => block_on(demo::run(args))?,
        Command::HoldServer(args) => block_on(demo::keep::hold(args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the future to its end, and does not wait for threads that still compile.
fn block_on(future: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

async fn plane(command: PlaneCommand) -> Result<()> {
    match command {
        PlaneCommand::Up(args) => {
            let state = daemon::up(&args.name.name, args.nodes.into(), args.kubernetes).await?;
            let bin = state.kubeconfig.with_file_name("bin");
            eprintln!("the plane {} is up at {}", args.name.name, state.url);
            eprintln!("kubectl is in {}", bin.display());
            println!("{}", state.kubeconfig.display());
        }
        PlaneCommand::Down { name } => {
            let found = daemon::down(&name.name).await?;
            let outcome = if found { "is down" } else { "was not up" };
            eprintln!("the plane {} {outcome}", name.name);
        }
        PlaneCommand::Status => {
            for (name, state) in daemon::status()? {
                match state {
                    Some(state) => println!(
                        "{name}\t{}\t{} nodes\tpid {}\t{}",
                        state.url,
                        state.nodes,
                        state.pid,
                        state.kubeconfig.display()
                    ),
                    None => println!("{name}\tstarting, or of a running test"),
                }
            }
        }
        PlaneCommand::Run(args) => {
            daemon::run(&args.name.name, args.nodes.into(), args.kubernetes).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
