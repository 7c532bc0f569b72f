//! The adapters of the chain. They only compute; [`super::super::balancer`] answers the calls.

use async_trait::async_trait;

use super::super::model::DRAIN;
use crate::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, MemberKey, Observation,
    Pod, Settings,
};

/// The ports of the employer: the group, and the number. A port without a number has a name; its number is a label of
/// the Pod, and some Pods lack it.
pub type Ports = &'static [(&'static str, Option<u16>)];

/// The ports that an employer changes between.
pub const PORTS: [Ports; 5] = [
    &[("g", Some(80))],
    &[("g", Some(81))],
    &[("h", None)],
    &[("g", Some(80)), ("h", None)],
    &[("g", None)],
];

/// The label with the number of the named port.
pub const PORT_LABEL: &str = "port";

pub struct ChainAdapter {
    pub control: Control,
    pub ports: Ports,
    pub weight: u32,
    /// Whether the adapter refuses the employer as it is now.
    pub refuses: bool,
}

#[async_trait]
impl Adapter for ChainAdapter {
    fn settings(&self) -> Settings {
        Settings {
            control: self.control,
            batch: 3,
            drain_time: DRAIN,
            ..Settings::default()
        }
    }

    fn check(&self, _: &Employer) -> Result<(), AdapterError> {
        match self.refuses {
            true => Err(AdapterError::Permanent("refused".to_owned())),
            false => Ok(()),
        }
    }

    fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let mut members = Vec::new();
        for (group, number) in self.ports {
            let named = || pod.labels.get(PORT_LABEL)?.parse().ok();
            let port = number.or_else(named).ok_or_else(|| {
                AdapterError::Permanent("no address: the Pod has no such port".to_owned())
            })?;
            for address in &pod.addresses {
                let key = MemberKey {
                    group: (*group).to_owned(),
                    address: *address,
                    port,
                };
                members.push(Member {
                    key,
                    pod: pod.id.clone(),
                    weight: self.weight,
                });
            }
        }
        Ok(members)
    }

    async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
        Ok(Observation::default())
    }

    async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
        Applied::new()
    }
}
