//! The built-in adapter: it follows the EndpointSlices of a Service. kube-proxy, ingress controllers, gateways and meshes
//! read them, and send no new requests to an address that is not ready. So a Pod is off traffic when every slice says
//! that it is not ready, and the drain time has passed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Control, Employer, Member, MemberKey, Observation,
    Pod, Presence, Registration, Settings,
};

use super::slices::{Endpoint, Slices};

/// The name of the adapter.
pub const NAME: &str = "endpoints";

/// Follows EndpointSlices.
pub struct EndpointsAdapter(pub Arc<Slices>);

#[async_trait]
impl Adapter for EndpointsAdapter {
    fn settings(&self) -> Settings {
        Settings {
            control: Control::Observes,
            observes_for_free: true,
            round: Duration::ZERO,
            resync: None,
            ..Settings::default()
        }
    }

    fn check(&self, employer: &Employer) -> Result<(), AdapterError> {
        if employer.spec["publishNotReadyAddresses"] == Value::Bool(true) {
            let text = "spec.publishNotReadyAddresses is true, so requests go to Pods that are not ready, and no Pod can \
                        be taken off traffic; set it to false, or remove the label kusionstack.io/control";
            return Err(AdapterError::Permanent(text.to_owned()));
        }
        if employer.spec["type"] == "ExternalName" {
            let text = "spec.type is ExternalName, so the Service has no endpoints; remove the label \
                        kusionstack.io/control";
            return Err(AdapterError::Permanent(text.to_owned()));
        }
        Ok(())
    }

    /// One member for all addresses and ports of the Pod. Its group is the name of the Pod, because Pods in the network
    /// of their node share an address.
    fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        let member = |address| Member {
            key: MemberKey {
                group: pod.id.name.clone(),
                address,
                port: 0,
            },
            pod: pod.id.clone(),
            weight: 0,
        };
        Ok(pod
            .addresses
            .first()
            .copied()
            .map(member)
            .into_iter()
            .collect())
    }

    async fn observe(
        &self,
        employer: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        let endpoints = self.0.endpoints(&employer.namespace, &employer.name);
        let endpoints = endpoints.ok_or_else(|| {
            AdapterError::Transient("the EndpointSlices have not been listed yet".to_owned())
        })?;
        let mut observation = Observation::default();
        for pod in pods {
            let member = self.members(employer, pod)?.pop();
            let presence = presence(pod, &endpoints);
            if let (Some(member), Some(presence)) = (member, presence) {
                observation.registrations.push(Registration {
                    member,
                    presence,
                    connections: None,
                });
            }
        }
        Ok(observation)
    }

    async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
        Applied::new()
    }
}

/// Whether requests go to a Pod. `None`: to none of its addresses.
fn presence(pod: &Pod, endpoints: &[Endpoint]) -> Option<Presence> {
    let of_pod = |endpoint: &&Endpoint| match &endpoint.pod {
        Some(uid) => **uid == *pod.id.uid,
        // A slice that somebody wrote by hand may have addresses only.
        None => endpoint.address.is_some_and(|a| pod.addresses.contains(&a)),
    };
    let mut ready = endpoints
        .iter()
        .filter(of_pod)
        .map(|endpoint| endpoint.ready);
    let mut all = ready.clone();
    match (ready.any(|ready| ready), all.all(|ready| ready)) {
        (true, true) => Some(Presence::Serving),
        (true, false) => Some(Presence::Pending),
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use traffic::PodId;

    use super::*;

    fn endpoint(pod: Option<&str>, address: &str, ready: bool) -> Endpoint {
        Endpoint {
            pod: pod.map(Box::from),
            address: Some(address.parse().unwrap()),
            ready,
        }
    }

    #[test]
    fn pod_is_off_when_every_slice_says_so() {
        let pod = Pod {
            id: PodId {
                uid: "a".into(),
                name: "web-0".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
            ..Pod::default()
        };
        let of = |endpoints: &[Endpoint]| presence(&pod, endpoints);
        let (on, off) = (
            endpoint(Some("a"), "10.0.0.1", true),
            endpoint(Some("a"), "fd00::1", false),
        );
        assert_eq!(of(&[]), None);
        assert_eq!(of(std::slice::from_ref(&on)), Some(Presence::Serving));
        assert_eq!(of(&[on, off.clone()]), Some(Presence::Pending));
        assert_eq!(of(&[off]), None);
        let other = endpoint(Some("b"), "10.0.0.1", true);
        assert_eq!(of(&[other]), None, "another Pod has the address now");
        assert_eq!(
            of(&[endpoint(None, "10.0.0.1", true)]),
            Some(Presence::Serving)
        );
    }

    #[test]
    fn services_whose_endpoints_say_nothing_are_refused() {
        let adapter = EndpointsAdapter(Arc::default());
        let check = |spec| {
            adapter.check(&Employer {
                spec,
                ..Employer::default()
            })
        };
        assert!(check(json!({ "selector": { "app": "web" } })).is_ok());
        let error = check(json!({ "publishNotReadyAddresses": true })).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("spec.publishNotReadyAddresses is true")
        );
        assert!(check(json!({ "type": "ExternalName" })).is_err());
    }
}
