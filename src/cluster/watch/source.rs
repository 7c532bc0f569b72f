//! What a watch asks the API server for.

/// The API server ends a watch after this long if nothing else is said; the next one continues where it stopped.
pub const LONG_WATCH_SECONDS: u32 = 290;
/// What to watch.
#[derive(Clone, Debug)]
pub struct Source {
    /// API path, e.g. `/api/v1/pods`.
    pub path: &'static str,
    /// Label selector, if any.
    pub labels: Option<&'static str>,
    /// Field selector, if any.
    pub fields: Option<String>,
    /// How long one watch lives, in seconds: usually [`LONG`].
    pub seconds: u32,
}

impl Source {
    /// All objects of a kind.
    pub const fn from_path(path: &'static str) -> Source {
        Source {
            path,
            labels: None,
            fields: None,
            seconds: LONG_WATCH_SECONDS,
        }
    }
}
