//! Reads and replaces the members in Caddy.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::Value;
use traffic_http::wire::Failure;

use crate::caddy::{Caddy, Document, Refused};
use crate::members::{Members, foreign};
use crate::options::{Frontend, Mapping, Options};
use crate::service::Service;
use crate::{config, module};

/// Groups that are neither read nor changed, each with the reason.
pub(crate) type Closed = BTreeMap<String, Failure>;

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
    /// Caddy gives no answer that can be used. It is unknown what has changed.
    NoAnswer(String),
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

    /// The groups of a Service that Caddy serves, each with its members.
    pub async fn read(
        &self,
        service: &Service<'_>,
    ) -> Result<Vec<(String, Result<Members, Failure>)>> {
        let (content, _) = self.caddy.read(self.document).await?;
        let other = match self.document {
            Document::Config => None,
            // Members without a server get no requests.
            Document::Members => Some(self.caddy.read(Document::Config).await?.0),
        };
        let config = other.as_ref().unwrap_or(&content);
        let mut closed = self.closed(config, &content, service);
        let mut groups = Vec::new();
        for frontend in service.served(config) {
            let group = frontend.group.clone();
            let members = match closed.remove(&group) {
                Some(failure) => Err(failure),
                None => self.members(&content, &frontend),
            };
            groups.push((group, members));
        }
        Ok(groups)
    }

    /// Changes members of a Service. Adds servers for these groups, if members alone would not. `change` may run more
    /// than once.
    pub async fn change<A>(
        &self,
        service: &Service<'_>,
        registers: &[&Frontend],
        change: impl Fn(&mut Value, &Closed) -> A,
    ) -> Result<A, Unchanged> {
        let other = match self.document {
            Document::Config => None,
            Document::Members => Some(self.add_servers(registers).await?),
        };
        self.update(self.document, |content| {
            let config = other.as_ref().unwrap_or(content);
            let closed = self.closed(config, content, service);
            Ok(change(content, &closed))
        })
        .await
    }

    /// Adds the servers of these frontends to Caddy's configuration. Returns the configuration.
    async fn add_servers(&self, frontends: &[&Frontend]) -> Result<Value, Unchanged> {
        let add = |config: &mut Value| {
            for frontend in frontends {
                let found = config::get_server(config, frontend);
                // A server whose members are not in the module would lose them.
                if found.is_none_or(|found| module::is_used_by(found, frontend)) {
                    config::put_server(config, frontend, module::server(frontend))?;
                }
            }
            Ok(config.clone())
        };
        self.update(Document::Config, add).await
    }

    /// The groups of a Service that Caddy serves in a way that the bridge would not see, or could not keep.
    fn closed(&self, config: &Value, content: &Value, service: &Service<'_>) -> Closed {
        let mut closed = Closed::new();
        for frontend in service.served(config) {
            let server = config::get_server(config, &frontend);
            let is_outside = self.document == Document::Members
                && server.is_some_and(|found| !module::is_used_by(found, &frontend));
            let group = frontend.group.as_str();
            let failure = if is_outside {
                foreign(&frontend.server())
            } else if service.frontend(group).is_none() && !self.is_empty(content, &frontend) {
                service.lost_frontend(group)
            } else {
                continue;
            };
            closed.insert(frontend.group, failure);
        }
        closed
    }

    /// The members of a frontend in a document.
    pub fn members(&self, content: &Value, frontend: &Frontend) -> Result<Members, Failure> {
        match self.document {
            Document::Config => config::read(content, frontend),
            Document::Members => module::read(content, frontend),
        }
    }

    fn is_empty(&self, content: &Value, frontend: &Frontend) -> bool {
        let members = self.members(content, frontend);
        members.is_ok_and(|members| members.entries.is_empty())
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
        let mut lost = None;
        for _ in 0..MAX_TRIES {
            let (before, version) = match self.caddy.read(document).await {
                Ok(read) => read,
                // After a lost answer it is unknown what has changed.
                Err(error) if lost.is_some() => {
                    lost = Some(error);
                    continue;
                }
                Err(error) => return Err(no_answer(&error)),
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
            Some(error) => no_answer(&error),
            None => Unchanged::Later("somebody else changes Caddy all the time".to_owned()),
        })
    }
}

pub(crate) fn no_answer(error: &anyhow::Error) -> Unchanged {
    Unchanged::NoAnswer(format!("{error:#}"))
}
