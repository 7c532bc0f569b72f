//! Finds the program of `lifecycle run` before the Pod goes off traffic for it.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Exit codes of shells for a program that is missing, and for one that can't be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Checks that the program can be executed. A name without a slash is looked up in `path`, the value of `PATH`.
///
/// # Errors
/// The exit code of a shell.
pub fn check(program: &OsStr, path: &OsStr) -> Result<(), u8> {
    let candidates: Vec<PathBuf> = match Path::new(program).components().count() > 1 {
        true => vec![program.into()],
        false => std::env::split_paths(path)
            .map(|dir| dir.join(program))
            .collect(),
    };
    let found = candidates.iter().filter_map(|file| file.metadata().ok());
    let modes: Vec<u32> = found
        .filter(std::fs::Metadata::is_file)
        .map(|file| file.permissions().mode())
        .collect();
    match modes.iter().any(|mode| mode & 0o111 != 0) {
        true => Ok(()),
        false if modes.is_empty() => Err(NOT_FOUND),
        false => Err(NOT_EXECUTABLE),
    }
}

/// The exit code for a program that did not start.
pub fn code_of(error: &std::io::Error) -> u8 {
    match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn program_is_looked_up_as_by_shell() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("backup");
        std::fs::write(&file, "").unwrap();
        let check = |name: &str| check(OsStr::new(name), dir.path().as_os_str());
        assert_eq!(check("backup"), Err(NOT_EXECUTABLE));
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, mode).unwrap();
        assert_eq!(check("backup"), Ok(()));
        assert_eq!(check(file.to_str().unwrap()), Ok(()));
        assert_eq!(check("absent"), Err(NOT_FOUND));
        assert_eq!(check("/absent/backup"), Err(NOT_FOUND));
    }
}
