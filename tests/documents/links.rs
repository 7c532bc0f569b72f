//! Every link leads to a file, and the book contains every page. No network is needed.

use std::path::{Component, Path, PathBuf};

use crate::markdown::{anchors, documents, parse, read, root, targets};

const SUMMARY: &str = "docs/SUMMARY.md";
const MOST_LINES_OF_README: usize = 150;

#[test]
fn every_link_leads_to_a_file_and_an_anchor() {
    let broken: Vec<String> = documents()
        .iter()
        .flat_map(|page| broken_links(page, &read(page)))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn planted_bad_links_are_found() {
    let page = Path::new("docs").join("planted.md");
    for link in [
        "missing.md",
        "../README.md#no-such-heading",
        "#no-such-heading",
        "../../outside.md",
    ] {
        let text = format!("# Planted\n\nSee [this]({link}).\n");
        let broken = broken_links(&page, &text);
        assert_eq!(broken, [format!("{}:3: {link}", page.display())]);
    }
    let sound =
        "# Planted\n\n[a](#planted), [b](https://example.com/x), [c](../README.md), `[d](x.md)`\n";
    assert_eq!(broken_links(&page, sound), Vec::<String>::new());
}

#[test]
fn book_has_every_page() {
    let summary = read(Path::new(SUMMARY));
    let listed: Vec<PathBuf> = parse(&summary)
        .prose
        .iter()
        .flat_map(|(_, line)| targets(line))
        .map(|target| Path::new("docs").join(target))
        .collect();
    let missing: Vec<PathBuf> = documents()
        .into_iter()
        .filter(|page| page.starts_with("docs") && page != Path::new(SUMMARY))
        .filter(|page| !listed.contains(page))
        .collect();
    assert!(missing.is_empty(), "add to {SUMMARY}: {missing:?}");
}

#[test]
fn readme_is_short() {
    let lines = read(Path::new("README.md")).lines().count();
    assert!(lines <= MOST_LINES_OF_README, "{lines} lines");
}

/// Links of a document without a target, each with its line.
fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (line, prose) in parse(text).prose {
        let broken_here = targets(prose).into_iter().filter(|t| !leads(page, text, t));
        broken.extend(broken_here.map(|t| format!("{}:{line}: {t}", page.display())));
    }
    broken
}

fn leads(page: &Path, text: &str, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true; // outside of the repository
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let directory = page.parent().unwrap_or(Path::new(""));
    let Some(file) = (if path.is_empty() {
        Some(page.to_owned())
    } else {
        normal(&directory.join(path))
    }) else {
        return false;
    };
    let exists = path.is_empty() || root().join(&file).exists();
    let has_anchor = || match (path.is_empty(), file.extension()) {
        (true, _) => anchors(text).iter().any(|a| a == anchor),
        (_, Some(e)) if e == "md" => anchors(&read(&file)).iter().any(|a| a == anchor),
        _ => true, // lines of a source
    };
    exists && (anchor.is_empty() || has_anchor())
}

/// The path without `..`; `None` if it leads out of the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    Some(normal)
}
