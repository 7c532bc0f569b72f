//! The Rust files of the library, for tests that check its sources. Uses `std` only, so that these tests build quickly.

use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file of the library.
pub struct SourceFile {
    /// The path below `src`.
    pub path: PathBuf,
    pub text: String,
}

/// Every Rust file below `src`, sorted by path.
pub fn library_sources() -> Vec<SourceFile> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, Path::new(""), &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(src: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(src.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            collect(src, &path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(entry.path()).unwrap();
            files.push(SourceFile { path, text });
        }
    }
}
