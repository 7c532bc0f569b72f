//! The size of the server: lines of Rust code without tests, for each folder of `src`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testbed::paths;

use super::report::Report;

/// Adds a figure for each folder of `src`, and the total. Files directly in `src` count as one folder.
pub fn measure(report: &mut Report) -> Result<()> {
    let src = paths::repository().join("src");
    let mut texts = BTreeMap::new();
    read_sources(&src, &mut texts)?;
    let sizes = count_folders(&src, &texts);
    for (folder, lines) in &sizes {
        report.add(format!("lines of code in {folder}"), lines.to_string());
    }
    let total: usize = sizes.values().sum();
    report.add("lines of code in all", total.to_string());
    Ok(())
}

/// The lines of code by folder of `src`. `texts` has the source files by path.
fn count_folders(src: &Path, texts: &BTreeMap<PathBuf, String>) -> BTreeMap<String, usize> {
    let mut test_modules = BTreeSet::new();
    for (path, text) in texts {
        let (_, names) = strip_tests(text);
        test_modules.extend(names.iter().map(|name| module_path(path, name)));
    }
    let mut sizes = BTreeMap::new();
    for (path, text) in texts {
        let module = path.with_extension("");
        if module.ancestors().any(|above| test_modules.contains(above)) {
            continue;
        }
        let folder = path.strip_prefix(src).unwrap_or(path).parent();
        let folder = match folder.and_then(|folder| folder.iter().next()) {
            Some(folder) => format!("src/{}", folder.to_string_lossy()),
            None => "src itself".to_owned(),
        };
        let (lines, _) = strip_tests(text);
        let count = lines.into_iter().filter(|line| is_code(line)).count();
        *sizes.entry(folder).or_default() += count;
    }
    sizes
}

fn read_sources(folder: &Path, texts: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            texts.insert(path, text);
        }
    }
    Ok(())
}

/// The path, without its extension, of the module `name` that the file at `path` declares.
fn module_path(path: &Path, name: &str) -> PathBuf {
    let is_root = path
        .file_stem()
        .is_some_and(|stem| ["mod", "lib", "main"].iter().any(|root| stem == *root));
    let parent = match is_root {
        true => path.parent().unwrap_or(path).to_owned(),
        false => path.with_extension(""),
    };
    parent.join(name)
}

/// The lines outside of items with `#[cfg(test)]`, and the names of the modules in other files that have this
/// attribute. The text must have the format of rustfmt.
fn strip_tests(text: &str) -> (Vec<&str>, Vec<String>) {
    let (mut code, mut modules) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            code.push(line);
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        for line in lines.by_ref() {
            let item = line.trim_start();
            if let Some((_, name)) = item
                .strip_suffix(';')
                .and_then(|item| item.split_once("mod "))
            {
                modules.push(name.to_owned());
            }
            let is_item_line = line.strip_prefix(indent).is_some_and(|rest| rest == item);
            if is_item_line && line.ends_with(['}', ';', ',']) {
                break;
            }
        }
    }
    (code, modules)
}

fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_tests_do_not_count() {
        let rules = "//! Rules.\n\nfn one() {\n    // Why.\n    two();\n}\n\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse a::b;\n";
        let pod =
            "fn one() {}\n\n#[cfg(test)]\nmod tests {\n    fn test() {\n    }\n}\nfn two() {}\n";
        let texts = BTreeMap::from(
            [
                ("/src/domain/rules/mod.rs", rules),
                ("/src/domain/rules/tests/mod.rs", "fn test() {}\n"),
                ("/src/domain/pod.rs", pod),
                ("/src/lib.rs", "pub mod domain;\n"),
            ]
            .map(|(path, text)| (PathBuf::from(path), text.to_owned())),
        );
        let expected = [("src itself".to_owned(), 1), ("src/domain".to_owned(), 5)];
        assert_eq!(
            count_folders(Path::new("/src"), &texts),
            BTreeMap::from(expected)
        );
    }
}
