//! The adapter.

use async_trait::async_trait;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Employer, Member, Observation, Pod, Settings,
};

use crate::call::{Call, Endpoint};
use crate::members::{members, ports};
use crate::translate::{applied, apply_request, observation, observe_request};
use crate::{Config, ConfigError, ControlSetting};

/// Manages the members of a load balancer behind two HTTP calls.
pub struct HttpAdapter {
    endpoint: Endpoint,
}

impl HttpAdapter {
    /// Checks the settings. Reads no file and makes no call, so that the server starts even if a file or the endpoint is
    /// missing.
    ///
    /// # Errors
    /// Names the first field that can't be used.
    pub fn new(config: Config) -> Result<HttpAdapter, ConfigError> {
        let endpoint = Endpoint::new(config)?;
        Ok(HttpAdapter { endpoint })
    }
}

impl std::fmt::Debug for HttpAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpAdapter").finish_non_exhaustive()
    }
}

#[async_trait]
impl Adapter for HttpAdapter {
    fn settings(&self) -> Settings {
        self.endpoint.config().settings()
    }

    fn backend(&self) -> String {
        format!("http {}", self.endpoint.config().url)
    }

    fn check(&self, employer: &Employer) -> Result<(), AdapterError> {
        ports(self.endpoint.config(), employer).map(|_| ())
    }

    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        members(self.endpoint.config(), employer, pod)
    }

    async fn observe(
        &self,
        employer: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        let request = observe_request(self.endpoint.config(), employer, pods);
        let answer = self.endpoint.call(Call::Observe, &request).await;
        observation(answer?)
    }

    async fn apply(&self, employer: &Employer, changes: &Changes) -> Applied {
        let config = self.endpoint.config();
        if config.control == ControlSetting::Observes {
            let text = "`control` is `observes`: this adapter changes no members";
            return changes.all_failed(&AdapterError::Permanent(text.to_owned()));
        }
        let request = apply_request(config, employer, changes);
        match self.endpoint.call(Call::Apply, &request).await {
            Ok(answer) => applied(changes, answer),
            Err(error) => changes.all_failed(&error),
        }
    }
}
