//! Errors of fields.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;

/// Maximum length of a value that an error shows, in characters.
const MAX_VALUE_CHARS: usize = 100;
/// Maximum number of errors of one object that are listed. An object of a megabyte can have a hundred
/// thousand errors.
const MAX_ERRORS: usize = 100;

/// An error in one field. Written as `spec.rules[0].name: "x": must be …`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// Path of the field, such as `spec.rules[0].name`.
    pub path: String,
    /// The value as written in JSON; `None` if the value is missing.
    pub value: Option<String>,
    /// The problem and the remedy.
    pub problem: String,
}

impl FieldError {
    /// An invalid text, quoted as in JSON and truncated if it is long.
    pub fn new(path: impl Into<String>, value: &str, problem: impl Into<String>) -> Self {
        let quoted = format!("{:?}", truncate_value(value, MAX_VALUE_CHARS));
        FieldError {
            path: path.into(),
            value: Some(quoted),
            problem: problem.into(),
        }
    }

    /// An invalid value of another type, as written in JSON and truncated if it is long.
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

    /// A missing value.
    pub fn missing_field(path: impl Into<String>, problem: impl Into<String>) -> Self {
        FieldError {
            path: path.into(),
            value: None,
            problem: problem.into(),
        }
    }

    /// The same error with its path below `parent`.
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

/// The first characters of a text, followed by an ellipsis if the text is longer.
pub fn truncate_value(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// The errors of an object, up to a hundred; after these are corrected, the next ones are listed. Written as
/// one line, separated by semicolons.
#[derive(Clone, Debug, Default)]
pub struct FieldErrors {
    listed: Vec<FieldError>,
    mode: Mode,
}

/// How added errors are treated.
#[derive(Clone, Debug, Default)]
enum Mode {
    /// Lists the first hundred errors.
    #[default]
    List,
    /// Records all errors and lists none.
    Record(Recorded),
    /// Lists the errors that were not recorded, up to a hundred, and stores up to a hundred of the recorded
    /// ones apart.
    Forgive(Recorded, Vec<FieldError>),
}

/// Any number of errors, as hashes with a random key so that nobody can choose them. An object of a megabyte
/// can have a hundred thousand errors, and lists that end after a hundred errors cannot be compared.
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
    /// A list that leaves out the errors that `before` adds, however many there are: an object that was
    /// stored with an error can be changed in other fields.
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

    /// Adds an error unless the list is full.
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

    /// Adds errors until the list is full. Errors after that are not computed.
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

    /// Up to a hundred of the errors that [`FieldErrors::ignoring_existing`] left out.
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
    fn line_names_field_value_and_remedy() {
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
    fn one_hundred_errors_are_kept_and_shown() {
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
    fn errors_beyond_display_limit_are_still_compared() {
        let wrong = |range: std::ops::Range<usize>, errors: &mut FieldErrors| {
            errors
                .extend(range.map(|n| FieldError::missing_field(format!("a[{n}]"), "is required")));
        };
        let mut errors = FieldErrors::ignoring_existing(|stored| wrong(0..250, stored));
        wrong(0..250, &mut errors);
        assert!(errors.is_empty() && errors.existing_errors().len() == MAX_ERRORS);
        wrong(249..251, &mut errors);
        assert_eq!(errors.to_string(), "a[250]: is required");
        // A correction of one error does not make a stored error a new one.
        let mut errors = FieldErrors::ignoring_existing(|stored| wrong(0..250, stored));
        wrong(150..250, &mut errors);
        assert!(errors.is_empty());
    }

    #[test]
    fn long_value_is_cut() {
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
