//! What the tests share: the double with a load balancer, Services and Pods.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testbed::slb_double::SlbDouble;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Employer, Member, MemberKey, Pod, PodId, PodPort,
    Presence, Registration,
};
use traffic_slb::{GROUPS, LOAD_BALANCER, Settings, SlbAdapter};

pub const NAMESPACE: &str = "shop";

/// A double with the load balancer `lb-1`.
pub async fn double() -> SlbDouble {
    let double = SlbDouble::start().await;
    double.state().add_load_balancer("lb-1");
    double
}

/// Settings that name the double, in the mode `observe` or `write`, with these fields in addition.
pub fn settings(double: &SlbDouble, mode: &str, more: Value) -> Settings {
    let mut value = json!({
        "mode": mode,
        "region": "cn-hangzhou",
        "endpoint": double.url(),
        "ecsEndpoint": double.url(),
        "stsEndpoint": double.url(),
        "callsPerSecond": 100,
    });
    if mode == "write" {
        value["loadBalancers"] = json!([{ "id": "lb-1", "namespaces": [NAMESPACE] }]);
    }
    let fields = more.as_object().unwrap().clone();
    value.as_object_mut().unwrap().extend(fields);
    serde_json::from_value(value).unwrap()
}

/// The variables of the environment with the key of the double.
pub fn keys(name: &str) -> Option<String> {
    match name {
        "ALIYUN_SLB_AK_KEY" => Some("key-id".to_owned()),
        "ALIYUN_SLB_AK_SECRET" => Some("key-secret".to_owned()),
        _ => None,
    }
}

pub fn adapter(double: &SlbDouble, mode: &str) -> SlbAdapter {
    adapter_with(double, mode, json!({}))
}

pub fn adapter_with(double: &SlbDouble, mode: &str, more: Value) -> SlbAdapter {
    SlbAdapter::with_environment(settings(double, mode, more), &keys).unwrap()
}

/// A Service with the port 80, which leads to the port `web` of Pods, and the load balancer `lb-1`.
pub fn service(name: &str) -> Employer {
    Employer {
        kind: "Service".to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        labels: BTreeMap::from([(LOAD_BALANCER.to_owned(), "lb-1".to_owned())]),
        spec: json!({
            "selector": { "app": name },
            "ports": [{ "name": "http", "port": 80, "targetPort": "web", "protocol": "TCP" }],
        }),
        ..Employer::default()
    }
}

/// The same with an annotation for VServer groups.
pub fn service_with_groups(name: &str, groups: &str) -> Employer {
    let mut service = service(name);
    service
        .annotations
        .insert(GROUPS.to_owned(), groups.to_owned());
    service
}

/// Adds the port 443, which leads to the port 8443 of Pods.
pub fn add_https(service: &mut Employer) {
    let port = json!({ "name": "https", "port": 443, "targetPort": 8443 });
    service.spec["ports"].as_array_mut().unwrap().push(port);
}

/// A Pod that should serve, with the port `web` = 8080.
pub fn pod(name: &str, address: &str) -> Pod {
    Pod {
        id: PodId {
            uid: format!("uid-{name}"),
            name: name.to_owned(),
        },
        addresses: vec![address.parse().unwrap()],
        ports: vec![PodPort {
            name: "web".to_owned(),
            number: 8080,
            protocol: "TCP".to_owned(),
        }],
        on: true,
        ..Pod::default()
    }
}

/// `count` Pods, whose network interfaces the double knows.
pub fn pods(double: &SlbDouble, count: usize) -> Vec<Pod> {
    let mut state = double.state();
    let pod = |index| {
        let address = format!("10.0.0.{index}");
        state.add_interface(&address, &format!("eni-{index}"));
        pod(&format!("pod-{index}"), &address)
    };
    (1..=count).map(pod).collect()
}

pub fn off(pod: &Pod) -> Pod {
    Pod {
        on: false,
        ..pod.clone()
    }
}

/// The members of Pods.
pub fn members(adapter: &SlbAdapter, service: &Employer, pods: &[Pod]) -> Vec<Member> {
    let members = |pod| adapter.members(service, pod).unwrap();
    pods.iter().flat_map(members).collect()
}

pub async fn register(adapter: &SlbAdapter, service: &Employer, pods: &[Pod]) -> Applied {
    let changes = Changes {
        register: members(adapter, service, pods),
        ..Changes::default()
    };
    adapter.apply(service, &changes).await
}

pub async fn drain(adapter: &SlbAdapter, service: &Employer, pods: &[Pod]) -> Applied {
    let changes = Changes {
        drain: members(adapter, service, pods),
        ..Changes::default()
    };
    adapter.apply(service, &changes).await
}

pub async fn deregister(adapter: &SlbAdapter, service: &Employer, pods: &[Pod]) -> Applied {
    let changes = Changes {
        deregister: members(adapter, service, pods),
        ..Changes::default()
    };
    adapter.apply(service, &changes).await
}

/// The registrations; no group may be unreadable.
pub async fn registrations(
    adapter: &SlbAdapter,
    service: &Employer,
    pods: &[Pod],
) -> Vec<Registration> {
    let observation = adapter.observe(service, pods).await.unwrap();
    assert_eq!(observation.unreadable_groups, []);
    observation.registrations
}

/// What the load balancer does with the only member of a Pod.
pub async fn presence(adapter: &SlbAdapter, service: &Employer, pod: &Pod) -> Presence {
    let member = members(adapter, service, std::slice::from_ref(pod)).remove(0);
    presence_of(adapter, service, std::slice::from_ref(pod), &member.key).await
}

pub async fn presence_of(
    adapter: &SlbAdapter,
    service: &Employer,
    pods: &[Pod],
    key: &MemberKey,
) -> Presence {
    let registrations = registrations(adapter, service, pods).await;
    let found = registrations.into_iter().find(|r| r.member.key == *key);
    found.map_or(Presence::Absent, |registration| registration.presence)
}

/// The only result.
pub fn only(applied: Applied) -> Result<Presence, AdapterError> {
    assert_eq!(applied.len(), 1, "{applied:?}");
    applied.into_values().next().unwrap()
}

/// The errors and the number of good results.
pub fn split(applied: &Applied) -> (Vec<(String, String)>, usize) {
    let errors: Vec<_> = applied
        .iter()
        .filter_map(|(key, result)| {
            Some((key.address.to_string(), result.clone().err()?.to_string()))
        })
        .collect();
    let good = applied.len() - errors.len();
    (errors, good)
}

pub const DRAINING: Presence = Presence::Draining { until: None };
