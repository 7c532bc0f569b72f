//! Asks a person before a command changes something that can't be restored.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, bail};

/// Asks the question on the terminal.
///
/// # Errors
/// If the answer is not yes, and if nobody can answer because standard input is not a terminal.
pub fn confirm(question: &str) -> anyhow::Result<()> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!(
            "nothing was changed: standard input is not a terminal, so nobody can confirm; pass --yes"
        );
    }
    let mut prompt = std::io::stderr().lock();
    write!(prompt, "{question} [y/N] ")
        .and_then(|()| prompt.flush())
        .context("cannot write the question")?;
    let mut answer = String::new();
    input
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    if !is_yes(&answer) {
        bail!("nothing was changed");
    }
    Ok(())
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("YES\n", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
            ("yesterday\n", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }
}
