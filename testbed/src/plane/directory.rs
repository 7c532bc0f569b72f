//! The directory of a plane. A lock shows whether the plane runs, so that the next process removes the files
//! of a killed one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::credentials::random_hex;
use crate::paths;

const LOCK: &str = "lock";

/// A locked directory, removed when dropped. The lock ends with the process at the latest.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Creates the directory of a new plane, with the given name or a random one.
    pub fn create(name: Option<&str>) -> Result<Self> {
        let root = root()?;
        let guard = guard(&root)?;
        sweep(&root, &guard)?;
        let name = match name {
            Some(name) => check_name(name)?.to_owned(),
            None => format!("process-{}-{}", std::process::id(), random_hex(4)?),
        };
        let path = root.join(&name);
        fs::create_dir_all(path.join("logs"))?;
        let lock = File::create(path.join(LOCK))?;
        if lock.try_lock().is_err() {
            bail!("a plane named {name} is up already; take another --name, or take it down first");
        }
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Under the guard, so that no process sees an incomplete directory.
        let _guard = self.path.parent().map(guard);
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The directory that contains the directories of all planes of this user.
pub fn root() -> Result<PathBuf> {
    let root = paths::cache()?.join("planes");
    fs::create_dir_all(&root).with_context(|| format!("creating {}", root.display()))?;
    Ok(root)
}

/// Directory of a named plane, whether it exists or not.
pub fn resolve_plane_directory(name: &str) -> Result<PathBuf> {
    Ok(root()?.join(check_name(name)?))
}

/// Names of the planes of running processes. Directories of dead processes are removed.
pub fn alive() -> Result<Vec<String>> {
    let root = root()?;
    let guard = guard(&root)?;
    sweep(&root, &guard)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&root)? {
        let entry = entry?;
        if entry.path().join(LOCK).is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Held while locks are checked: only one process at a time creates or removes directories, or checks a lock
/// by taking it for a moment.
fn guard(root: &Path) -> Result<File> {
    let guard = File::create(root.join(".guard"))?;
    guard.lock()?;
    Ok(guard)
}

fn is_held(path: &Path) -> bool {
    File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

/// Removes the directories of dead processes.
fn sweep(root: &Path, _guard: &File) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        // A directory without a lock file does not belong to a plane.
        if path.join(LOCK).is_file() && !is_held(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<&str> {
    let fits = !name.is_empty()
        && name.len() <= 40
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !fits {
        bail!("--name {name:?}: use 1 to 40 lower-case letters, digits and dashes");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sweep_takes_what_no_process_holds() {
        let root = tempfile::tempdir().unwrap();
        let (dead, alive, foreign) = (
            root.path().join("dead"),
            root.path().join("alive"),
            root.path().join("foreign"),
        );
        for dir in [&dead, &alive, &foreign] {
            fs::create_dir(dir).unwrap();
        }
        File::create(dead.join(LOCK)).unwrap();
        let lock = File::create(alive.join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        assert!(is_held(&alive) && !is_held(&dead));
        sweep(root.path(), &guard(root.path()).unwrap()).unwrap();
        assert!(!dead.exists() && alive.exists() && foreign.exists());
    }

    #[test]
    fn names_that_are_no_plain_directory_are_refused() {
        for bad in ["", "..", "a/b", "A", &"x".repeat(41)] {
            let error = check_name(bad).unwrap_err().to_string();
            assert!(error.starts_with("--name"), "{error}");
        }
        assert_eq!(check_name("default-2").unwrap(), "default-2");
    }
}
