//! The Rust files of the repository, for tests that check its sources. Uses `std` only, so that these tests build
//! quickly.

use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file.
pub struct SourceFile {
    /// Its path below the folder that was read.
    pub path: PathBuf,
    pub text: String,
}

/// Every Rust file below a folder of the repository, sorted by path.
pub fn sources_below(folder: &str) -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
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
