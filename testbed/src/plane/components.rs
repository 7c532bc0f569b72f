//! The command lines of the components.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::credentials::Credentials;
use super::{Options, callers};
use crate::paths;

/// Loopback ports of a plane.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// API server, HTTPS.
    pub apiserver: u16,
    /// etcd for its client, the API server.
    pub etcd: u16,
    /// etcd for its peers; there are none.
    pub etcd_peer: u16,
}

pub fn etcd(dir: &Path, ports: Ports) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    flags([
        ("data-dir", data(dir).display().to_string()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("default={peer}")),
        // The data is removed with the plane, so syncs to disk would only slow the tests down.
        ("unsafe-no-fsync", "true".to_owned()),
        ("quota-backend-bytes", (4_u64 << 30).to_string()),
        ("log-level", "warn".to_owned()),
    ])
}

/// Directory of etcd's data.
pub fn data(dir: &Path) -> PathBuf {
    dir.join("etcd")
}

/// Directory in which the API server creates its serving certificate.
pub fn certificates(dir: &Path) -> PathBuf {
    dir.join("certificates")
}

/// The certificate that clients trust. It exists soon after the first start.
pub fn serving_certificate(dir: &Path) -> PathBuf {
    certificates(dir).join("apiserver.crt")
}

pub fn audit_log(dir: &Path) -> PathBuf {
    dir.join("logs/audit.jsonl")
}

pub fn apiserver(
    dir: &Path,
    ports: Ports,
    credentials: &Credentials,
    options: &Options,
) -> Result<Vec<String>> {
    let issuer = "https://kubernetes.default.svc".to_owned();
    let admission = callers::create(dir)?;
    let mut all = flags([
        (
            "admission-control-config-file",
            admission.display().to_string(),
        ),
        ("etcd-servers", format!("http://127.0.0.1:{}", ports.etcd)),
        ("bind-address", "127.0.0.1".to_owned()),
        ("advertise-address", "127.0.0.1".to_owned()),
        ("secure-port", ports.apiserver.to_string()),
        ("cert-dir", certificates(dir).display().to_string()),
        // A loopback address is not a valid endpoint of the Service `kubernetes`.
        ("endpoint-reconciler-type", "none".to_owned()),
        ("service-cluster-ip-range", "10.0.0.0/16".to_owned()),
        ("authorization-mode", "RBAC".to_owned()),
        // As in kubeadm: for example, no kubelet may change a label of a Pod.
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        (
            "token-auth-file",
            credentials.token_file.display().to_string(),
        ),
        ("service-account-issuer", issuer),
        (
            "service-account-signing-key-file",
            credentials.service_account_key.display().to_string(),
        ),
        (
            "service-account-key-file",
            credentials.service_account_public.display().to_string(),
        ),
        ("enable-priority-and-fairness", "false".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("profiling", "false".to_owned()),
    ]);
    if options.audit {
        let policy = dir.join("audit-policy.yaml");
        // One line per request, written when its response is complete.
        let content = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
            "rules": [{"level": "Metadata"}],
        });
        fs::write(&policy, serde_norway::to_string(&content)?).context("writing audit-policy")?;
        all.extend(flags([
            ("audit-policy-file", policy.display().to_string()),
            ("audit-log-path", audit_log(dir).display().to_string()),
            ("audit-log-mode", "batch".to_owned()),
            ("audit-log-batch-max-wait", "100ms".to_owned()),
            ("audit-log-batch-buffer-size", "100000".to_owned()),
            // 0 disables rotation, because a count would miss rotated lines.
            ("audit-log-maxsize", "0".to_owned()),
        ]));
    }
    all.extend(options.apiserver_flags.iter().cloned());
    Ok(all)
}

pub fn controller_manager(
    dir: &Path,
    kubeconfig: &Path,
    credentials: &Credentials,
    options: &Options,
) -> Vec<String> {
    flags([
        ("kubeconfig", kubeconfig.display().to_string()),
        // As in most clusters, each controller acts as its own service account.
        (
            "use-service-account-credentials",
            (!options.shared_controller_account).to_string(),
        ),
        (
            "service-account-private-key-file",
            credentials.service_account_key.display().to_string(),
        ),
        (
            "root-ca-file",
            serving_certificate(dir).display().to_string(),
        ),
        ("leader-elect", "false".to_owned()),
        ("secure-port", "0".to_owned()),
        ("kube-api-qps", "300".to_owned()),
        ("kube-api-burst", "600".to_owned()),
    ])
}

pub fn scheduler(dir: &Path, kubeconfig: &Path) -> Result<Vec<String>> {
    let config = dir.join("scheduler.yaml");
    let content = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": false},
    });
    fs::write(&config, serde_norway::to_string(&content)?).context("writing scheduler.yaml")?;
    Ok(flags([
        ("config", config.display().to_string()),
        ("secure-port", "0".to_owned()),
    ]))
}

/// kwok with the stages of `testbed/plane/kwok`, to be started under `supervise`.
pub fn kwok(binary: &Path, kubeconfig: &Path) -> Result<Vec<String>> {
    let stages = paths::repository().join("testbed/plane/kwok");
    let mut files = fs::read_dir(&stages)
        .with_context(|| format!("reading {}", stages.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    let mut all = vec!["supervise".to_owned(), binary.display().to_string()];
    all.extend(flags([
        ("kubeconfig", kubeconfig.display().to_string()),
        (
            "manage-nodes-with-annotation-selector",
            "kwok.x-k8s.io/node=fake".to_owned(),
        ),
        ("cidr", "10.128.0.0/12".to_owned()),
        ("node-ip", "127.0.0.1".to_owned()),
        // Without leases the node controller considers every node dead after 40 s.
        ("node-lease-duration-seconds", "40".to_owned()),
    ]));
    all.extend(flags(
        files
            .iter()
            .map(|file| ("config", file.display().to_string())),
    ));
    Ok(all)
}

fn flags<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Vec<String> {
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| format!("--{name}={value}"))
        .collect()
}
