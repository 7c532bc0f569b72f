//! The groups of a Service: those that have a frontend, and those that Caddy serves all the same. Nothing here makes a
//! call.
//!
//! The bridge may be started again with other frontends while Caddy still serves the members of former ones. A group
//! that is not named would count as empty, and its Pods would be stopped while they serve.

use serde_json::Value;
use traffic_http::wire::{EmployerInfo, Failure};

use crate::config;
use crate::options::{Frontend, Options, is_name};

/// A Service, and its frontends.
#[derive(Clone, Debug)]
pub(crate) struct Service<'a> {
    namespace: &'a str,
    name: &'a str,
    /// The frontends that the bridge was started with.
    pub frontends: Vec<&'a Frontend>,
}

impl<'a> Service<'a> {
    /// `None` for an employer of another kind: it has no members in Caddy, also if it has the name of a Service.
    pub fn of(employer: &'a EmployerInfo, options: &'a Options) -> Option<Service<'a>> {
        let is_of = |frontend: &&Frontend| {
            frontend.namespace == employer.namespace && frontend.service == employer.name
        };
        (employer.kind == "Service").then(|| Service {
            namespace: &employer.namespace,
            name: &employer.name,
            frontends: options.frontends.iter().filter(is_of).collect(),
        })
    }

    pub fn frontend(&self, group: &str) -> Option<&'a Frontend> {
        let mut all = self.frontends.iter().copied();
        all.find(|frontend| frontend.group == group)
    }

    /// The groups that have a server in Caddy's configuration, each with the frontend that it has or once had.
    pub fn served(&self, config: &Value) -> Vec<Frontend> {
        let prefix = self.server("");
        let groups = config::server_names(config).filter_map(|name| name.strip_prefix(&prefix));
        let former = |group: &str| Frontend {
            namespace: self.namespace.to_owned(),
            service: self.name.to_owned(),
            group: group.to_owned(),
            listen: String::new(),
        };
        groups
            .filter(|group| is_name(group))
            .map(|group| {
                self.frontend(group)
                    .cloned()
                    .unwrap_or_else(|| former(group))
            })
            .collect()
    }

    /// The refusal of a new member in a group that Caddy does not serve.
    pub fn no_frontend(&self, group: &str) -> Failure {
        Failure {
            message: format!("no frontend for group {group:?}; {}", self.remedy(group)),
            retryable: false,
        }
    }

    /// The refusal of a group that Caddy serves, although the bridge has no frontend for it.
    pub fn lost_frontend(&self, group: &str) -> Failure {
        let server = self.server(group);
        Failure {
            message: format!(
                "Caddy still serves group {group:?}, and the bridge has no frontend for it; {}, or remove {server:?} from Caddy",
                self.remedy(group)
            ),
            retryable: false,
        }
    }

    fn remedy(&self, group: &str) -> String {
        let Service {
            namespace, name, ..
        } = self;
        format!("start the bridge with `--frontend {namespace}/{name}/{group}=ADDRESS`")
    }

    fn server(&self, group: &str) -> String {
        crate::options::server(self.namespace, self.name, group)
    }
}
