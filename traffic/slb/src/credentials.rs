//! Where credentials come from, and when they are fetched again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use traffic::AdapterError;

use crate::oidc::Oidc;
use crate::secret::{Credentials, Fetched};
use crate::secret_file::read;

/// How long files are not read again.
const FILES: Duration = Duration::from_secs(5);
/// Pause after credentials could not be fetched, or were refused although they were new.
const PAUSE: Duration = Duration::from_secs(5);

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
    /// Prepared results.
    #[cfg(test)]
    Prepared(tests::Prepared),
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
            _ => is_old || self.worked.load(Ordering::Relaxed),
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
            #[cfg(test)]
            Source::Prepared(prepared) => prepared.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;
    use crate::secret::Secret;

    /// Results of fetches: the name of a key that lives for 30 minutes and is renewed after 20 minutes, or a failure.
    pub(crate) struct Prepared(Mutex<VecDeque<Option<&'static str>>>);

    impl Prepared {
        pub(super) fn next(&self) -> Result<Fetched, AdapterError> {
            let next = self.0.lock().unwrap().pop_front().unwrap();
            let name = next.ok_or(AdapterError::Transient("down".to_owned()))?;
            let now = Instant::now();
            Ok(Fetched {
                credentials: Credentials {
                    key_id: Secret::new(name.to_owned()),
                    key_secret: Secret::new(String::new()),
                    token: None,
                },
                renew_at: Some(now + MINUTE * 20),
                dead_at: Some(now + MINUTE * 30),
            })
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn store(results: impl IntoIterator<Item = Option<&'static str>>) -> Store {
        let results = Mutex::new(results.into_iter().collect());
        Store::new(Source::Prepared(Prepared(results)))
    }

    async fn key(store: &Store) -> Result<String, AdapterError> {
        let credentials = store.get().await?;
        Ok(credentials.key_id.reveal().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_renewed_before_they_end() {
        let store = store([Some("a"), Some("b")]);
        assert_eq!(key(&store).await.unwrap(), "a");
        tokio::time::advance(MINUTE * 19).await;
        assert_eq!(key(&store).await.unwrap(), "a");
        tokio::time::advance(MINUTE * 2).await;
        assert_eq!(key(&store).await.unwrap(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn old_credentials_serve_until_they_end() {
        let store = store([Some("a"), None, None, Some("b")]);
        key(&store).await.unwrap();
        tokio::time::advance(MINUTE * 21).await;
        assert_eq!(key(&store).await.unwrap(), "a");
        // During the pause nothing is fetched.
        assert_eq!(key(&store).await.unwrap(), "a");
        tokio::time::advance(MINUTE * 10).await;
        key(&store).await.unwrap_err();
        key(&store).await.unwrap_err();
        tokio::time::advance(PAUSE).await;
        assert_eq!(key(&store).await.unwrap(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_replaced_once_by_one_caller() {
        let store = store([Some("a"), Some("b")]);
        let old = store.get().await.unwrap();
        store.accepted();
        assert!(store.refused(&old).await);
        assert_eq!(key(&store).await.unwrap(), "b");
        // A second caller was refused with the same old credentials.
        assert!(store.refused(&old).await);
        assert_eq!(key(&store).await.unwrap(), "b");
        // The new ones have never worked: they are kept for a while.
        let new = store.get().await.unwrap();
        assert!(!store.refused(&new).await);
        tokio::time::advance(PAUSE).await;
        assert!(store.refused(&new).await);
    }
}
