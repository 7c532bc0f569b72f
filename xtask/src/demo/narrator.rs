//! Prints the events, the expectations and the observations of the demo.

use anyhow::{Result, bail};

/// Prints the lines of the demo and counts failed expectations.
#[derive(Debug, Default)]
pub struct Narrator {
    scenes: usize,
    held: usize,
    broken: Vec<String>,
}

impl Narrator {
    /// Begins a scene.
    pub fn scene(&mut self, title: &str) {
        self.scenes += 1;
        println!("\n{}. {title}", self.scenes);
    }

    /// A line of the story.
    pub fn say(&self, text: impl AsRef<str>) {
        for line in text.as_ref().lines() {
            println!("   {line}");
        }
    }

    /// Quoted text: the output of a command, or a message.
    pub fn quote(&self, text: impl AsRef<str>) {
        for line in text.as_ref().lines() {
            println!("     | {line}");
        }
    }

    /// An expectation, the observation, and whether they agree.
    pub fn check(&mut self, expected: &str, seen: impl std::fmt::Display, held: bool) {
        let mark = if held { '✓' } else { '✗' };
        println!("   {mark} expected: {expected}; seen: {seen}");
        if held {
            self.held += 1;
        } else {
            self.broken.push(format!("expected {expected}, saw {seen}"));
        }
    }

    /// The last line.
    ///
    /// # Errors
    /// If an expectation failed.
    pub fn end(self) -> Result<()> {
        if self.broken.is_empty() {
            println!("\nAll {} expectations held.", self.held);
            return Ok(());
        }
        let all = self.held + self.broken.len();
        bail!(
            "{} of {all} expectations did not hold: {}",
            self.broken.len(),
            self.broken.join("; ")
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_broken_expectation_fails_the_demo_and_is_named() {
        let mut narrator = Narrator::default();
        narrator.check("3", 3, true);
        narrator.check("7", 6, false);
        let error = narrator.end().unwrap_err().to_string();
        assert_eq!(error, "1 of 2 expectations did not hold: expected 7, saw 6");
        let mut narrator = Narrator::default();
        narrator.check("3", 3, true);
        narrator.end().unwrap();
    }
}
