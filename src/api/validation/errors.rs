//! Errors of fields.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;

/// Longest text of a value that an error shows, in characters.
const MAX_VALUE_CHARS: usize = 100;
/// Errors of one object that are kept and shown. An object of a megabyte can have a hundred thousand of them.
const MAX_ERRORS: usize = 100;

/// Something wrong with one field. Written as `spec.rules[0].name: "x": must be …`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// Path of the field, such as `spec.rules[0].name`.
    pub path: String,
    /// The value as written in JSON; `None` where something is missing.
    pub value: Option<String>,
    /// What is wrong, and what to do instead.
    pub problem: String,
}

impl FieldError {
    /// A text that is wrong; it is quoted as in JSON, and cut where it is long.
    pub fn new(path: impl Into<String>, value: &str, problem: impl Into<String>) -> Self {
        let quoted = format!("{:?}", truncate_value(value, MAX_VALUE_CHARS));
        FieldError {
            path: path.into(),
            value: Some(quoted),
            problem: problem.into(),
        }
    }

    /// A value of another type, as written in JSON; it is cut where it is long.
    pub fn with_raw_value(
        path: impl Into<String>,
        value: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        FieldError {
            path: path.into(),
            value: Some(truncate_value(&value.into(), MAX_VALUE_CHARS).into_owned()),
            problem: problem.into(),
        }
    }

    /// Something that is not there.
    pub fn missing_field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        FieldError {
            path: path.into(),
            value: None,
            problem: problem.into(),
        }
    }

    /// The same error of a field further down, below `parent`.
    pub fn under_parent(mut self, parent: &str) -> Self {
        self.path = format!("{parent}.{}", self.path);
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}: {value}: {}", self.path, self.problem),
            None => write!(f, "{}: {}", self.path, self.problem),
        }
    }
}

/// The beginning of a text, with dots where more follows.
pub fn truncate_value(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// What is wrong with an object, up to a hundred errors; who mends those is told of the next. Written as one line, separated by
/// semicolons.
#[derive(Clone, Debug, Default)]
pub struct FieldErrors {
    listed: Vec<FieldError>,
    mode: Mode,
}

/// What becomes of the errors that are added.
#[derive(Clone, Debug, Default)]
enum Mode {
    /// The first hundred are listed.
    #[default]
    List,
    /// All of them are recorded, and none is listed.
    Record(Recorded),
    /// Those that are not recorded are listed, up to a hundred, and up to a hundred of the others are kept.
    Forgive(Recorded, Vec<FieldError>),
}

/// Any number of errors by their hashes, which nobody can choose: an object of a megabyte can have a hundred thousand errors,
/// and two lists that end at a hundred can not be compared.
#[derive(Clone, Debug, Default)]
struct Recorded {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Recorded {
    fn add(&mut self, error: &FieldError) {
        self.hashes.insert(self.hasher.hash_one(error));
    }

    fn has(&self, error: &FieldError) -> bool {
        self.hashes.contains(&self.hasher.hash_one(error))
    }
}

impl FieldErrors {
    /// A list that leaves out the errors that `before` adds, however many there are: what was stored with a fault can be
    /// changed in other ways.
    pub fn ignoring_existing(before: impl FnOnce(&mut FieldErrors)) -> Self {
        let mut stored = FieldErrors {
            mode: Mode::Record(Recorded::default()),
            ..FieldErrors::default()
        };
        before(&mut stored);
        let recorded = match stored.mode {
            Mode::Record(recorded) | Mode::Forgive(recorded, _) => recorded,
            Mode::List => Recorded::default(),
        };
        FieldErrors {
            listed: Vec::new(),
            mode: Mode::Forgive(recorded, Vec::new()),
        }
    }

    /// Adds an error, unless there are enough.
    pub fn push(&mut self, error: FieldError) {
        match &mut self.mode {
            Mode::Record(recorded) => return recorded.add(&error),
            Mode::Forgive(recorded, forgiven) if recorded.has(&error) => {
                if forgiven.len() < MAX_ERRORS {
                    forgiven.push(error);
                }
                return;
            }
            Mode::Forgive(..) | Mode::List => {}
        }
        if self.listed.len() < MAX_ERRORS {
            self.listed.push(error);
        }
    }

    /// Adds errors until there are enough; what comes after them is not even made.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        let mut errors = errors.into_iter();
        while !self.is_full()
            && let Some(error) = errors.next()
        {
            self.push(error);
        }
    }

    /// Whether further errors are dropped.
    pub fn is_full(&self) -> bool {
        self.listed.len() >= MAX_ERRORS
    }

    /// The errors that were left out by [`FieldErrors::ignoring_existing`], up to a hundred.
    pub fn existing_errors(&self) -> &[FieldError] {
        match &self.mode {
            Mode::Forgive(_, forgiven) => forgiven,
            Mode::List | Mode::Record(_) => &[],
        }
    }
}

impl PartialEq for FieldErrors {
    fn eq(&self, other: &Self) -> bool {
        self.listed == other.listed
    }
}

impl Eq for FieldErrors {}

impl IntoIterator for FieldErrors {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.listed.into_iter()
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.listed.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        match self.is_full() {
            true => write!(f, "; only the first {MAX_ERRORS} errors are listed"),
            false => Ok(()),
        }
    }
}

impl std::error::Error for FieldErrors {}

impl From<FieldError> for FieldErrors {
    fn from(error: FieldError) -> Self {
        FieldErrors {
            listed: vec![error],
            mode: Mode::List,
        }
    }
}

impl Deref for FieldErrors {
    type Target = Vec<FieldError>;

    fn deref(&self) -> &Self::Target {
        &self.listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_field_the_value_and_the_remedy() {
        let mut errors = FieldErrors::from(
            FieldError::new("name", "a\"b\n", "must be plain").under_parent("spec.rules[0]"),
        );
        errors.push(FieldError::missing_field("spec.selector", "is required"));
        errors.push(FieldError::with_raw_value(
            "spec.replicas",
            "-1",
            "must be 0 or more",
        ));
        assert_eq!(
            errors.to_string(),
            "spec.rules[0].name: \"a\\\"b\\n\": must be plain; spec.selector: is required; \
             spec.replicas: -1: must be 0 or more"
        );
    }

    #[test]
    fn a_hundred_errors_are_kept_and_shown() {
        let mut errors = FieldErrors::default();
        errors
            .extend((0..150).map(|n| FieldError::missing_field(format!("a[{n}]"), "is required")));
        errors.push(FieldError::missing_field("b", "is required"));
        assert!(errors.is_full());
        let text = errors.to_string();
        let end = "a[99]: is required; only the first 100 errors are listed";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn errors_beyond_the_hundredth_are_compared() {
        let wrong = |range: std::ops::Range<usize>, errors: &mut FieldErrors| {
            errors
                .extend(range.map(|n| FieldError::missing_field(format!("a[{n}]"), "is required")));
        };
        let mut errors = FieldErrors::ignoring_existing(|stored| wrong(0..250, stored));
        wrong(0..250, &mut errors);
        assert!(errors.is_empty() && errors.existing_errors().len() == MAX_ERRORS);
        wrong(249..251, &mut errors);
        assert_eq!(errors.to_string(), "a[250]: is required");
        // What is mended makes no old error a new one.
        let mut errors = FieldErrors::ignoring_existing(|stored| wrong(0..250, stored));
        wrong(150..250, &mut errors);
        assert!(errors.is_empty());
    }

    #[test]
    fn a_long_value_is_cut() {
        let error = FieldError::new("a", &"é".repeat(200), "is long");
        assert_eq!(
            error.to_string(),
            format!("a: \"{}…\": is long", "é".repeat(100))
        );
        let error = FieldError::with_raw_value("a", "1".repeat(101), "is long");
        assert_eq!(
            error.to_string(),
            format!("a: {}…: is long", "1".repeat(100))
        );
    }
}
