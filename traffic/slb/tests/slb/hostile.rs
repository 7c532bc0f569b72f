//! Hostile answers of the API, and hostile Services.

use std::time::Duration;

use serde_json::json;
use testbed::slb_double::{Backend, Effect, Fault, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use traffic::{Adapter, AdapterError};
use traffic_slb::{GROUPS, LOAD_BALANCER, SlbAdapter, WEIGHT};

use crate::common::*;

#[tokio::test]
async fn text_of_the_api_is_safe_to_show() {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    let adapter = adapter(&double, "observe");
    let code = "Bad\u{202e}\u{1b}[2J key-\u{200b}secret\u{2066} key-secret".to_owned();
    double.fault(Fault::new(Effect::Refuse(400, code)));
    let observed = adapter.observe(&service("web"), &pods(&double, 1)).await;
    let text = observed.unwrap_err().to_string();
    assert!(text.contains("Bad [2J *** ***"), "{text}");
    assert_eq!(traffic::one_line(&text), text);
}

#[tokio::test]
async fn answers_that_cannot_be_read_conclude_nothing() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        r#"{"BackendServers":{"BackendServer":[{"ServerIp":"10.0.0.1","Weight":-1}]}}"#,
        r#"{"BackendServers":{"BackendServer":[{"ServerIp":"10.0.0.1","Weight":1e400}]}}"#,
        r#"{"BackendServers":{"BackendServer":[{"ServerIp":"10.0.0.1","Weight":NaN}]}}"#,
        r#"{"BackendServers":[]}{}"#,
        deep.as_str(),
        "<html>",
        "",
    ] {
        let double = double().await;
        let pods = pods(&double, 1);
        let adapter = adapter(&double, "write");
        let fault = Fault::new(Effect::Answer(body.to_owned()));
        double.fault(fault.on("DescribeLoadBalancerAttribute"));
        let observation = adapter.observe(&service("web"), &pods).await.unwrap();
        let [(group, AdapterError::Transient(_))] = &observation.unreadable_groups[..] else {
            panic!("{body}: {observation:?}");
        };
        assert_eq!(group, "lb-1");
        let applied = register(&adapter, &service("web"), &pods).await;
        only(applied).unwrap_err();
        assert_eq!(double.backends("lb-1"), []);
    }
}

/// An API that sends a byte of its answer now and then, and never ends.
#[tokio::test]
async fn slow_answer_ends_with_the_timeout() {
    let double = double().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let drip = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut request).await.unwrap();
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let fields = json!({ "endpoint": url, "callTimeoutSeconds": 1 });
    let settings = settings(&double, "observe", fields);
    let adapter = SlbAdapter::with_environment(settings, &keys).unwrap();
    let (service, pods) = (service("web"), pods(&double, 1));
    // The API stops when the adapter has closed the connection.
    let ((), observed) = tokio::join!(drip, adapter.observe(&service, &pods));
    let error = observed.unwrap_err();
    assert!(error.to_string().contains("the time is up"), "{error}");
}

/// A VServer group may have a server twice, of which somebody else has registered one.
#[tokio::test]
async fn own_server_leaves_beside_a_foreign_one() {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-a");
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service_with_groups("web", "rsp-a:http");
    register(&adapter, &service, &pods).await;
    let foreign = Backend {
        server_id: "i-foreign".to_owned(),
        kind: "ecs".to_owned(),
        description: "by hand".to_owned(),
        ..double.backends("rsp-a")[0].clone()
    };
    let kept = foreign.clone();
    double
        .state()
        .change("rsp-a", |list| list.insert(0, foreign));
    let off = [off(&pods[0])];
    only(drain(&adapter, &service, &off).await).unwrap();
    // The foreign server still gets requests. A success would be repeated without a reason in the status.
    let error = only(drain(&adapter, &service, &off).await).unwrap_err();
    assert!(error.to_string().contains("somebody else"), "{error}");
    only(deregister(&adapter, &service, &off).await).unwrap();
    assert_eq!(double.backends("rsp-a"), [kept]);
}

#[tokio::test]
async fn groups_that_do_not_exist_cost_few_calls() {
    let double = double().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let groups: Vec<_> = (0..50).map(|n| format!("rsp-{n}:http")).collect();
    let service = service_with_groups("web", &groups.join(","));
    adapter.check(&service).unwrap();
    let observation = adapter.observe(&service, &pods).await.unwrap();
    assert_eq!(observation.unreadable_groups.len(), 50);
    let calls = double.count("DescribeVServerGroups");
    assert!(calls <= 2, "{calls}");
}

#[tokio::test]
async fn hostile_services_are_refused_with_the_field() {
    let double = double().await;
    let many: Vec<_> = (0..20_000).map(|n| format!("rsp-{n}:http")).collect();
    let many = many.join(",");
    let ports: Vec<_> = (1..=1000).map(|port| json!({ "port": port })).collect();
    let mut cases = vec![];
    for (key, value) in [
        (GROUPS, many.as_str()),
        (GROUPS, "rsp-\u{202e}a:http"),
        (GROUPS, "rsp-a:65536"),
        (GROUPS, "rsp-a:http:80"),
        (GROUPS, ":http"),
        (GROUPS, "\n"),
        (WEIGHT, "-1"),
        (WEIGHT, "1e1"),
        (WEIGHT, "NaN"),
        (WEIGHT, "99999999999999999999"),
    ] {
        let mut service = service("web");
        service.annotations.insert(key.to_owned(), value.to_owned());
        cases.push((service, key));
    }
    for id in [
        "",
        "lb-1/../lb-2",
        "lb-1&Action=DeleteLoadBalancer",
        "lb-\u{202e}1",
    ] {
        let mut service = service("web");
        service
            .labels
            .insert(LOAD_BALANCER.to_owned(), id.to_owned());
        cases.push((service, LOAD_BALANCER));
    }
    for wrong in [json!(ports), json!([{ "port": 65536 }]), json!("80")] {
        let mut service = service("web");
        service.spec["ports"] = wrong;
        cases.push((service, "spec.ports"));
    }
    for mode in ["observe", "write"] {
        let adapter = adapter(&double, mode);
        for (service, field) in &cases {
            if mode == "observe" && [GROUPS, WEIGHT].contains(field) {
                continue; // they have an effect in the mode `write` only
            }
            let error = adapter.check(service).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
            assert!(
                error.len() < 500 && traffic::one_line(&error) == error,
                "{error}"
            );
        }
    }
    assert!(double.calls().is_empty());
}
