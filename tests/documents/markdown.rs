//! The Markdown that the documents use: headings, links, anchors and fenced code blocks.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents outside of `docs`.
const AT_THE_TOP: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

/// The directory of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document as a path from the repository's directory.
pub fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = AT_THE_TOP.iter().map(PathBuf::from).collect();
    collect(Path::new("docs"), &mut found);
    collect(Path::new("examples"), &mut found);
    found.sort();
    found
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let path = directory.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// The text of a document.
pub fn read(path: &Path) -> String {
    let text = fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A fenced code block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The first word behind the fence.
    pub language: String,
    /// The HTML comment on the line before the fence.
    pub comment: Option<String>,
    /// The code without the indentation of the fence.
    pub text: String,
    /// Line of the fence, counted from 1.
    pub line: usize,
}

/// A document by its lines: prose, and code in blocks.
pub struct Parsed<'a> {
    /// Lines outside of code blocks with their numbers.
    pub prose: Vec<(usize, &'a str)>,
    pub blocks: Vec<Block>,
}

/// Splits a document into prose and code blocks.
pub fn parse(text: &str) -> Parsed<'_> {
    let mut parsed = Parsed {
        prose: Vec::new(),
        blocks: Vec::new(),
    };
    let mut open: Option<(Block, usize)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        match (&mut open, trimmed.strip_prefix("```")) {
            (Some(_), Some(_)) => parsed.blocks.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), None) => {
                block.text.push_str(line.get(*indent..).unwrap_or_default());
                block.text.push('\n');
            }
            (None, Some(info)) => {
                let block = Block {
                    language: info.split(' ').next().unwrap_or_default().to_owned(),
                    comment: comment(&parsed.prose),
                    text: String::new(),
                    line: number,
                };
                open = Some((block, line.len() - trimmed.len()));
            }
            (None, None) => parsed.prose.push((number, line)),
        }
    }
    parsed
}

/// The last line of prose, if it is an HTML comment.
fn comment(prose: &[(usize, &str)]) -> Option<String> {
    let lines = prose.iter().map(|(_, line)| line.trim());
    let last = lines.rev().find(|line| !line.is_empty())?;
    let inside = last.strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inside.trim().to_owned())
}

/// The anchors of a document: a slug for each heading as GitHub makes it, and every `id` of an HTML element.
pub fn anchors(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut slugs: HashMap<String, usize> = HashMap::new();
    for (_, line) in parse(text).prose {
        for part in line.split(" id=\"").skip(1) {
            found.extend(part.split('"').next().map(str::to_owned));
        }
        let Some(heading) = heading(line) else {
            continue;
        };
        let slug = slug(heading);
        let count = slugs.entry(slug.clone()).or_default();
        found.push(match *count {
            0 => slug,
            n => format!("{slug}-{n}"),
        });
        *count += 1;
    }
    found
}

/// The text of an ATX heading.
pub fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| text.trim())
}

/// The anchor that GitHub gives a heading.
pub fn slug(heading: &str) -> String {
    let mut slug = String::new();
    for c in shown(heading).to_lowercase().chars() {
        match c {
            ' ' => slug.push('-'),
            '-' | '_' => slug.push(c),
            c if c.is_alphanumeric() => slug.push(c),
            _ => {}
        }
    }
    slug
}

/// A heading without the targets of its links.
fn shown(heading: &str) -> String {
    let mut rest = heading;
    let mut shown = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        shown.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    shown + rest
}

/// Targets of the links in a line of prose. Code spans hold no links.
pub fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for prose in line.split('`').step_by(2) {
        let ends = prose.split("](").skip(1);
        found.extend(ends.filter_map(|end| end.split([')', ' ']).next()));
    }
    found
}

#[test]
fn headings_have_the_anchors_of_github() {
    for (heading, want) in [
        ("Coming from Kuperator", "coming-from-kuperator"),
        ("Why is my Pod waiting?", "why-is-my-pod-waiting"),
        ("Update, and restore", "update-and-restore"),
        ("`operating why`", "operating-why"),
        ("A [link](a.md#b) in it", "a-link-in-it"),
    ] {
        assert_eq!(slug(heading), want);
    }
    let text = "# A\n```sh\n# no heading\n```\n## A\n<a id=\"own\"></a>\n";
    assert_eq!(anchors(text), ["a", "a-1", "own"]);
}

#[test]
fn blocks_are_read_with_their_comments() {
    let text = "1. Item:\n\n   <!-- fragment of Role -->\n   ```yaml\n   a: 1\n     b: 2\n   ```\n";
    let want = Block {
        language: "yaml".into(),
        comment: Some("fragment of Role".into()),
        text: "a: 1\n  b: 2\n".into(),
        line: 4,
    };
    assert_eq!(parse(text).blocks, [want]);
}
