//! No twelve lines of code stand twice. Blank lines, comments, imports and lines of punctuation do not count, and
//! neither do the types of the API, whose fields and derives are alike because the objects of Kubernetes are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;

use testbed::source_files::sources_below;

/// How many equal lines make a repetition.
const LENGTH: usize = 12;

/// What is searched, and what is not.
const SEARCHED: [&str; 4] = ["src", "testbed", "tests", "xtask"];
const EXEMPT: &str = "src/api/";

#[test]
fn no_twelve_lines_of_code_stand_twice() {
    let mut files = Vec::new();
    for folder in SEARCHED {
        for file in sources_below(folder) {
            files.push((format!("{folder}/{}", file.path.display()), file.text));
        }
    }
    files.retain(|(name, _)| !name.starts_with(EXEMPT));
    assert!(files.len() > 500, "the sources are found");
    let found = repetitions(&files);
    assert!(
        found.is_empty(),
        "write a function, a table or a type for what stands twice:\n{}",
        found.join("\n")
    );
}

#[test]
fn planted_repetition_is_found() {
    let code = |count: usize| (0..count).map(|n| format!("    call({n});\n")).collect();
    let find = |first: String, second: String| {
        repetitions(&[("a.rs".to_owned(), first), ("b.rs".to_owned(), second)])
    };
    let (long, short): (String, String) = (code(LENGTH + 2), code(LENGTH - 1));
    assert_eq!(
        find(format!("fn f() {{\n{long}}}\n"), long.clone()),
        ["a.rs:2-15 ~ b.rs:1-14"]
    );
    assert_eq!(
        find(long.replace('\n', "\n\n  // why\n}\n"), long.clone()).len(),
        1
    );
    assert_eq!(
        find(format!("{long}other();\n{long}"), String::new()),
        ["a.rs:1-14 ~ a.rs:16-29"]
    );
    let uncounted = "}\n\n/// Text\nuse a::{\n    b, c,\n};\n";
    for (first, second) in [
        (&short, &short),
        (&long, &long.replace("call(6)", "call(other)")),
        (
            &format!("{short}{}", uncounted.repeat(2)),
            &format!("{short}{}", uncounted.repeat(2)),
        ),
        (&"same();\n".repeat(LENGTH + 5), &String::new()),
    ] {
        let found = find(first.clone(), second.clone());
        assert!(found.is_empty(), "{first}{second}: {found:?}");
    }
}

/// The lines of a file that count.
struct Code<'a> {
    name: &'a str,
    /// The number of each line.
    numbers: Vec<usize>,
    lines: Vec<&'a str>,
}

impl Code<'_> {
    fn read<'a>(name: &'a str, text: &'a str) -> Code<'a> {
        let (mut numbers, mut lines) = (Vec::new(), Vec::new());
        let mut is_import = false;
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            is_import |= line.starts_with("use ") || line.starts_with("pub use ");
            let is_counted =
                !is_import && !line.starts_with("//") && line.contains(char::is_alphanumeric);
            if is_counted {
                numbers.push(number);
                lines.push(line);
            }
            is_import &= !line.ends_with(';');
        }
        Code {
            name,
            numbers,
            lines,
        }
    }

    fn place(&self, at: usize, length: usize) -> String {
        let (name, numbers) = (self.name, &self.numbers);
        format!("{name}:{}-{}", numbers[at], numbers[at + length - 1])
    }
}

/// Each pair of places that share at least [`LENGTH`] lines.
fn repetitions(files: &[(String, String)]) -> Vec<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| Code::read(name, text))
        .collect();
    let mut known: HashMap<&[&str], (&Code<'_>, usize)> = HashMap::new();
    let mut found = Vec::new();
    for file in &files {
        let mut end = 0;
        for (at, window) in file.lines.windows(LENGTH).enumerate() {
            let (other, from) = *known.entry(window).or_insert((file, at));
            let is_same_place = other.name == file.name && at < from + LENGTH;
            if at < end || is_same_place {
                continue;
            }
            let equal = file.lines[at..].iter().zip(&other.lines[from..]);
            let length = equal.take_while(|(line, other)| line == other).count();
            end = at + length;
            found.push(format!(
                "{} ~ {}",
                other.place(from, length),
                file.place(at, length)
            ));
        }
    }
    found
}
