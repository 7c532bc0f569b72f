//! The mode `write`, against the double of the API.

use crate::common::*;
use serde_json::json;
use testbed::slb_double::{Backend, Effect, Existing, Fault, Listener, SlbDouble};
use traffic::{Adapter, AdapterError, Control, Presence};
use traffic_slb::{LOAD_BALANCER, WEIGHT};

fn foreign(ip: &str, weight: u32) -> Backend {
    Backend {
        server_id: "i-foreign".to_owned(),
        ip: ip.to_owned(),
        kind: "ecs".to_owned(),
        port: 0,
        weight,
        description: "by hand".to_owned(),
    }
}

fn writes(double: &SlbDouble) -> usize {
    let is_write = |action: &str| !action.starts_with("Describe");
    let calls = double.calls();
    calls.iter().filter(|call| is_write(&call.action)).count()
}

#[tokio::test]
async fn pod_is_registered_drained_and_removed() {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    double.state().polls_until_healthy = 1;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    assert_eq!(adapter.settings().control, Control::Drains);
    let service = service("web");
    adapter.check(&service).unwrap();
    assert_eq!(registrations(&adapter, &service, &pods).await, []);

    let applied = register(&adapter, &service, &pods).await;
    assert_eq!(only(applied), Ok(Presence::Pending));
    let backends = double.backends("lb-1");
    assert_eq!(backends[0].server_id, "eni-1");
    assert_eq!(
        (backends[0].ip.as_str(), backends[0].weight),
        ("10.0.0.1", 100)
    );
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Pending
    );
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
    let registration = registrations(&adapter, &service, &pods).await.remove(0);
    assert_eq!(registration.member.pod, pods[0].id);
    assert_eq!(registration.member.weight, 100);

    let pods = [off(&pods[0])];
    assert_eq!(only(drain(&adapter, &service, &pods).await), Ok(DRAINING));
    assert_eq!(double.backends("lb-1")[0].weight, 0);
    assert_eq!(presence(&adapter, &service, &pods[0]).await, DRAINING);
    let applied = deregister(&adapter, &service, &pods).await;
    assert_eq!(only(applied), Ok(Presence::Absent));
    assert_eq!(double.backends("lb-1"), []);
    assert_eq!(registrations(&adapter, &service, &pods).await, []);
    // It is no error to remove it once more, and needs no call.
    let before = writes(&double);
    let applied = deregister(&adapter, &service, &pods).await;
    assert_eq!(only(applied), Ok(Presence::Absent));
    assert_eq!(writes(&double), before);
}

#[tokio::test]
async fn each_named_group_gets_its_port() {
    let double = double().await;
    for (group, port) in [("rsp-a", 80), ("rsp-b", 443)] {
        double.state().add_group("lb-1", group);
        double
            .state()
            .add_listener("lb-1", Listener::tcp(port, Some(group)));
    }
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let mut service = service_with_groups("web", "rsp-a:http,rsp-b:443");
    add_https(&mut service);
    let applied = register(&adapter, &service, &pods).await;
    assert_eq!(split(&applied), (vec![], 2));
    assert_eq!(double.backends("rsp-a")[0].port, 8080);
    assert_eq!(double.backends("rsp-b")[0].port, 8443);
    assert_eq!(double.backends("lb-1"), []);
    let registrations = registrations(&adapter, &service, &pods).await;
    let serving = registrations
        .iter()
        .filter(|r| r.presence == Presence::Serving);
    assert_eq!(serving.count(), 2);
    // The interface of an address is looked up once.
    assert_eq!(double.count("DescribeNetworkInterfaces"), 1);
}

#[tokio::test]
async fn pod_without_the_port_is_no_member() {
    let double = double().await;
    let adapter = adapter(&double, "write");
    let service = service_with_groups("web", "rsp-a:http");
    let mut pod = pod("a", "10.0.0.1");
    pod.ports.clear();
    let error = adapter.members(&service, &pod).unwrap_err().to_string();
    assert!(error.contains("\"http\""), "{error}");
    pod.addresses.clear();
    adapter.members(&service, &pod).unwrap_err();
    pod.on = false;
    assert_eq!(adapter.members(&service, &pod), Ok(vec![]));
}

#[tokio::test]
async fn changed_weight_is_set() {
    let double = double().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let mut service = service("web");
    register(&adapter, &service, &pods).await;
    service
        .annotations
        .insert(WEIGHT.to_owned(), "30".to_owned());
    only(register(&adapter, &service, &pods).await).unwrap();
    assert_eq!(double.backends("lb-1")[0].weight, 30);
    let before = writes(&double);
    only(register(&adapter, &service, &pods).await).unwrap();
    assert_eq!(writes(&double), before, "nothing to change needs no call");
}

#[tokio::test]
async fn drained_member_serves_again() {
    let double = double().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &pods).await;
    drain(&adapter, &service, &pods).await;
    register(&adapter, &service, &pods).await;
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
}

#[tokio::test]
async fn calls_have_at_most_20_servers() {
    let double = double().await;
    let pods = pods(&double, 45);
    let adapter = adapter(&double, "write");
    let service = service("web");
    let applied = register(&adapter, &service, &pods).await;
    assert_eq!(split(&applied), (vec![], 45));
    assert_eq!(double.count("AddBackendServers"), 3);
    assert_eq!(double.backends("lb-1").len(), 45);
    let applied = deregister(&adapter, &service, &pods).await;
    assert_eq!(split(&applied), (vec![], 45));
    assert_eq!(double.count("RemoveBackendServers"), 3);
}

#[tokio::test]
async fn servers_of_others_are_left_alone_and_said() {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    let others = vec![foreign("10.0.0.1", 50), foreign("10.0.9.9", 50)];
    double
        .state()
        .change("lb-1", |list| list.clone_from(&others));
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    // A Pod that should serve: the registration says why it can't be made.
    assert_eq!(registrations(&adapter, &service, &pods).await, []);
    let error = only(register(&adapter, &service, &pods).await).unwrap_err();
    assert!(
        matches!(&error, AdapterError::Permanent(text) if text.contains("somebody else")),
        "{error}"
    );
    // A Pod that should not serve still does, and its removal says why.
    let pods = [off(&pods[0])];
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
    only(drain(&adapter, &service, &pods).await).unwrap_err();
    only(deregister(&adapter, &service, &pods).await).unwrap_err();
    assert_eq!(double.backends("lb-1"), others);
    assert_eq!(writes(&double), 0);
}

#[tokio::test]
async fn servers_of_other_services_and_clusters_are_left_out() {
    let double = double().await;
    let pods = pods(&double, 2);
    let adapter = adapter(&double, "write");
    register(&adapter, &service("api"), &pods[..1]).await;
    let cluster = adapter_with(&double, "write", json!({ "cluster": "other" }));
    register(&cluster, &service("web"), &pods[1..]).await;
    assert_eq!(double.backends("lb-1").len(), 2);
    assert_eq!(registrations(&adapter, &service("web"), &[]).await, []);
}

#[tokio::test]
async fn group_of_another_load_balancer_is_refused() {
    let double = double().await;
    {
        let mut state = double.state();
        state.add_load_balancer("lb-2");
        state.add_group("lb-2", "rsp-secret");
    }
    let pods = pods(&double, 1);
    let list = json!([
        { "id": "lb-1", "namespaces": [NAMESPACE] },
        { "id": "lb-2", "namespaces": ["other"] },
    ]);
    let adapter = adapter_with(&double, "write", json!({ "loadBalancers": list }));
    let service = service_with_groups("web", "rsp-secret:http");
    let error = only(register(&adapter, &service, &pods).await).unwrap_err();
    assert!(
        matches!(&error, AdapterError::Permanent(text) if text.contains("rsp-secret")),
        "{error}"
    );
    let observation = adapter.observe(&service, &pods).await.unwrap();
    assert_eq!(observation.unreadable_groups[0].0, "rsp-secret");

    let mut other = crate::common::service("web");
    other
        .labels
        .insert(LOAD_BALANCER.to_owned(), "lb-2".to_owned());
    let error = adapter.check(&other).unwrap_err().to_string();
    assert!(
        error.contains("lb-2") && error.contains(NAMESPACE),
        "{error}"
    );
    only(register(&adapter, &other, &pods).await).unwrap_err();
    assert_eq!(writes(&double), 0);
    assert_eq!(double.count("DescribeVServerGroupAttribute"), 0);
}

#[tokio::test]
async fn new_pod_takes_over_an_address() {
    let double = double().await;
    let old = pods(&double, 1);
    let moved = (
        "10.0.0.1".to_owned(),
        "eni-new".to_owned(),
        "vpc-1".to_owned(),
    );
    let new = [pod("new", "10.0.0.1")];
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &old).await;
    // The address is on another network interface now.
    double.state().interfaces = vec![moved];
    let registration = registrations(&adapter, &service, &new).await.remove(0);
    assert_eq!(registration.member.pod.uid, old[0].id.uid);
    only(register(&adapter, &service, &new).await).unwrap();
    let registration = registrations(&adapter, &service, &new).await.remove(0);
    assert_eq!(registration.member.pod, new[0].id);
    assert_eq!(double.backends("lb-1")[0].server_id, "eni-new");
    // A late removal of the old Pod does not take the new one off.
    let applied = deregister(&adapter, &service, &old).await;
    assert_eq!(only(applied), Ok(Presence::Absent));
    assert_eq!(double.backends("lb-1").len(), 1);
}

#[tokio::test]
async fn members_are_found_after_restart_in_groups_no_longer_named() {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-a");
    double.state().add_group("lb-1", "rsp-b");
    double.state().add_load_balancer("lb-2");
    let list = json!([
        { "id": "lb-1", "namespaces": [NAMESPACE] },
        { "id": "lb-2", "namespaces": [NAMESPACE] },
    ]);
    let list = json!({ "loadBalancers": list });
    let pods = pods(&double, 1);
    let before = adapter_with(&double, "write", list.clone());
    register(&before, &service_with_groups("web", "rsp-a:http"), &pods).await;
    let mut on_second = service("web");
    on_second
        .labels
        .insert(LOAD_BALANCER.to_owned(), "lb-2".to_owned());
    register(&before, &on_second, &pods).await;

    let after = adapter_with(&double, "write", list);
    let service = service_with_groups("web", "rsp-b:http");
    let found = registrations(&after, &service, &[]).await;
    // The mark has the name of the Pod, too.
    assert!(found.iter().all(|r| r.member.pod == pods[0].id));
    let groups: Vec<_> = found.iter().map(|r| r.member.key.group.as_str()).collect();
    assert_eq!(groups, ["lb-2", "rsp-a"]);
    let changes = traffic::Changes {
        deregister: found.iter().map(|r| r.member.clone()).collect(),
        ..traffic::Changes::default()
    };
    assert_eq!(split(&after.apply(&service, &changes).await), (vec![], 2));
    assert_eq!(registrations(&after, &service, &pods).await, []);
    // At rest, only groups that matter are read.
    let reads = double.count("DescribeVServerGroupAttribute");
    registrations(&after, &service, &pods).await;
    assert_eq!(double.count("DescribeVServerGroupAttribute"), reads + 2);
}

#[tokio::test]
async fn deleted_service_still_finds_its_members() {
    let double = double().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let mut service = service("web");
    register(&adapter, &service, &pods).await;
    service.deleting = true;
    service.labels.clear();
    let found = registrations(&adapter, &service, &[]).await;
    assert_eq!(found.len(), 1);
    // The member is read, and not only believed to be there.
    assert_eq!(found[0].member.weight, 100);
}

#[tokio::test]
async fn members_are_found_at_once_when_the_service_names_another_group() {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-a");
    double.state().add_group("lb-1", "rsp-b");
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let before = service_with_groups("web", "rsp-a:http");
    registrations(&adapter, &before, &pods).await;
    register(&adapter, &before, &pods).await;
    let after = service_with_groups("web", "rsp-b:http");
    let found = registrations(&adapter, &after, &pods).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].member.key.group, "rsp-a");
    assert_eq!(found[0].member.weight, 100);
}

#[tokio::test]
async fn new_pod_waits_until_the_old_server_is_removed() {
    let double = double().await;
    let old = pods(&double, 1);
    let new = [pod("new", "10.0.0.1")];
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &old).await;
    let before = double.backends("lb-1");
    let refuse = Effect::Refuse(400, "InvalidParameter".to_owned());
    double.fault(Fault::new(refuse).on("RemoveBackendServers"));
    let error = only(register(&adapter, &service, &new).await).unwrap_err();
    assert!(matches!(error, AdapterError::Permanent(_)), "{error}");
    assert_eq!(double.count("AddBackendServers"), 1);
    assert_eq!(double.backends("lb-1"), before);
}

#[tokio::test]
async fn added_member_counts_as_registered_although_reads_are_stale() {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    double.state().stale_reads = 3;
    register(&adapter, &service, &pods).await;
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Pending
    );
    // Its removal can't be confirmed from a stale read.
    let pods = [off(&pods[0])];
    assert!(deregister(&adapter, &service, &pods).await.is_empty());
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Pending
    );
    // Now reads are consistent.
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
    double.state().stale_reads = 0;
    let applied = deregister(&adapter, &service, &pods).await;
    assert_eq!(only(applied), Ok(Presence::Absent));
}

/// Another replica adds a Pod, and this one does not see it yet.
async fn late_add(existing: Existing) -> (SlbDouble, traffic_slb::SlbAdapter, traffic::Applied) {
    let double = double().await;
    double.state().existing = existing;
    let pods = pods(&double, 2);
    let (adapter, other) = (adapter(&double, "write"), adapter(&double, "write"));
    let mut service = service("web");
    service
        .annotations
        .insert(WEIGHT.to_owned(), "40".to_owned());
    double.state().stale_reads = 1;
    register(&other, &service, &pods[..1]).await;
    double.state().stale_reads = 0;
    let applied = register(&adapter, &service, &pods).await;
    assert!(
        applied
            .values()
            .all(|result| !matches!(result, Err(AdapterError::Permanent(_))))
    );
    let second = register(&adapter, &service, &pods).await;
    assert_eq!(split(&second), (vec![], 2));
    assert_eq!(double.backends("lb-1").len(), 2);
    (double, adapter, applied)
}

#[tokio::test]
async fn server_that_is_there_may_be_refused() {
    let (_double, _adapter, applied) = late_add(Existing::Refused).await;
    let (errors, good) = split(&applied);
    assert_eq!((errors.len(), good), (1, 1), "{errors:?}");
    assert!(errors[0].1.contains("ServerAlreadyExist"), "{errors:?}");
}

#[tokio::test]
async fn server_that_is_there_may_be_ignored() {
    let (_double, _adapter, applied) = late_add(Existing::Ignored).await;
    assert_eq!(split(&applied), (vec![], 2));
}

#[tokio::test]
async fn address_needs_one_interface() {
    let double = double().await;
    let pods = pods(&double, 2);
    {
        let mut state = double.state();
        state.interfaces.remove(1);
        let twin = (
            "10.0.0.1".to_owned(),
            "eni-twin".to_owned(),
            "vpc-2".to_owned(),
        );
        state.interfaces.push(twin);
    }
    let adapter = adapter(&double, "write");
    let service = service("web");
    let applied = register(&adapter, &service, &pods).await;
    let results: Vec<_> = applied.values().collect();
    assert!(matches!(results[0], Err(AdapterError::Permanent(text)) if text.contains("vpcId")));
    assert!(matches!(results[1], Err(AdapterError::Transient(text)) if text.contains("10.0.0.2")));
    assert_eq!(writes(&double), 0);

    let adapter = adapter_with(&double, "write", json!({ "vpcId": "vpc-1" }));
    only(register(&adapter, &service, &pods[..1]).await).unwrap();
    assert_eq!(double.backends("lb-1")[0].server_id, "eni-1");
}

#[tokio::test]
async fn group_without_health_check_serves_at_once() {
    let double = double().await;
    double
        .state()
        .add_listener("lb-1", Listener::tcp(80, None).without_health_check());
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &pods).await;
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
    assert_eq!(double.count("DescribeHealthStatus"), 0);
}

#[tokio::test]
async fn group_that_is_gone_has_no_members() {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-a");
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service_with_groups("web", "rsp-a:http");
    register(&adapter, &service, &pods).await;
    {
        let mut state = double.state();
        state.groups.remove("rsp-a");
        state.load_balancers.get_mut("lb-1").unwrap().groups.clear();
    }
    let observation = adapter.observe(&service, &pods).await.unwrap();
    let (group, error) = &observation.unreadable_groups[0];
    assert!(group == "rsp-a" && error.to_string().contains("does not exist"));
    only(register(&adapter, &service, &pods).await).unwrap_err();
    let applied = deregister(&adapter, &service, &pods).await;
    assert_eq!(only(applied), Ok(Presence::Absent));
}

#[tokio::test]
async fn services_of_a_namespace_share_the_first_look() {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-other");
    let adapter = adapter(&double, "write");
    for name in ["web", "api", "mail"] {
        assert_eq!(registrations(&adapter, &service(name), &[]).await, []);
    }
    assert_eq!(double.count("DescribeVServerGroups"), 1);
    assert_eq!(double.count("DescribeVServerGroupAttribute"), 1);
}
