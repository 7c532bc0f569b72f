//! The ports of a Service, and which port of a Pod each leads to.

use serde::Deserialize;

use crate::{AdapterError, Employer, Pod, one_line};

/// Most ports of a Service whose traffic is managed. Each port gives each Pod a member.
const MOST: usize = 100;

/// A port of `spec.ports` of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Name; empty if the port has none.
    #[serde(default)]
    pub name: String,
    /// Number of the port of the Service.
    #[serde(rename = "port")]
    pub number: u16,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(default = "tcp")]
    pub protocol: String,
    target_port: Option<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Target {
    Number(u16),
    Name(String),
}

fn tcp() -> String {
    "TCP".to_owned()
}

impl ServicePort {
    /// The name of the port, or its number if it has no name.
    #[must_use]
    pub fn label(&self) -> String {
        match self.name.is_empty() {
            true => self.number.to_string(),
            false => self.name.clone(),
        }
    }

    /// Number or name of the port of the Pods.
    #[must_use]
    pub fn target(&self) -> String {
        match &self.target_port {
            Some(Target::Name(name)) => name.clone(),
            Some(Target::Number(number)) => number.to_string(),
            None => self.number.to_string(),
        }
    }

    /// The port of a Pod that gets the requests to this port.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`] if the port has a name as its target, and the Pod declares no port of this name and
    /// of the protocol.
    pub fn on(&self, pod: &Pod) -> Result<u16, AdapterError> {
        let name = match &self.target_port {
            Some(Target::Name(name)) => name,
            Some(Target::Number(number)) => return Ok(*number),
            None => return Ok(self.number),
        };
        let is_target = |port: &&crate::PodPort| {
            port.name == *name && port.protocol == self.protocol && port.number != 0
        };
        let declared = pod.ports.iter().find(is_target).map(|port| port.number);
        declared.ok_or_else(|| {
            AdapterError::Permanent(format!(
                "no container of the Pod declares a {} port {:?}, the `targetPort` of port {:?} of the Service; declare \
                 it in `ports`, or set `targetPort` to a number",
                self.protocol,
                one_line(name),
                self.label()
            ))
        })
    }
}

/// The ports of a Service.
///
/// # Errors
/// [`AdapterError::Permanent`], which names the field, if a port can't be read, or if there are too many.
pub fn service_ports(service: &Employer) -> Result<Vec<ServicePort>, AdapterError> {
    let ports = match service.spec.get("ports") {
        None | Some(serde_json::Value::Null) => return Ok(Vec::new()),
        Some(ports) => ports,
    };
    let count = ports.as_array().map_or(0, Vec::len);
    if count > MOST {
        return Err(AdapterError::Permanent(format!(
            "`spec.ports` has {count} ports, and at most {MOST} can be managed; split the Service"
        )));
    }
    let mut ports = Vec::<ServicePort>::deserialize(ports).map_err(|error| {
        let text = one_line(&error.to_string());
        AdapterError::Permanent(format!("`spec.ports` can't be read: {text}"))
    })?;
    for port in &mut ports {
        if port.number == 0 {
            let text = "`spec.ports` has the port 0; set it to 1 to 65535";
            return Err(AdapterError::Permanent(text.to_owned()));
        }
        // A number may be written as a text. 0 and an empty text are unset values of the field.
        port.target_port = port.target_port.take().and_then(|target| match target {
            Target::Name(name) if name.is_empty() => None,
            Target::Name(name) => match name.parse() {
                Ok(number) => Some(Target::Number(number)),
                Err(_) => Some(Target::Name(name)),
            },
            number => Some(number),
        });
        port.target_port
            .take_if(|target| *target == Target::Number(0));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::PodPort;

    fn service(ports: Value) -> Employer {
        Employer {
            spec: json!({ "ports": ports }),
            ..Employer::default()
        }
    }

    fn port(name: &str, number: u16, protocol: &str) -> PodPort {
        PodPort {
            name: name.to_owned(),
            number,
            protocol: protocol.to_owned(),
        }
    }

    fn on(port: Value, declared: &[PodPort]) -> Result<u16, String> {
        let ports = service_ports(&service(json!([port]))).unwrap();
        let pod = Pod {
            ports: declared.to_vec(),
            ..Pod::default()
        };
        ports[0].on(&pod).map_err(|error| error.to_string())
    }

    #[test]
    fn target_is_a_number_a_name_or_the_port_itself() {
        let declared = [port("", 7, "TCP"), port("web", 8080, "TCP")];
        for (value, expected) in [
            (json!({ "port": 80 }), 80),
            (json!({ "port": 80, "targetPort": 0 }), 80),
            (json!({ "port": 80, "targetPort": "" }), 80),
            (json!({ "port": 80, "targetPort": 9000 }), 9000),
            (json!({ "port": 80, "targetPort": "9000" }), 9000),
            (json!({ "port": 80, "targetPort": "web" }), 8080),
        ] {
            assert_eq!(on(value.clone(), &declared), Ok(expected), "{value}");
        }
        let error = on(json!({ "port": 80, "targetPort": "api" }), &declared).unwrap_err();
        assert!(
            error.contains("\"api\"") && error.contains("`targetPort`"),
            "{error}"
        );
    }

    /// As Kubernetes resolves it: containers may use the name for ports of other protocols.
    #[test]
    fn named_target_has_the_protocol_of_the_port() {
        let declared = [port("dns", 5300, "UDP"), port("dns", 5353, "TCP")];
        let value =
            |protocol: &str| json!({ "port": 53, "targetPort": "dns", "protocol": protocol });
        assert_eq!(on(value("TCP"), &declared), Ok(5353));
        assert_eq!(on(value("UDP"), &declared), Ok(5300));
        on(value("SCTP"), &declared).unwrap_err();
    }

    #[test]
    fn label_is_the_name_or_the_number() {
        let ports = json!([{ "name": "http", "port": 80, "targetPort": "web" }, { "port": 81 }]);
        let ports = service_ports(&service(ports)).unwrap();
        assert_eq!(
            (ports[0].label(), ports[0].target()),
            ("http".to_owned(), "web".to_owned())
        );
        assert_eq!(
            (ports[1].label(), ports[1].target()),
            ("81".to_owned(), "81".to_owned())
        );
        assert_eq!(ports[1].protocol, "TCP");
    }

    #[test]
    fn ports_that_cannot_be_used_are_refused_with_the_field() {
        let many: Vec<_> = (1..=1000).map(|number| json!({ "port": number })).collect();
        for wrong in [
            json!("80"),
            json!([80]),
            json!([{ "port": 65536 }]),
            json!([{ "port": 0 }]),
            json!([{ "port": -1 }]),
            json!([{ "port": 80, "targetPort": 65536 }]),
            json!([{ "name": "no port" }]),
            json!(many),
        ] {
            let error = service_ports(&service(wrong.clone())).unwrap_err();
            assert!(error.to_string().starts_with("`spec.ports`"), "{error}");
        }
        for none in [json!(null), json!([])] {
            assert_eq!(service_ports(&service(none)), Ok(vec![]));
        }
        assert_eq!(service_ports(&Employer::default()), Ok(vec![]));
    }
}
