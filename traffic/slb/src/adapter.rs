//! The adapter.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, Observation, Pod,
    service_ports,
};

use crate::apply;
use crate::client::Client;
use crate::load_balancers::LoadBalancers;
use crate::observe::{self, Observer};
use crate::service::{LOAD_BALANCER, load_balancer};
use crate::settings::{Environment, Mode, Settings};
use crate::write::{Writer, not_allowed};

/// The adapter of Alibaba Cloud SLB.
pub struct SlbAdapter {
    settings: Settings,
    work: Work,
}

enum Work {
    Observe(Observer),
    Write(Box<Writer>),
}

impl SlbAdapter {
    /// An adapter with this configuration. It reads the variables of the environment that [`Settings`] names.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`], which names the field that is wrong.
    pub fn new(settings: Settings) -> Result<SlbAdapter, AdapterError> {
        let variable = |name: &str| std::env::var(name).ok();
        SlbAdapter::with_environment(settings, &variable)
    }

    /// An adapter with this configuration and these variables in place of those of the process.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`], which names the field that is wrong.
    pub fn with_environment(
        settings: Settings,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<SlbAdapter, AdapterError> {
        let env: Environment<'_> = &|name| variable(name).filter(|value| !value.is_empty());
        settings.check()?;
        let client = Arc::new(Client::new(&settings, env)?);
        let work = match settings.mode {
            Mode::Observe => Work::Observe(Observer::new(LoadBalancers::new(client))),
            Mode::Write => Work::Write(Box::new(Writer::new(settings.clone(), client))),
        };
        Ok(SlbAdapter { settings, work })
    }
}

impl std::fmt::Debug for SlbAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("SlbAdapter");
        debug.field("settings", &self.settings);
        debug.finish_non_exhaustive()
    }
}

#[async_trait]
impl Adapter for SlbAdapter {
    /// Load balancers of one region, with the marks of one cluster.
    fn backend(&self) -> String {
        let Settings {
            region,
            endpoint,
            cluster,
            mode,
            ..
        } = &self.settings;
        let endpoint = endpoint.as_deref().unwrap_or_default();
        format!("alibaba-slb {mode:?} {region} {endpoint} {cluster}")
    }

    fn settings(&self) -> traffic::Settings {
        traffic::Settings {
            control: match self.work {
                Work::Observe(_) => Control::Observes,
                Work::Write(_) => Control::Drains,
            },
            batch: 20,
            poll_min: Duration::from_secs(1),
            // An observation may wait for its turn, and makes several calls.
            timeout: Duration::from_secs(30),
            ..traffic::Settings::default()
        }
    }

    fn claims(&self, employer: &Employer) -> bool {
        employer.labels.contains_key(LOAD_BALANCER)
    }

    fn check(&self, employer: &Employer) -> Result<(), AdapterError> {
        match &self.work {
            Work::Observe(_) => {
                let id = load_balancer(employer)?;
                service_ports(employer)?;
                match self.settings.allows(&employer.namespace, id) {
                    true => Ok(()),
                    false => Err(not_allowed(employer, id)),
                }
            }
            Work::Write(writer) => writer.check(employer),
        }
    }

    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        match &self.work {
            Work::Observe(_) => Ok(observe::member(employer, pod)?.into_iter().collect()),
            Work::Write(writer) => writer.members(employer, pod),
        }
    }

    async fn observe(
        &self,
        employer: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        match &self.work {
            Work::Observe(observer) => {
                if !employer.deleting {
                    self.check(employer)?;
                }
                observer.observe(employer, pods).await
            }
            Work::Write(writer) => writer.observe(employer, pods).await,
        }
    }

    async fn apply(&self, employer: &Employer, changes: &Changes) -> Applied {
        match &self.work {
            Work::Observe(_) => {
                let text = "the mode is `observe`: the adapter changes nothing";
                changes.all_failed(&AdapterError::Permanent(text.to_owned()))
            }
            Work::Write(writer) => apply::apply(writer, employer, changes).await,
        }
    }
}
