//! Finds servers that still run. A server that runs on would write again what an uninstallation removes, and with
//! `serve --install` it would install everything again when it restarts.

use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::cli::answering_server::{Answering, DEFAULT_NAMESPACE, find_answering};
use crate::cli::install::WAIT_TIMEOUT;
use crate::cli::install::names;
use crate::cli::install::request::retry_optional_request;
use crate::cli::install::request::retry_request;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The duration of a Lease without one of its own.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A Lease that nobody renewed for this long has no holder, whatever the difference of the clocks.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// The servers that run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningServer {
    /// The Deployments of the server in its namespace that have Pods or want some.
    pub deployments: Vec<String>,
    /// How a server shows itself that no Deployment runs, in words.
    pub elsewhere: Option<String>,
}

impl RunningServer {
    /// Looks for the Deployment, asks whether a server answers, and watches the Lease for as long as its holder may
    /// take to renew it.
    pub async fn find(client: &Client, namespace: &str) -> anyhow::Result<RunningServer> {
        let deployments = find_deployments(client, namespace).await?;
        let is_ending = !server_pods(client, namespace).await?.is_empty();
        let elsewhere = match deployments.is_empty() && !is_ending {
            false => None,
            true => match find_answering(client, DEFAULT_NAMESPACE).await {
                Answering::Server(text) => Some(format!("it answers for rules: {text}")),
                _ => find_holder(client, namespace).await?,
            },
        };
        Ok(RunningServer {
            deployments,
            elsewhere,
        })
    }

    /// # Errors
    /// If a server runs that this command can't stop; the text has the remedy.
    pub fn refuse_elsewhere(&self, namespace: &str) -> anyhow::Result<()> {
        let Some(sign) = &self.elsewhere else {
            return Ok(());
        };
        bail!(
            "nothing was changed: a server still runs, and it is no Deployment with the label \
             app.kubernetes.io/name={} in namespace {namespace}; {sign}. Stop it and run this again, or name the \
             namespace of its Deployment with --namespace",
            names::APP_NAME
        )
    }
}

/// The Deployments of the server that have Pods or want some.
async fn find_deployments(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let description = format!("list the Deployments of namespace {namespace}");
    let ours = own_label();
    let listed = retry_request(&description, || api.list(&ours)).await?;
    let running = listed.into_iter().filter(has_pods);
    Ok(running.map(|deployment| deployment.name_any()).collect())
}

fn own_label() -> ListParams {
    ListParams::default().labels(&format!("app.kubernetes.io/name={}", names::APP_NAME))
}

fn has_pods(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let present = deployment.status.as_ref().and_then(|s| s.replicas);
    wanted != Some(0) || present.unwrap_or(0) > 0
}

/// The Pods of the server, also those that are ending: a Deployment does not count these any more, and a leader works on
/// until its last reviews are answered.
async fn server_pods(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let description = format!("list the Pods of namespace {namespace}");
    // A Pod that was evicted stays as Failed.
    let ours = own_label().fields("status.phase!=Failed,status.phase!=Succeeded");
    let listed = retry_request(&description, || api.list_metadata(&ours)).await?;
    Ok(listed.into_iter().map(|pod| pod.name_any()).collect())
}

/// Scales the Deployments of the server to 0 and waits until their Pods are gone. Returns whether there were any.
///
/// # Errors
/// If Pods are left: their server would write again what is removed afterwards.
pub async fn stop_deployments(client: &Client, namespace: &str) -> anyhow::Result<bool> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployments = find_deployments(client, namespace).await?;
    let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    let params = PatchParams::default();
    for name in &deployments {
        let description = format!("scale Deployment {namespace}/{name} to 0");
        retry_optional_request(&description, || api.patch_scale(name, &params, &none)).await?;
    }
    if deployments.is_empty() && server_pods(client, namespace).await?.is_empty() {
        return Ok(false);
    }
    eprintln!("waiting for the Pods of the server in namespace {namespace} to end");
    let until = Instant::now() + WAIT_TIMEOUT;
    loop {
        let pods = server_pods(client, namespace).await?;
        if pods.is_empty() {
            return Ok(true);
        }
        if Instant::now() > until {
            bail!(
                "Pods of the server still run in namespace {namespace}: {}; see who keeps or recreates them, such as a GitOps \
                 tool that sets the number of replicas back",
                pods.join(", ")
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The holder of the Lease, in words, if somebody renews it.
pub async fn find_holder(client: &Client, namespace: &str) -> anyhow::Result<Option<String>> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let description = format!("get Lease {namespace}/{}", names::LEASE);
    let read = async || retry_optional_request(&description, || api.get(names::LEASE)).await;
    let Some(first) = read().await?.and_then(|lease| lease.spec) else {
        return Ok(None);
    };
    if !may_be_held(&first, Timestamp::now()) {
        return Ok(None);
    }
    eprintln!(
        "looking whether {} renews Lease {namespace}/{}",
        holder(&first),
        names::LEASE
    );
    let until = Instant::now() + duration(&first).min(WAIT_TIMEOUT);
    while Instant::now() < until {
        sleep(POLL_INTERVAL).await;
        let now = read().await?.and_then(|lease| lease.spec);
        match now {
            Some(now) if now.renew_time != first.renew_time && !holder(&now).is_empty() => {
                return Ok(Some(format!(
                    "{} renews Lease {namespace}/{}",
                    holder(&now),
                    names::LEASE
                )));
            }
            Some(now) if !holder(&now).is_empty() => {}
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn holder(lease: &LeaseSpec) -> &str {
    lease.holder_identity.as_deref().unwrap_or_default()
}

fn duration(lease: &LeaseSpec) -> Duration {
    let seconds = lease.lease_duration_seconds;
    let given = seconds.and_then(|s| u64::try_from(s).ok());
    given.map_or(LEASE_DURATION, Duration::from_secs)
}

/// Whether a Lease has a holder who may still live. A clock of this machine that is wrong by hours does no harm.
fn may_be_held(lease: &LeaseSpec, now: Timestamp) -> bool {
    let renewed = lease.renew_time.as_ref().map(|at| at.0);
    let is_forgotten =
        renewed.is_some_and(|at| now.duration_since(at).unsigned_abs() > FORGOTTEN && at < now);
    !holder(lease).is_empty() && !is_forgotten
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(MicroTime(renewed.parse().unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn lease_without_holder_or_long_forgotten_is_not_held() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        for (holder, renewed, expected) in [
            ("a", "2026-01-01T11:59:58Z", true),
            ("a", "2026-01-01T11:55:00Z", true),
            ("a", "2026-01-01T12:30:00Z", true),
            ("a", "2025-12-31T11:00:00Z", false),
            ("", "2026-01-01T11:59:58Z", false),
        ] {
            let lease = lease(holder, renewed);
            assert_eq!(may_be_held(&lease, now), expected, "{holder} {renewed}");
        }
    }

    #[test]
    fn deployment_runs_until_its_last_pod_is_gone() {
        for (object, expected) in [
            (json!({ "spec": { "replicas": 3 } }), true),
            (json!({ "spec": {} }), true),
            (
                json!({ "spec": { "replicas": 0 }, "status": { "replicas": 1 } }),
                true,
            ),
            (json!({ "spec": { "replicas": 0 }, "status": {} }), false),
        ] {
            let mut object = object;
            object["spec"]["selector"] = json!({});
            object["spec"]["template"] = json!({});
            let deployment = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(has_pods(&deployment), expected, "{object}");
        }
    }

    #[test]
    fn server_elsewhere_is_refused_with_the_remedy() {
        let none = RunningServer::default();
        assert!(none.refuse_elsewhere("home").is_ok());
        let found = RunningServer {
            elsewhere: Some("a renews Lease home/l".to_owned()),
            ..none
        };
        let error = found.refuse_elsewhere("home").unwrap_err().to_string();
        assert!(error.contains("nothing was changed"), "{error}");
        assert!(error.contains("a renews Lease home/l. Stop it"), "{error}");
    }
}
