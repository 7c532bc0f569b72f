//! The parameters of a watch.

/// The default life of a watch, in seconds: the API server ends it after this long. The next watch continues where it
/// stopped.
pub const LONG_WATCH_SECONDS: u32 = 290;
/// The objects to watch.
#[derive(Clone, Debug)]
pub struct Source {
    /// API path, such as `/api/v1/pods`.
    pub path: &'static str,
    /// Label selector, if any.
    pub labels: Option<&'static str>,
    /// Field selector, if any.
    pub fields: Option<String>,
    /// The life of one watch in seconds: usually [`LONG_WATCH_SECONDS`].
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
