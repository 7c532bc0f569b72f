//! Paths of the checkout and of the cache, which is outside of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the checkout from which this program was compiled.
#[must_use]
pub fn repository() -> &'static Path {
    let testbed = Path::new(env!("CARGO_MANIFEST_DIR"));
    testbed.parent().unwrap_or(testbed)
}

/// The cache directory, created when missing: `$OPERATING_CACHE`, else `operating` in
/// `$XDG_CACHE_HOME`, else `~/.cache/operating`.
///
/// # Errors
/// When none of the three variables is set, or the directory cannot be created.
pub fn cache() -> Result<PathBuf> {
    let dir = cache_from(|name| std::env::var_os(name).map(PathBuf::from))
        .context("no cache directory: set OPERATING_CACHE (or XDG_CACHE_HOME, or HOME)")?;
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    dir.canonicalize()
        .with_context(|| format!("resolving {}", dir.display()))
}

fn cache_from(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // An empty variable counts as unset, as the XDG base directory specification says.
    let set = |name| var(name).filter(|path| !path.as_os_str().is_empty());
    set("OPERATING_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("operating")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/operating")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_variable_wins_and_empty_counts_as_unset() {
        let with = |pairs: &'static [(&str, &str)]| {
            cache_from(|name| {
                let found = pairs.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| PathBuf::from(value))
            })
        };
        let all = &[
            ("OPERATING_CACHE", "/o"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(with(all), Some("/o".into()));
        assert_eq!(with(&all[1..]), Some("/x/operating".into()));
        assert_eq!(
            with(&[("OPERATING_CACHE", ""), ("HOME", "/h")]),
            Some("/h/.cache/operating".into())
        );
        assert_eq!(with(&[]), None);
    }
}
