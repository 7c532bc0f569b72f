//! Reads and replaces the members in Caddy.

use anyhow::Result;
use serde_json::Value;
use traffic_http::wire::Failure;

use crate::caddy::{Caddy, Document, Refused};
use crate::members::Members;
use crate::options::{Frontend, Mapping, Options};
use crate::{config, module};

/// How often a change is tried: somebody else may change the document at the same time, or an answer may be lost.
const MAX_TRIES: usize = 5;

/// Where the members are.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub caddy: Caddy,
    document: Document,
    mappings: Vec<Mapping>,
}

/// Why nothing is known to have changed.
#[derive(Debug)]
pub(crate) enum Unchanged {
    /// Nothing has changed, and the call should be repeated.
    Later(String),
    /// Caddy refuses the change.
    Refused(String),
    /// It is unknown what has changed.
    Unknown(String),
}

impl Store {
    pub fn new(options: &Options) -> Result<Store> {
        Ok(Store {
            caddy: Caddy::new(&options.admin)?,
            document: match options.members_module {
                true => Document::Members,
                false => Document::Config,
            },
            mappings: options.mappings.clone(),
        })
    }

    /// The members of each of these frontends.
    pub async fn read<'a>(
        &self,
        frontends: &[&'a Frontend],
    ) -> Result<Vec<(&'a Frontend, Result<Members, Failure>)>> {
        let (content, _) = self.caddy.read(self.document).await?;
        let mut frontends = frontends.to_vec();
        if self.document == Document::Members {
            // Members without a server get no requests.
            let (config, _) = self.caddy.read(Document::Config).await?;
            frontends.retain(|frontend| config::get_server(&config, frontend).is_some());
        }
        let read = |frontend: &'a Frontend| (frontend, self.members(&content, frontend));
        Ok(frontends.into_iter().map(read).collect())
    }

    /// Changes members. `change` may run more than once.
    pub async fn change<A>(&self, change: impl Fn(&mut Value) -> A) -> Result<A, Unchanged> {
        self.update(self.document, |content| Ok(change(content)))
            .await
    }

    /// Adds the servers of these frontends to Caddy's configuration, if members alone would not.
    pub async fn add_servers(&self, frontends: &[&Frontend]) -> Result<(), Unchanged> {
        if self.document == Document::Config {
            return Ok(());
        }
        let add = |config: &mut Value| {
            let all = frontends.iter();
            let mut all = all.map(|f| config::put_server(config, f, module::server(f)));
            all.find(Result::is_err).unwrap_or(Ok(()))
        };
        self.update(Document::Config, add).await
    }

    /// The members of a frontend in a document.
    pub fn members(&self, content: &Value, frontend: &Frontend) -> Result<Members, Failure> {
        match self.document {
            Document::Config => config::read(content, frontend),
            Document::Members => module::read(content, frontend),
        }
    }

    /// Writes the members of a frontend into a document.
    pub fn write(
        &self,
        content: &mut Value,
        frontend: &Frontend,
        members: &Members,
    ) -> Result<(), String> {
        match self.document {
            Document::Config => config::write(content, frontend, members, &self.mappings),
            Document::Members => module::write(content, frontend, members, &self.mappings),
        }
    }

    async fn update<A>(
        &self,
        document: Document,
        change: impl Fn(&mut Value) -> Result<A, String>,
    ) -> Result<A, Unchanged> {
        let no_answer = |error: anyhow::Error| format!("no answer of Caddy: {error}");
        let mut lost = None;
        for _ in 0..MAX_TRIES {
            let (before, version) = match self.caddy.read(document).await {
                Ok(read) => read,
                // After a lost answer it is unknown what has changed.
                Err(error) if lost.is_some() => {
                    lost = Some(error);
                    continue;
                }
                Err(error) => return Err(Unchanged::Later(no_answer(error))),
            };
            let mut after = before.clone();
            let answer = change(&mut after).map_err(Unchanged::Refused)?;
            if after == before {
                return Ok(answer);
            }
            match self.caddy.replace(document, &after, &version).await {
                Ok(()) => return Ok(answer),
                Err(Refused::Outdated) => lost = None,
                Err(Refused::Invalid(text)) => {
                    return Err(Unchanged::Refused(format!(
                        "Caddy refuses the change: {text}"
                    )));
                }
                // The next read tells whether the document was replaced.
                Err(Refused::Lost(error)) => lost = Some(error),
            }
        }
        Err(match lost {
            Some(error) => Unchanged::Unknown(no_answer(error)),
            None => Unchanged::Later("somebody else changes Caddy all the time".to_owned()),
        })
    }
}
