//! `operating serve --install`, three replicas at once on a bare API server; replicas that start and end; and the
//! removal.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use operating::api::keys;
use operating::cli::install::names;
use testbed::balancer::LoadBalancer;
use testbed::replica::Replica;
use testbed::wait;

use super::cluster::Cluster;
use super::dial::{review, serial, serial_in};
use super::load::Load;

/// How often each replica is ended.
const RESTARTS: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn replicas_come_and_go_and_fail_no_review() {
    let cluster = Cluster::start(0).await;
    let lb = LoadBalancer::start([]).await.unwrap();
    let url = format!("https://localhost:{}", lb.address().port());
    let admin = cluster.plane.kubeconfig().to_str().unwrap();
    let flags = ["--kubeconfig", admin, "--install", "--webhook-url", &url];
    let start = async |name: &str| {
        let replica = cluster.replica(name, &flags).await;
        lb.add(replica.listen);
        replica
    };
    let names = ["one", "two", "three"];
    let mut replicas = join_all(names.map(&start)).await;

    // There is one Secret, every entry trusts it, and every replica serves it.
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), names::NAMESPACE);
    in_line(&cluster, &replicas).await;
    let all = secrets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 1, "{all:?}");

    // A rule that Kuperator left behind.
    let namespace = cluster.ruled_namespace(&[keys::PROTECTED_FINALIZER]).await;
    let load = Load::start(cluster.client(), &namespace).await;
    // The API server reuses its connections, so the test calls each replica directly.
    let bundle = cluster.bundle().await.unwrap();
    for replica in &replicas {
        let answer = review(replica.listen, &bundle).await.unwrap();
        assert!(answer.contains(r#""uid":"asked-by-hand""#), "{answer}");
        assert!(answer.contains(r#""allowed":false"#), "{answer}");
    }

    for _ in 0..RESTARTS * replicas.len() {
        let replica = replicas.remove(0);
        let name = replica.name().to_owned();
        // Endpoints follow readiness, like the endpoints of a Service.
        let code = replica.leave(&lb).await.unwrap();
        assert_eq!(code, Some(0));
        load.more(50).await;
        replicas.push(start(&name).await);
        load.more(50).await;
    }
    assert_eq!(load.take_failures(), Vec::<String>::new());

    // The Secret is lost, and with it the authority. The replicas create another authority, and no review fails.
    for _ in 0..2 {
        let former = cluster.bundle().await.unwrap();
        let deleted = secrets.delete(names::SECRET, &Default::default()).await;
        deleted.unwrap();
        in_line(&cluster, &replicas).await;
        assert_ne!(cluster.bundle().await.unwrap(), former);
        load.more(50).await;
        assert_eq!(load.take_failures(), Vec::<String>::new());
    }

    // The servers are killed first, all at once.
    cluster.operating(&["install", "--webhook-url", &url]).await;
    drop(replicas);
    cluster.operating(&["uninstall", "--yes"]).await;
    cluster.assert_gone().await;
    load.assert_pods_live_on().await;
    wait::until("edits are free again", async || {
        load.take_failures();
        load.more(50).await;
        load.take_failures().is_empty()
    })
    .await;
}

/// Waits until every entry trusts the authorities of the Secret, and every replica serves its leaf.
async fn in_line(cluster: &Cluster, replicas: &[Replica]) {
    wait::until(
        "Secret, configurations and replicas are in line",
        async || {
            let Some(leaf) = cluster.secret(names::SECRET, "tls.crt").await else {
                return false;
            };
            let bundle = cluster.secret(names::SECRET, "ca.crt").await;
            if bundle.is_none() || cluster.bundle().await != bundle {
                return false;
            }
            let bundle = bundle.unwrap_or_default();
            let serials = join_all(replicas.iter().map(|r| serial(r.listen, &bundle))).await;
            let wanted = serial_in(&leaf);
            serials
                .iter()
                .all(|s| s.as_ref().is_ok_and(|s| *s == wanted))
        },
    )
    .await;
}
