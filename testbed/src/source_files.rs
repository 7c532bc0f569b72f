//! The Rust files of the repository, for tests that check its sources.
#![allow(clippy::unwrap_used)] // a test fails by a panic

use std::fs;
use std::path::{Path, PathBuf};

use crate::paths;

/// One Rust file.
#[derive(Debug)]
pub struct SourceFile {
    /// Its path below the folder that was read.
    pub path: PathBuf,
    /// Its contents.
    pub text: String,
}

/// Every Rust file below a folder of the repository, sorted by path.
///
/// # Panics
/// When a file cannot be read.
#[must_use]
pub fn sources_below(folder: &str) -> Vec<SourceFile> {
    let root = paths::repository().join(folder);
    let mut files = Vec::new();
    collect(&root, Path::new(""), &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(entry.path()).unwrap();
            files.push(SourceFile { path, text });
        }
    }
}
