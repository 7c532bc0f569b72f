//! Every citation in code and documents names something that exists: `contract 6.8` and `contract Q45` a section or
//! a quirk of `docs/reference/contract.md`, `ADR 9` a file of `docs/adr`, `docs/….md` a file, and a link in a Markdown
//! file its target. The files that `SECURITY.md` and the workflows name exist, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The page with the sections and quirks that citations name.
const CONTRACT: &str = "docs/reference/contract.md";

/// The files and folders to search, below the root of the repository.
const SEARCHED: &[&str] = &[
    "src",
    "tests",
    "xtask",
    "fuzz",
    "docs",
    "examples",
    "integrations",
    "manifests",
    "testbed",
    "webhook-config",
    "CONTRIBUTING.md",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
];

/// Folders of build output and of inputs for fuzzing.
const SKIPPED: &[&str] = &["target", "corpus", "artifacts"];

#[test]
fn every_citation_resolves() {
    let known = Known::read_from(root());
    let mut found = Found::default();
    for file in SEARCHED.iter().flat_map(|name| texts(&root().join(name))) {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap();
        if name == "tests/citations.rs" {
            continue; // has wrong citations on purpose
        }
        let text = fs::read_to_string(&file).unwrap();
        found.add(read(&known, name, &text));
    }
    assert!(
        found.errors.is_empty(),
        "{} citations lead nowhere:\n{}",
        found.errors.len(),
        found.errors.join("\n")
    );
    assert!(
        found.contract > 100 && found.adr > 20 && found.files > 50,
        "too few citations, so the search must be broken: {found:?}"
    );
}

#[test]
fn no_section_and_no_quirk_is_defined_twice() {
    let text = fs::read_to_string(root().join(CONTRACT)).unwrap();
    let mut known = BTreeSet::new();
    let twice: Vec<_> = text
        .lines()
        .filter_map(defined_id)
        .filter(|id| !known.insert(*id))
        .collect();
    let none: Vec<&str> = Vec::new();
    assert_eq!(twice, none, "in {CONTRACT}");
}

#[test]
fn wrong_citation_is_found() {
    for (file, text, expected) in [
        ("src/a.rs", "/// See contract 6.99.", "no section 6.99"),
        ("src/a.rs", "/// (contract 99)", "no section 99"),
        ("src/a.rs", "/// (contract Q999).", "no quirk Q999"),
        (
            "src/a.rs",
            "/// a line that ends in contract\n/// 6.99, as comments do",
            "no section 6.99",
        ),
        ("src/a.rs", "// a bare Q45", "write `contract Q45`"),
        ("src/a.rs", "// (contract Q44, Q45)", "write `contract Q45`"),
        ("src/a.rs", "// (contract Q44/Q45)", "write `contract Q45`"),
        (
            "src/a.rs",
            "// contract 6.1 and 6.5",
            "write `contract 6.5`",
        ),
        ("src/a.rs", "// (contract 6.9, 2.4)", "write `contract 2.4`"),
        ("src/a.rs", "/// Contract 6.8", "write `contract 6.8`"),
        (
            "src/a.rs",
            "// contract section 6.8",
            "write `contract 6.8`",
        ),
        ("docs/a.md", "as in ADR 999.", "no ADR 999"),
        ("docs/a.md", "as in ADRs 1 and 2", "write `ADR 1`"),
        ("src/a.rs", "//! see docs/no-such-page.md.", "no file"),
        (
            "src/a.rs",
            "//! (docs/adr/0001-another-title.md)",
            "no file",
        ),
        ("src/a.rs", "//! (docs/adr/0999)", "no ADR 999"),
        ("docs/a.md", "[rights](rigths.md#who)", "no target"),
        ("README.md", "[folder](docs/no/)", "no target"),
    ] {
        let errors = read(&Known::read_from(root()), file, text).errors;
        assert!(
            errors.iter().any(|error| error.contains(expected)),
            "{text:?}: {errors:?}, and not {expected:?}"
        );
    }
}

#[test]
fn right_citation_passes() {
    for (file, text, count) in [
        (
            "src/a.rs",
            "/// (contract 6.8, contract Q45), contract 3.2 row 12.",
            3,
        ),
        ("src/a.rs", "//! in contract\n//! 2.2).", 1),
        ("src/a.rs", "/// the contract has 2 parties", 0),
        (
            "docs/a.md",
            "[ADR 9](adr/0009-collaset-is-a-pure-plan.md)",
            2,
        ),
        ("README.md", "([docs/adr](docs/adr), [top](#top))", 1),
        ("src/a.rs", "see docs/adr/0009 and docs/cli.md.", 2),
        ("src/a.rs", "https://example.com/docs/no.md", 0),
        ("docs/reference/contract.md", "| Q45 | volumes |", 0),
    ] {
        let found = read(&Known::read_from(root()), file, text);
        let none: Vec<String> = Vec::new();
        assert_eq!(found.errors, none, "{text:?}");
        let all = found.contract + found.adr + found.files;
        assert_eq!(all, count, "{text:?}");
    }
}

/// The targets of citations.
struct Known {
    /// Sections and quirks of the contract: `6.8`, `Q45`.
    contract: BTreeSet<String>,
    /// Numbers of the ADRs.
    adrs: BTreeSet<u32>,
}

impl Known {
    fn read_from(root: &Path) -> Known {
        let text = fs::read_to_string(root.join(CONTRACT)).unwrap();
        let adrs = fs::read_dir(root.join("docs/adr")).unwrap();
        Known {
            contract: text
                .lines()
                .filter_map(defined_id)
                .map(str::to_owned)
                .collect(),
            adrs: adrs
                .filter_map(|entry| entry.unwrap().file_name().to_str()?.get(..4)?.parse().ok())
                .collect(),
        }
    }
}

/// The number of citations in a text, and the errors of those that are wrong.
#[derive(Debug, Default)]
struct Found {
    contract: usize,
    adr: usize,
    files: usize,
    errors: Vec<String>,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.contract += other.contract;
        self.adr += other.adr;
        self.files += other.files;
        self.errors.extend(other.errors);
    }
}

/// The section or quirk that a line of the contract defines: a heading `### 6.8 …`, or a row `| Q45 | …`.
fn defined_id(line: &str) -> Option<&str> {
    if line.starts_with('#') {
        let title = line.trim_start_matches('#').trim_start();
        let id = title.split_whitespace().next()?.trim_end_matches('.');
        return (section(id) == id).then_some(id);
    }
    let id = line.strip_prefix("| ")?.split(" |").next()?;
    (quirk(id) == id).then_some(id)
}

/// Finds the citations in the text of `file`, a path below the root.
fn read(known: &Known, file: &str, text: &str) -> Found {
    let mut found = Found::default();
    let words = numbered_words(text);
    let mut previous = "";
    for (at, (line, word)) in words.iter().enumerate() {
        let hints = ["contract", "Contract", "ADR", "docs/", "Q"];
        // A fast path: most words contain no hint of a citation.
        if hints.iter().any(|hint| word.contains(hint)) {
            let next = |n: usize| words.get(at + n).map_or("", |(_, word)| *word);
            let context = Context {
                previous,
                next: [next(1), next(2), next(3)],
                is_definition: file == CONTRACT && previous == "|",
            };
            let mut errors = read_contract_citation(known, word, &context, &mut found);
            errors.extend(read_adr_citation(known, word, &context, &mut found));
            errors.extend(read_document_paths(known, word, &mut found));
            let place = |error| format!("{file}:{line}: {error}");
            found.errors.extend(errors.into_iter().map(place));
        }
        previous = word;
    }
    if Path::new(file).extension().is_some_and(|e| e == "md") {
        read_links(file, text, &mut found);
    }
    found
}

/// The words around a word.
struct Context<'a> {
    previous: &'a str,
    next: [&'a str; 3],
    /// The word begins a row of the contract that defines a quirk.
    is_definition: bool,
}

/// Reads `contract 6.8` and `contract Q45`. Returns the errors of the citation, and of a quirk without the word
/// `contract`.
fn read_contract_citation(
    known: &Known,
    word: &str,
    context: &Context<'_>,
    found: &mut Found,
) -> Vec<String> {
    let [next, after, third] = context.next;
    let bare = trim_opening_marks(word);
    if bare != "contract" && bare != "Contract" {
        return bare_quirks(word, context);
    }
    let cited = match next {
        "section" | "sections" => leading_id(after),
        next => leading_id(next),
    };
    if cited.is_empty() {
        return Vec::new(); // here the word has its usual meaning
    }
    found.contract += 1;
    let error = if bare == "Contract" || next.starts_with("section") {
        Some(format!("write `contract {cited}`"))
    } else if !known.contract.contains(cited) {
        let kind = match cited.starts_with('Q') {
            true => "quirk",
            false => "section",
        };
        Some(format!("no {kind} {cited} in {CONTRACT}"))
    } else {
        continued_section(next, after, third).map(|more| format!("write `contract {more}`"))
    };
    error.into_iter().collect()
}

/// Errors for each quirk in a word without the word `contract` before it.
fn bare_quirks(word: &str, context: &Context<'_>) -> Vec<String> {
    let parts = word.split(|c: char| !c.is_alphanumeric() && c != '_');
    let bare = parts.enumerate().filter(|(n, part)| {
        let is_cited = trim_opening_marks(context.previous) == "contract" && *n == 0;
        !part.is_empty() && quirk(part) == *part && !is_cited && !context.is_definition
    });
    bare.map(|(_, part)| format!("write `contract {part}`"))
        .collect()
}

/// Reads `ADR 9`.
fn read_adr_citation(
    known: &Known,
    word: &str,
    context: &Context<'_>,
    found: &mut Found,
) -> Option<String> {
    let number = digits(context.next[0]);
    match trim_opening_marks(word) {
        _ if number.is_empty() => None,
        "ADR" => {
            found.adr += 1;
            (!has_adr(known, number)).then(|| format!("no ADR {number} in docs/adr"))
        }
        "ADRs" => Some(format!("write `ADR {number}` for each")),
        _ => None,
    }
}

/// Reads the paths of documents in a word.
fn read_document_paths(known: &Known, word: &str, found: &mut Found) -> Vec<String> {
    let mut errors = Vec::new();
    for path in documents(word) {
        found.files += 1;
        match path.strip_prefix("docs/adr/") {
            Some(number) if number.len() == 4 && digits(number) == number => {
                if !has_adr(known, number) {
                    let number = number.trim_start_matches('0');
                    errors.push(format!("no ADR {number} in docs/adr"));
                }
            }
            _ if root().join(path).is_file() => {}
            _ => errors.push(format!("no file {path}")),
        }
    }
    errors
}

/// Reads the links of a Markdown file.
fn read_links(file: &str, text: &str, found: &mut Found) {
    for (line, text) in text.lines().enumerate() {
        for target in links(text) {
            found.files += 1;
            let from = Path::new(file).parent().unwrap_or(Path::new(""));
            if !root().join(from).join(target).exists() {
                let error = format!("{file}:{}: no target of the link {target}", line + 1);
                found.errors.push(error);
            }
        }
    }
}

fn has_adr(known: &Known, number: &str) -> bool {
    number.parse().is_ok_and(|n| known.adrs.contains(&n))
}

/// The words of a text, each with the number of its line, without comment markers, because a citation may continue on
/// the next line.
fn numbered_words(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate();
    let words = lines.flat_map(|(n, line)| {
        let line = line.trim_start();
        let leaders = ["///", "//!", "//", "# "];
        let comment = leaders.iter().find_map(|leader| line.strip_prefix(leader));
        let is_heading = line.starts_with('#');
        let words = match comment {
            Some(rest) if !is_heading => rest,
            _ => line,
        };
        words.split_whitespace().map(move |word| (n + 1, word))
    });
    words.collect()
}

/// Removes punctuation before the first letter or digit of a word.
fn trim_opening_marks(word: &str) -> &str {
    word.trim_start_matches(|c: char| !c.is_alphanumeric())
}

/// The section or quirk at the beginning of a word; empty if there is none.
fn leading_id(word: &str) -> &str {
    match quirk(word) {
        "" => section(word),
        quirk => quirk,
    }
}

/// Returns `6.8` for `6.8).`; empty if the word begins otherwise.
fn section(word: &str) -> &str {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.');
    let id = word[..end.unwrap_or(word.len())].trim_end_matches('.');
    let parts = id.split('.').all(|part| !part.is_empty());
    let rest = word[id.len()..].chars().next();
    if parts && !rest.is_some_and(char::is_alphanumeric) {
        id
    } else {
        ""
    }
}

/// Returns `Q45` for `Q45):`; empty if the word begins otherwise.
fn quirk(word: &str) -> &str {
    let number = word.strip_prefix('Q').map_or("", digits);
    let end = 1 + number.len();
    let letter = word.get(end..).and_then(|rest| rest.chars().next());
    let end = end + usize::from(letter.is_some_and(|c| c.is_ascii_lowercase()));
    let rest = word.get(end..).and_then(|rest| rest.chars().next());
    if number.is_empty() || rest.is_some_and(char::is_alphanumeric) {
        ""
    } else {
        &word[..end]
    }
}

fn digits(word: &str) -> &str {
    let end = word.find(|c: char| !c.is_ascii_digit());
    &word[..end.unwrap_or(word.len())]
}

/// The section that follows a cited section in a list, without the word before it: `contract 6.1 and 6.5`.
fn continued_section<'a>(cited: &str, next: &'a str, after: &'a str) -> Option<&'a str> {
    let more = match next {
        "and" | "or" | "to" => section(after),
        _ if cited.ends_with(',') => section(next),
        _ => "",
    };
    more.contains('.').then_some(more)
}

/// Paths `docs/….md` and `docs/adr/NNNN` in a word. A part of a URL or of another path does not count.
fn documents(word: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let mut found = Vec::new();
    for (at, _) in word.match_indices("docs/") {
        if word[..at].ends_with(is_part) {
            continue;
        }
        let path = &word[at..];
        let end = path.find(|c: char| !is_part(c)).unwrap_or(path.len());
        let path = path[..end].trim_end_matches('.');
        let number = path.strip_prefix("docs/adr/").map_or("", digits);
        if number.len() == 4 || path.ends_with(".md") {
            found.push(path);
        }
    }
    found
}

/// Targets of the links of a line to files of the repository, without the part behind `#`.
fn links(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

/// The text files below a path, or the file itself.
fn texts(path: &Path) -> Vec<PathBuf> {
    let named = |names: &[&str], name: Option<&std::ffi::OsStr>| {
        name.and_then(|n| n.to_str())
            .is_some_and(|n| names.contains(&n))
    };
    if path.is_file() {
        let is_text = named(&["rs", "md", "yaml", "toml", "txt"], path.extension());
        return is_text.then(|| path.to_owned()).into_iter().collect();
    }
    if named(SKIPPED, path.file_name()) {
        return Vec::new();
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        files.extend(texts(&entry.unwrap().path()));
    }
    files.sort();
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The tests that SECURITY.md names, each a file or a directory in `tests`, or a path of the repository.
#[test]
fn tests_that_the_threat_model_names_exist() {
    let root = root();
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let mut named = 0;
    for cell in cells {
        let mut directory = "";
        for name in cell.split('`').skip(1).step_by(2) {
            let own = root.join(name);
            let (parent, _) = name.split_once('/').unwrap_or((directory, name));
            let file = name.rsplit('/').next().unwrap();
            let of_tests = root.join("tests").join(parent).join(format!("{file}.rs"));
            let whole = root.join("tests").join(name);
            assert!(
                own.exists() || of_tests.exists() || whole.exists(),
                "{name}"
            );
            directory = if name.contains('/') {
                parent
            } else {
                directory
            };
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

/// The paths that the workflows of CI name, comments aside.
#[test]
fn paths_that_the_workflows_name_exist() {
    let root = root();
    let mut named = 0;
    for entry in fs::read_dir(root.join(".github/workflows")).unwrap() {
        let workflow = entry.unwrap().path();
        let text = fs::read_to_string(&workflow).unwrap();
        for path in text.lines().flat_map(named_paths) {
            assert!(exists(root, path), "{}: {path}", workflow.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}

/// The words of a line that are paths in the repository. Absolute paths and words with a variable are left out.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split(" #").next().unwrap();
    let code = if code.trim_start().starts_with('#') {
        ""
    } else {
        code
    };
    let words = code.split(|c: char| c.is_whitespace() || "'\"(),;`".contains(c));
    words.filter(|word| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/*-".contains(c);
        let is_file = [".toml", ".lock", ".rs", ".mod", ".sum"]
            .iter()
            .any(|extension| word.ends_with(extension));
        word.chars().all(is_plain) && !word.starts_with('/') && (is_file || word.contains('/'))
    })
}

/// Whether a path exists, or a file that fits a pattern such as `testbed/plane/**/*.go`.
fn exists(root: &Path, path: &str) -> bool {
    let Some((folder, pattern)) = path.split_once("**") else {
        return root.join(path).exists();
    };
    let name = pattern.trim_start_matches('/');
    let fits = |file: &Path| match name.strip_prefix('*') {
        Some(end) => file.to_string_lossy().ends_with(end),
        None => name.is_empty() || file.ends_with(name),
    };
    fits_any(&root.join(folder), &fits)
}

fn fits_any(folder: &Path, fits: &dyn Fn(&Path) -> bool) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().path())
        .any(|path| match path.is_dir() {
            true => fits_any(&path, fits),
            false => fits(&path),
        })
}
