//! Generates the reference of the command line from the definitions that parse it.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::args::Cli;

/// `docs/cli.md`: the long help of every command that is not hidden.
pub fn cli_markdown() -> String {
    let mut out = String::from(
        "# Command line\n\nGenerated from the definitions of the flags: `UPDATE=1 cargo test --test generated` \
         rewrites it.\nEvery flag can be set by the environment variable that stands behind it; a flag wins.\n",
    );
    // Values of the environment are hidden, because they differ between machines.
    let mut root = Cli::command();
    root.build();
    write_section(&mut out, root.clone());
    write_subcommands(&mut out, &root);
    out
}

fn write_subcommands(out: &mut String, parent: &Command) {
    for command in parent
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        write_section(out, command.clone());
        write_subcommands(out, command);
    }
}

fn write_section(out: &mut String, command: Command) {
    let name = command
        .get_bin_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let help = command
        .mut_args(|arg| arg.hide_env_values(true))
        .term_width(100)
        .render_long_help()
        .to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "\n## {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
}
