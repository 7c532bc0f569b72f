//! No circle of imports connects files of different folders, so that a reader of a folder needs only the folders before
//! it. No circle connects files of one folder either, except through its `mod.rs`: a parent and its children may import
//! each other. The test reads the sources of the library without their unit tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use testbed::source_files::sources_below;

/// The path of a module from the crate root.
type Module = Vec<String>;

#[test]
fn no_circle_of_imports_crosses_folders() {
    let crate_ = library();
    assert!(crate_.files.len() > 300, "the sources are found");
    let edges: usize = crate_.imports().values().map(BTreeSet::len).sum();
    assert!(edges > 1_000, "{edges} imports are found");
    let circles = crate_.circles_across_folders();
    assert!(circles.is_empty(), "{}", circles.join("\n\n"));
}

#[test]
fn no_circle_of_imports_connects_files_of_one_folder() {
    let crate_ = library();
    let edges: usize = crate_.sibling_imports().values().map(BTreeSet::len).sum();
    assert!(edges > 200, "{edges} imports between siblings are found");
    let circles = crate_.circles_between_siblings();
    assert!(circles.is_empty(), "{}", circles.join("\n\n"));
}

#[test]
fn planted_circle_is_found() {
    let circles = |files: &[(&str, &str)]| planted(files).circles_across_folders().len();
    let hub = ("a/mod.rs", "mod one; use crate::b::Two; pub struct One;");
    assert_eq!(circles(&[hub, ("b.rs", "use super::a::{self, One};")]), 1);
    assert_eq!(
        circles(&[hub, ("b.rs", "fn f() { crate::a::go() }")]),
        1,
        "a path without use"
    );
    assert_eq!(circles(&[hub, ("b.rs", "// crate::a::One")]), 0);
    assert_eq!(
        circles(&[
            hub,
            ("b.rs", "#[cfg(test)]\nmod tests { use crate::a::One; }")
        ]),
        0
    );
    assert_eq!(
        circles(&[
            ("a/mod.rs", "mod one; mod two; pub use one::One;"),
            ("a/one.rs", "use super::two::Two;"),
            ("a/two.rs", "use super::One;"),
        ]),
        0,
        "a circle within one folder"
    );
    assert_eq!(
        circles(&[
            ("a/mod.rs", "mod one; pub use one::One;"),
            ("a/one.rs", "use crate::b::Two;"),
            ("b/mod.rs", "use crate::a::One;"),
        ]),
        1,
        "behind a re-export"
    );
}

#[test]
fn planted_circle_in_one_folder_is_found() {
    let circles = |files: &[(&str, &str)]| planted(files).circles_between_siblings();
    let one = ("a/one.rs", "use super::two::Two; pub struct One;");
    assert_eq!(
        circles(&[one, ("a/two.rs", "use super::one::One;")]),
        ["a/one.rs imports a/two.rs\na/two.rs imports a/one.rs"]
    );
    assert_eq!(
        circles(&[
            ("a/mod.rs", "mod one; mod two; pub use one::One;"),
            one,
            ("a/two.rs", "fn f() -> super::One { super::One }"),
        ])
        .len(),
        1,
        "behind a re-export of the parent"
    );
    assert_eq!(
        circles(&[
            one,
            ("a/two.rs", "use super::three::Three;"),
            ("a/three.rs", "use super::one::One;"),
        ])
        .len(),
        1,
        "over three files"
    );
    assert_eq!(
        circles(&[
            ("a/one.rs", "pub use super::two::Two; pub struct One;"),
            ("a/two.rs", "use super::one::One; pub struct Two;"),
        ])
        .len(),
        1,
        "by a re-export of a sibling"
    );
    assert_eq!(circles(&[one, ("a/two.rs", "pub struct Two;")]).len(), 0);
    assert_eq!(
        circles(&[
            ("a/mod.rs", "mod one; use one::One; pub struct Hub;"),
            ("a/one.rs", "use super::Hub;"),
        ])
        .len(),
        0,
        "a parent and its child"
    );
    assert_eq!(
        circles(&[
            ("a/mod.rs", "use one::One; pub struct Hub;"),
            ("a/one.rs", "use super::two::Two;"),
            ("a/two.rs", "use super::Hub;"),
        ])
        .len(),
        0,
        "a parent and two children"
    );
}

/// The sources of the library.
fn library() -> Crate {
    let mut crate_ = Crate::default();
    for file in sources_below("src") {
        crate_.add(&file.path, &file.text);
    }
    crate_
}

/// A crate of the given files, each with its path and its text.
fn planted(files: &[(&str, &str)]) -> Crate {
    let mut crate_ = Crate::default();
    for (file, source) in files {
        crate_.add(Path::new(file), source);
    }
    crate_
}

/// The modules that each module imports.
type Imports<'a> = BTreeMap<&'a Module, BTreeSet<&'a Module>>;

/// The modules of a crate, as text.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, Source>,
}

/// One file: its path, the paths that it names, and what it re-exports under which name.
struct Source {
    file: PathBuf,
    paths: Vec<Vec<String>>,
    re_exports: BTreeMap<String, Vec<String>>,
}

impl Crate {
    /// Adds a file, by its path in `src`.
    fn add(&mut self, file: &Path, text: &str) {
        let mut module: Module = file
            .with_extension("")
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        let is_test = module.iter().any(|name| name == "tests");
        // This file imports from every folder, for the fuzz targets. No other file of the library uses it.
        if is_test || module == ["fuzzing"] || module == ["main"] {
            return;
        }
        if ["mod", "lib"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        self.files.insert(module, Source::read(file, text));
    }

    fn imports(&self) -> Imports<'_> {
        let imports = self.files.iter().map(|(module, source)| {
            let found = source.paths.iter();
            let found = found.filter_map(|path| self.resolve(module, path, 0));
            (module, found.filter(|found| *found != module).collect())
        });
        imports.collect()
    }

    /// The module whose file defines the target of a path in `module`.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<&Module> {
        let mut at = module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let child = [module.as_slice(), &[first.to_owned()]].concat();
                self.files.get(&child)?;
            }
        }
        for name in rest {
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.files.contains_key(&child) {
                at = child;
                continue;
            }
            let re_export = self.files.get(&at)?.re_exports.get(name);
            if let Some(target) = re_export.filter(|_| depth < 8) {
                return self.resolve(&at, target, depth + 1);
            }
            break;
        }
        self.files.get_key_value(&at).map(|(module, _)| module)
    }

    /// The imports between files of the same folder, without its `mod.rs`.
    fn sibling_imports(&self) -> Imports<'_> {
        let mut imports = self.imports();
        imports.retain(|module, _| !self.is_parent(module));
        for (module, imported) in &mut imports {
            imported.retain(|other| {
                self.folder(other) == self.folder(module) && !self.is_parent(other)
            });
        }
        imports
    }

    /// Each circle whose files lie in several folders, as text.
    fn circles_across_folders(&self) -> Vec<String> {
        let imports = self.imports();
        let mut circles = circles(&imports);
        circles.retain(|circle| {
            let folders: BTreeSet<_> = circle.iter().map(|m| self.folder(m)).collect();
            folders.len() > 1
        });
        self.describe(&circles, &imports)
    }

    /// Each circle of files in the same folder that does not need its `mod.rs`, as text.
    fn circles_between_siblings(&self) -> Vec<String> {
        let imports = self.sibling_imports();
        self.describe(&circles(&imports), &imports)
    }

    /// The imports of each circle, one in a line.
    fn describe(&self, circles: &[BTreeSet<&Module>], imports: &Imports<'_>) -> Vec<String> {
        let describe = |circle: &BTreeSet<&Module>| {
            let lines = circle.iter().flat_map(|from| {
                let into = imports[*from].intersection(circle);
                into.map(|to| {
                    let (from, to) = (&self.files[*from].file, &self.files[*to].file);
                    format!("{} imports {}", from.display(), to.display())
                })
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        circles.iter().map(describe).collect()
    }

    fn is_parent(&self, module: &Module) -> bool {
        is_parent_file(&self.files[module].file)
    }

    fn folder(&self, module: &Module) -> &Path {
        self.files[module].file.parent().unwrap()
    }
}

impl Source {
    fn read(file: &Path, text: &str) -> Source {
        let code = without_comments_and_tests(text);
        // A `mod.rs` re-exports its children and does not need them for its own code.
        let is_parent = is_parent_file(file);
        let (mut paths, mut re_exports) = (Vec::new(), BTreeMap::new());
        let mut rest = code.as_str();
        let mut body = String::new();
        while let Some((before, tree)) = next_use(rest) {
            body.push_str(before);
            let is_public = before.trim_end().ends_with(')') || before.trim_end().ends_with("pub");
            let end = tree.find(';').unwrap_or(tree.len());
            for (path, name) in expand(&tree[..end], &[]) {
                if is_public {
                    re_exports.insert(name, path.clone());
                }
                if !is_public || !is_parent {
                    paths.push(path);
                }
            }
            rest = &tree[end..];
        }
        body.push_str(rest);
        paths.extend(paths_in(&body));
        Source {
            file: file.to_owned(),
            paths,
            re_exports,
        }
    }
}

fn is_parent_file(file: &Path) -> bool {
    let name = file.file_stem();
    name.is_some_and(|name| name == "mod" || name == "lib")
}

/// The largest sets of at least two modules in which each module reaches each other module by imports.
fn circles<'a>(imports: &Imports<'a>) -> Vec<BTreeSet<&'a Module>> {
    let reached: BTreeMap<_, _> = imports
        .keys()
        .map(|module| (*module, reachable(module, imports)))
        .collect();
    let mut known = BTreeSet::new();
    for (module, reaches) in &reached {
        let circle: BTreeSet<_> = reaches
            .iter()
            .filter(|other| reached[**other].contains(module))
            .copied()
            .collect();
        if circle.len() > 1 {
            known.insert(circle);
        }
    }
    known.into_iter().collect()
}

/// All modules that can be reached from one by imports.
fn reachable<'a>(from: &'a Module, imports: &Imports<'a>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for to in &imports[module] {
            if reached.insert(*to) {
                next.push(to);
            }
        }
    }
    reached
}

/// Splits at the next `use`: the text before it, and the tree behind it.
fn next_use(code: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(at) = code[from..].find("use ").map(|at| from + at) {
        if code[..at].chars().next_back().is_none_or(|c| !is_word(c)) {
            return Some((&code[..at], &code[at + "use ".len()..]));
        }
        from = at + 1;
    }
    None
}

/// The paths of a use tree, each with the name that it imports.
fn expand(tree: &str, prefix: &[String]) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let prefix = [prefix.to_vec(), names(head)].concat();
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        return split_at_commas(group)
            .iter()
            .flat_map(|item| expand(item, &prefix))
            .collect();
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let path = [prefix.to_vec(), names(path)].concat();
    let Some(last) = path.iter().rfind(|name| *name != "self").cloned() else {
        return Vec::new();
    };
    vec![(path, alias.unwrap_or(last))]
}

fn names(path: &str) -> Vec<String> {
    let names = path.split("::").map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn split_at_commas(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&group[start..]);
    items.retain(|item| !item.trim().is_empty());
    items
}

/// The paths of at least two names in code that is no `use`. `pub(in …)` grants and imports nothing.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let is_part = |c: char| is_word(c) || c == ':';
    let mut paths = Vec::new();
    let mut before = "";
    for part in code.split(|c| !is_part(c)).filter(|part| !part.is_empty()) {
        let names = names(part);
        if names.len() > 1 && before != "in" && !part.starts_with(':') {
            paths.push(names);
        }
        before = part;
    }
    paths
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_comments_and_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {");
    let code = &text[..end.unwrap_or(text.len())];
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}
