//! The traffic of Routes, behind the calls of the HTTP adapter.

use async_trait::async_trait;
use std::collections::BTreeMap;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Employer, EmployerKind, Member, MemberKey,
    Observation, Pod, Settings,
};
use traffic_http::HttpAdapter;

/// Manages Routes. The endpoint of the HTTP adapter does the work.
#[derive(Debug)]
pub struct Routes(pub HttpAdapter);

#[async_trait]
impl Adapter for Routes {
    fn settings(&self) -> Settings {
        self.0.settings()
    }

    fn employer_kind(&self) -> EmployerKind {
        EmployerKind {
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            kind: "Route".to_owned(),
            plural: "routes".to_owned(),
        }
    }

    /// A Route has `spec.selector.matchLabels`, and a Service has the labels in `spec.selector`.
    fn selector(&self, employer: &Employer) -> Option<BTreeMap<String, String>> {
        let labels = employer.spec["selector"]["matchLabels"].as_object()?;
        let label = |(key, value): (&String, &serde_json::Value)| {
            Some((key.clone(), value.as_str()?.to_owned()))
        };
        // A label that can't be read must not make the selection larger.
        labels.iter().map(label).collect()
    }

    fn check(&self, employer: &Employer) -> Result<(), AdapterError> {
        port(employer).map(drop)
    }

    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let port = port(employer)?;
        let member = |address: &std::net::IpAddr| Member {
            key: MemberKey {
                group: String::new(),
                address: *address,
                port,
            },
            pod: pod.id.clone(),
            weight: 100,
        };
        Ok(pod.addresses.first().map(member).into_iter().collect())
    }

    async fn observe(
        &self,
        employer: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        self.0.observe(employer, pods).await
    }

    async fn apply(&self, employer: &Employer, changes: &Changes) -> Applied {
        self.0.apply(employer, changes).await
    }
}

fn port(employer: &Employer) -> Result<u16, AdapterError> {
    let port = &employer.spec["port"];
    let number = port.as_u64().and_then(|port| u16::try_from(port).ok());
    number.filter(|port| *port > 0).ok_or_else(|| {
        AdapterError::Permanent(format!(
            "spec.port is {port}; write a number from 1 to 65535"
        ))
    })
}
