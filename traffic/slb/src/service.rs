//! What a Service says about its load balancer.

use std::net::IpAddr;

use traffic::{AdapterError, Employer, Pod, ServicePort, service_ports};

use crate::client::Group;
use crate::failure::cut;
use crate::settings::is_id;

/// The label with the ID of the load balancer. The cloud controller sets it.
pub const LOAD_BALANCER: &str = "service.k8s.alibaba/loadbalancer-id";
/// The annotation with the VServer groups that the adapter fills: a comma-separated list of
/// `<group>:<name or number of a port of the Service>`.
pub const GROUPS: &str = "resource-consist.kusionstack.io/slb-vserver-groups";
/// The annotation with the weight of each server, 1 to 100. Default: 100.
pub const WEIGHT: &str = "resource-consist.kusionstack.io/slb-weight";

/// Weight of a server without the annotation.
const FULL: u32 = 100;
/// Most groups that a Service may name. A load balancer has at most 50 listeners.
const MOST_GROUPS: usize = 50;

/// The ID of the load balancer that a Service names.
///
/// # Errors
/// [`AdapterError::Permanent`] if it names none, or if the text can't be an ID.
pub(crate) fn load_balancer(service: &Employer) -> Result<&str, AdapterError> {
    match service.labels.get(LOAD_BALANCER).map(String::as_str) {
        Some(id) if is_id(id) => Ok(id),
        Some(_) => Err(wrong(format!(
            "the label {LOAD_BALANCER} must be the ID of a load balancer"
        ))),
        None => Err(wrong(format!(
            "the label {LOAD_BALANCER} is missing; set it to the ID of the load balancer"
        ))),
    }
}

/// A group that a Service names, with the port whose requests it gets. The default group has no port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub group: Group,
    pub port: Option<ServicePort>,
}

/// The groups that a Service names: those of its annotation, or the default group.
///
/// # Errors
/// [`AdapterError::Permanent`], which names the label or the annotation.
pub(crate) fn groups(service: &Employer) -> Result<Vec<Named>, AdapterError> {
    let load_balancer = load_balancer(service)?;
    let Some(text) = service.annotations.get(GROUPS) else {
        return Ok(vec![Named {
            group: Group::Default(load_balancer.to_owned()),
            port: None,
        }]);
    };
    let ports = service_ports(service)?;
    let mut groups: Vec<Named> = Vec::new();
    for entry in text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
    {
        if groups.len() == MOST_GROUPS {
            return Err(wrong(format!(
                "the annotation {GROUPS} names more than {MOST_GROUPS} groups; split the Service"
            )));
        }
        let Some((id, port)) = entry.split_once(':').filter(|(id, _)| is_id(id)) else {
            return Err(wrong(format!(
                "the annotation {GROUPS} has an entry that is not `<group>:<port>`: {:?}",
                cut(entry)
            )));
        };
        let by_name = ports.iter().find(|candidate| candidate.name == port);
        let by_number = || {
            let number: u16 = port.parse().ok()?;
            ports.iter().find(|candidate| candidate.number == number)
        };
        let Some(port) = by_name.or_else(by_number) else {
            return Err(wrong(format!(
                "the annotation {GROUPS} names the port {:?}, which the Service does not have",
                cut(port)
            )));
        };
        let group = Group::Virtual(id.to_owned());
        if groups.iter().any(|named| named.group == group) {
            return Err(wrong(format!(
                "the annotation {GROUPS} names the group {id} twice"
            )));
        }
        let port = Some(port.clone());
        groups.push(Named { group, port });
    }
    match groups.is_empty() {
        true => Err(wrong(format!(
            "the annotation {GROUPS} is empty; remove it to use the default group"
        ))),
        false => Ok(groups),
    }
}

/// The weight of each server of a Service.
///
/// # Errors
/// [`AdapterError::Permanent`], which names the annotation.
pub(crate) fn weight(service: &Employer) -> Result<u32, AdapterError> {
    let Some(text) = service.annotations.get(WEIGHT) else {
        return Ok(FULL);
    };
    match text.parse() {
        // With weight 0, no Pod would ever get a request.
        Ok(weight @ 1..=100) => Ok(weight),
        _ => Err(wrong(format!(
            "the annotation {WEIGHT} must be a number from 1 to 100"
        ))),
    }
}

/// The address of a Pod that load balancers use: its primary one.
///
/// # Errors
/// [`AdapterError::Permanent`] if it has none although it should serve.
pub(crate) fn address(pod: &Pod) -> Result<Option<IpAddr>, AdapterError> {
    match pod.addresses.first() {
        Some(address) => Ok(Some(*address)),
        None if pod.on => Err(wrong("the Pod has no address".to_owned())),
        None => Ok(None),
    }
}

fn wrong(text: String) -> AdapterError {
    AdapterError::Permanent(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use traffic::PodPort;

    use super::*;

    fn service(annotations: &[(&str, &str)]) -> Employer {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        Employer {
            labels: map(&[(LOAD_BALANCER, "lb-1")]),
            annotations: map(annotations),
            spec: json!({ "ports": [
                { "name": "http", "port": 80, "targetPort": "web" },
                { "name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP" },
                { "port": 53, "protocol": "UDP" },
            ]}),
            ..Employer::default()
        }
    }

    #[test]
    fn groups_name_ports() {
        let service = service(&[(GROUPS, "rsp-a:http, rsp-b:443")]);
        let named = groups(&service).unwrap();
        let port = PodPort {
            name: "web".to_owned(),
            number: 8080,
            protocol: "TCP".to_owned(),
        };
        let pod = Pod {
            ports: vec![port],
            ..Pod::default()
        };
        let found: Vec<_> = named
            .iter()
            .map(|named| {
                (
                    named.group.id(),
                    named.port.as_ref().unwrap().on(&pod).unwrap(),
                )
            })
            .collect();
        assert_eq!(found, [("rsp-a", 8080), ("rsp-b", 8443)]);
        let bare = Pod::default();
        named[0].port.as_ref().unwrap().on(&bare).unwrap_err();
    }

    #[test]
    fn default_group_is_used_without_annotation() {
        let named = groups(&service(&[])).unwrap();
        assert_eq!(named[0].group, Group::Default("lb-1".to_owned()));
    }

    #[test]
    fn wrong_groups_are_refused_with_the_annotation() {
        for text in ["", "rsp-a", "rsp a:80", "rsp-a:81", "rsp-a:80,rsp-a:443"] {
            let error = groups(&service(&[(GROUPS, text)])).unwrap_err();
            assert!(error.to_string().contains(GROUPS), "{text}: {error}");
        }
    }

    #[test]
    fn weight_is_1_to_100() {
        assert_eq!(weight(&service(&[])).unwrap(), 100);
        assert_eq!(weight(&service(&[(WEIGHT, "7")])).unwrap(), 7);
        for text in ["0", "101", "-1", "much"] {
            let error = weight(&service(&[(WEIGHT, text)])).unwrap_err();
            assert!(error.to_string().contains(WEIGHT), "{text}");
        }
    }
}
