//! The adapter of the walks. It only computes; [`super::balancer`] answers the calls.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, MemberKey, Observation,
    Pod, Settings,
};

pub const DRAIN: Duration = Duration::from_secs(10);

/// Where an employer wants its Pods: group and port of each member.
pub type Shape = Vec<(&'static str, u16)>;

/// The shapes that an employer changes between.
pub const SHAPES: [&[(&str, u16)]; 4] = [
    &[("g", 80)],
    &[("g", 81)],
    &[("h", 80)],
    &[("g", 80), ("h", 80)],
];

pub struct Model {
    pub control: Control,
    pub shape: Shape,
    pub weight: u32,
    /// Whether the adapter refuses the employer as it is now.
    pub refuses: bool,
}

#[async_trait]
impl Adapter for Model {
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
            true => Err(AdapterError::Permanent("wrong port".to_owned())),
            false => Ok(()),
        }
    }
    fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let places = self.shape.iter();
        let keys = places.flat_map(|(group, port)| {
            pod.addresses.iter().map(move |address| MemberKey {
                group: (*group).to_owned(),
                address: *address,
                port: *port,
            })
        });
        let member = |key| Member {
            key,
            pod: pod.id.clone(),
            weight: self.weight,
        };
        Ok(keys.map(member).collect())
    }
    async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
        Ok(Observation::default())
    }
    async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
        Applied::new()
    }
}
