//! Members from ports of the Service and addresses of the Pod.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use traffic::{PodId, PodPort};

use super::*;

fn config(fields: Value) -> Config {
    let mut all = json!({"url": "https://lb.example"});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn service(ports: Value) -> Employer {
    Employer {
        spec: json!({"ports": ports}),
        ..Employer::default()
    }
}

fn pod(addresses: &[&str]) -> Pod {
    Pod {
        id: PodId {
            uid: "u".into(),
            name: "p".into(),
        },
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ports: vec![PodPort {
            name: "web".into(),
            number: 8080,
            protocol: "TCP".into(),
        }],
        on: true,
        ..Pod::default()
    }
}

fn keys(config: &Config, ports: Value, pod: &Pod) -> Vec<String> {
    let members = members(config, &service(ports), pod).unwrap();
    members
        .iter()
        .map(|member| member.key.to_string())
        .collect()
}

#[test]
fn each_port_and_address_of_first_family_is_a_member() {
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": "web"},
        {"name": "admin", "port": 81, "targetPort": 9000},
        {"name": "same", "port": 82},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    let pod = pod(&["10.0.0.1", "fd00::1", "10.0.0.2"]);
    let expected = [
        "http/10.0.0.1:8080",
        "http/10.0.0.2:8080",
        "admin/10.0.0.1:9000",
        "admin/10.0.0.2:9000",
        "same/10.0.0.1:82",
        "same/10.0.0.2:82",
    ];
    assert_eq!(keys(&config(json!({})), ports, &pod), expected);
}

#[test]
fn port_without_name_has_its_number_as_group() {
    let ports = json!([{"port": 80, "targetPort": 8000}]);
    let pod = pod(&["fd00::1"]);
    assert_eq!(keys(&config(json!({})), ports, &pod), ["80/[fd00::1]:8000"]);
}

#[test]
fn configuration_chooses_ports() {
    let ports = json!([
        {"name": "http", "port": 80},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]);
    let udp = config(json!({"protocols": ["UDP"]}));
    assert_eq!(
        keys(&udp, ports.clone(), &pod(&["10.0.0.1"])),
        ["dns/10.0.0.1:53"]
    );
    let named = config(json!({"portName": "http"}));
    assert_eq!(
        keys(&named, ports.clone(), &pod(&["10.0.0.1"])),
        ["http/10.0.0.1:80"]
    );
    let none = config(json!({"portName": "web"}));
    let error = members(&none, &service(ports), &pod(&["10.0.0.1"])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no TCP port with the name \"web\""),
        "{error}"
    );
}

#[test]
fn missing_named_port_is_refused_by_name() {
    let ports = json!([{"port": 80, "targetPort": "api"}]);
    let error = members(&config(json!({})), &service(ports), &pod(&["10.0.0.1"]));
    let AdapterError::Permanent(text) = error.unwrap_err() else {
        unreachable!("another kind of error");
    };
    assert!(
        text.contains("\"api\"") && text.contains("`targetPort`"),
        "{text}"
    );
}

#[test]
fn wrong_ports_of_a_service_are_refused() {
    let cases = [
        (json!(null), "has no TCP port"),
        (json!([]), "has no TCP port"),
        (json!([{"port": 70000}]), "`spec.ports` can't be read"),
        (json!("80"), "`spec.ports` can't be read"),
    ];
    for (spec, expected) in cases {
        let error = ports(&config(json!({})), &service(spec)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn pod_without_address_serves_with_no_member_never() {
    let ports = json!([{"port": 80}]);
    let mut pod = pod(&[]);
    let on = members(&config(json!({})), &service(ports.clone()), &pod);
    assert!(on.unwrap_err().to_string().contains("no address"));
    pod.on = false;
    let off = members(&config(json!({})), &service(ports), &pod);
    assert!(off.unwrap().is_empty());
}
