//! Where credentials come from, and when they are fetched again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use traffic::AdapterError;

use crate::oidc::Oidc;
use crate::secret::{Credentials, Secret};

/// How long files are not read again.
const FILES: Duration = Duration::from_secs(5);
/// Pause after credentials could not be fetched, or were refused although they were new.
const PAUSE: Duration = Duration::from_secs(5);
/// Largest file.
const LARGEST: usize = 64 * 1024;

/// Where credentials come from.
pub(crate) enum Source {
    /// Files, which may change at any time, for example those of a mounted Secret.
    Files {
        key_id: PathBuf,
        key_secret: PathBuf,
        token: Option<PathBuf>,
    },
    /// The environment, which does not change.
    Fixed(Credentials),
    /// A role that the holder of an OIDC token assumes.
    Oidc(Box<Oidc>),
}

/// Credentials with their times.
pub(crate) struct Fetched {
    pub credentials: Credentials,
    /// When to fetch them again; `None`: never.
    pub renew_at: Option<Instant>,
    /// When they end. Until then they are used if new ones can't be fetched.
    pub dead_at: Option<Instant>,
}

/// Keeps credentials and fetches them again in time. Only one fetch is under way.
pub(crate) struct Store {
    source: Source,
    state: tokio::sync::Mutex<State>,
    /// Whether the current credentials were accepted since they were fetched.
    worked: AtomicBool,
}

#[derive(Default)]
struct State {
    current: Option<Fetched>,
    fetched_at: Option<Instant>,
    failed: Option<(Instant, AdapterError)>,
}

impl Store {
    pub(crate) fn new(source: Source) -> Store {
        Store {
            source,
            state: tokio::sync::Mutex::default(),
            worked: AtomicBool::new(false),
        }
    }

    /// The credentials for a call.
    ///
    /// # Errors
    /// Why there are none. The text names files and fields, never their contents.
    pub(crate) async fn get(&self) -> Result<Credentials, AdapterError> {
        let mut state = self.state.lock().await;
        let now = Instant::now();
        if let Some(current) = &state.current
            && current.renew_at.is_none_or(|at| now < at)
        {
            return Ok(current.credentials.clone());
        }
        let recent = state.failed.clone().filter(|(at, _)| now < *at + PAUSE);
        let error = match recent {
            Some((_, error)) => error,
            None => match self.source.fetch().await {
                Ok(fetched) => {
                    let credentials = fetched.credentials.clone();
                    self.worked.store(false, Ordering::Relaxed);
                    *state = State {
                        current: Some(fetched),
                        fetched_at: Some(now),
                        failed: None,
                    };
                    return Ok(credentials);
                }
                Err(error) => {
                    state.failed = Some((now, error.clone()));
                    error
                }
            },
        };
        match &state.current {
            Some(current) if current.dead_at.is_some_and(|at| now < at) => {
                Ok(current.credentials.clone())
            }
            _ => Err(error),
        }
    }

    /// The API has accepted the credentials.
    pub(crate) fn accepted(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    /// The API has refused these credentials. Returns whether a repetition with other credentials makes sense. New
    /// credentials that are refused at once are kept for a while; else each call would fetch others.
    pub(crate) async fn refused(&self, credentials: &Credentials) -> bool {
        let mut state = self.state.lock().await;
        let is_current = state
            .current
            .as_ref()
            .is_some_and(|current| current.credentials == *credentials);
        if !is_current {
            return true;
        }
        let is_old = state.fetched_at.is_none_or(|at| at.elapsed() >= PAUSE);
        let may_fetch = match self.source {
            Source::Files { .. } => true,
            Source::Fixed(_) => false,
            Source::Oidc(_) => is_old || self.worked.load(Ordering::Relaxed),
        };
        if may_fetch {
            state.current = None;
        }
        may_fetch
    }
}

impl Source {
    async fn fetch(&self) -> Result<Fetched, AdapterError> {
        match self {
            Source::Fixed(credentials) => Ok(Fetched {
                credentials: credentials.clone(),
                renew_at: None,
                dead_at: None,
            }),
            Source::Files {
                key_id,
                key_secret,
                token,
            } => {
                let credentials = Credentials {
                    key_id: read("credentials.files.accessKeyIdFile", key_id).await?,
                    key_secret: read("credentials.files.accessKeySecretFile", key_secret).await?,
                    token: match token {
                        Some(path) => {
                            Some(read("credentials.files.securityTokenFile", path).await?)
                        }
                        None => None,
                    },
                };
                Ok(Fetched {
                    credentials,
                    renew_at: Some(Instant::now() + FILES),
                    dead_at: None,
                })
            }
            Source::Oidc(oidc) => oidc.fetch().await,
        }
    }
}

/// Reads a file without the white space around its text.
///
/// # Errors
/// [`AdapterError::Transient`], since a file may be missing while it is replaced.
pub(crate) async fn read(field: &str, path: &Path) -> Result<Secret, AdapterError> {
    let failed = |reason: &str| {
        let path = path.display();
        AdapterError::Transient(format!("{field}: can't use the file {path}: {reason}"))
    };
    let text = tokio::fs::read(path)
        .await
        .map_err(|error| failed(&error.to_string()))?;
    if text.len() > LARGEST {
        return Err(failed("it is larger than 64 KiB"));
    }
    // A header can't have other characters, and the reason must not quote them.
    let text = String::from_utf8(text).map_err(|_| failed("it is not a text"))?;
    let text = text.trim();
    match text {
        "" => Err(failed("it is empty")),
        text if !text.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(failed("it has white space or other characters inside"))
        }
        text => Ok(Secret::new(text.to_owned())),
    }
}
