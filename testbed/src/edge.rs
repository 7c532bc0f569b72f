//! A real proxy in front of Pods: Caddy, and the bridge by which the HTTP adapter drives it. Each Service has a port of
//! its own on loopback. The Pods are processes on loopback addresses, see [`crate::containers`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use caddy_bridge::{Options, router};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use traffic::{Adapter, Changes, Employer, Member, MemberKey, PodId};
use traffic_http::HttpAdapter;

use crate::caddy::Caddy;
use crate::pods::is_ready;

/// The group of the members: the name of the port of the Service.
pub const GROUP: &str = "http";
/// How often [`Edge::follow_readiness`] looks at Pods. Controllers of load balancers take seconds from the change of an
/// endpoint to the change of their members.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// A Caddy and its bridge.
#[derive(Debug)]
pub struct Edge {
    /// The Caddy.
    pub caddy: Caddy,
    bridge: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Edge {
    /// Starts Caddy, and the bridge on the port `bridge` of 127.0.0.1. Serves up to two Services: namespace and name.
    ///
    /// # Errors
    /// If Caddy can't be built or started, or the port is taken.
    pub async fn start(bridge: u16, services: &[(&str, &str)]) -> Result<Edge> {
        let caddy = Caddy::start::<2>().await?;
        let mut args = vec!["bridge".to_owned(), "--members-module".to_owned()];
        args.extend(["--admin".to_owned(), caddy.admin()]);
        args.extend(["--map".to_owned(), "10.0.0.0/8=127.0.0.0/8".to_owned()]);
        for ((namespace, name), (_, address)) in services.iter().zip(caddy.fronts()) {
            let frontend = format!("{namespace}/{name}/{GROUP}={address}");
            args.extend(["--frontend".to_owned(), frontend]);
        }
        let options = Options::try_parse_from(args).context("the arguments of the bridge")?;
        let router = router(options)?;
        let address = SocketAddr::from(([127, 0, 0, 1], bridge));
        let listener = TcpListener::bind(address).await?;
        let serve = async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the bridge ended: {error}");
            }
        };
        Ok(Edge {
            caddy,
            bridge: address,
            _task: AbortOnDropHandle::new(tokio::spawn(serve)),
        })
    }

    /// URL at which the Service with this position is served.
    ///
    /// # Panics
    /// If there is no such Service.
    #[must_use]
    pub fn url(&self, position: usize) -> String {
        let (port, _) = self.caddy.fronts().nth(position).unwrap_or_default();
        format!("http://127.0.0.1:{port}/")
    }

    /// An adapter that calls the bridge.
    ///
    /// # Errors
    /// If its settings are wrong.
    pub fn adapter(&self) -> Result<HttpAdapter> {
        let config = serde_json::from_value(json!({ "url": format!("http://{}", self.bridge) }))?;
        Ok(HttpAdapter::new(config)?)
    }

    /// Registers the Pods with these labels that are Ready, and removes the others, as controllers of load balancers do
    /// that follow endpoints: a moment later, and without regard to the lifecycle. For comparison.
    ///
    /// # Errors
    /// As [`Edge::adapter`].
    pub fn follow_readiness(
        &self,
        client: &Client,
        (namespace, name): (&str, &str),
        labels: &str,
        port: u16,
    ) -> Result<AbortOnDropHandle<()>> {
        let adapter = self.adapter()?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(labels);
        let employer = Employer {
            kind: "Service".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            spec: json!({ "ports": [{ "name": GROUP, "port": 80, "targetPort": port }] }),
            ..Employer::default()
        };
        let follow = async move {
            let mut registered = BTreeMap::<MemberKey, Member>::new();
            loop {
                tokio::time::sleep(FOLLOW_EVERY).await;
                let Ok(list) = pods.list(&params).await else {
                    continue;
                };
                let ready: BTreeMap<_, _> = list
                    .items
                    .iter()
                    .filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none())
                    .filter_map(|pod| member(pod, port))
                    .map(|member| (member.key.clone(), member))
                    .collect();
                let left = |all: &BTreeMap<_, Member>, other: &BTreeMap<_, Member>| {
                    let only = all.iter().filter(|(key, _)| !other.contains_key(*key));
                    only.map(|(_, member)| member.clone()).collect()
                };
                let changes = Changes {
                    register: left(&ready, &registered),
                    deregister: left(&registered, &ready),
                    ..Changes::default()
                };
                if !changes.is_empty() {
                    adapter.apply(&employer, &changes).await;
                    registered = ready;
                }
            }
        };
        Ok(AbortOnDropHandle::new(tokio::spawn(follow)))
    }
}

fn member(pod: &Pod, port: u16) -> Option<Member> {
    let address: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(Member {
        key: MemberKey {
            group: GROUP.to_owned(),
            address,
            port,
        },
        pod: PodId {
            uid: pod.uid().unwrap_or_default(),
            name: pod.name_any(),
        },
        weight: 100,
    })
}
