//! Credentials for the API server of a plane: tokens, service-account keys, kubeconfigs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use rcgen::KeyPair;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

/// A user that the API server knows by a static token.
#[derive(Debug)]
pub struct User {
    /// Short name, also the file name of the kubeconfig.
    pub key: &'static str,
    /// User name in RBAC and in the audit log.
    pub name: &'static str,
    /// The token.
    pub token: String,
}

/// Key, name and group of the users of a plane. The components get the names that a cluster gives them, so that the API
/// server's own bootstrap roles apply; none but `admin` is an administrator.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    (
        "kube-controller-manager",
        "system:kube-controller-manager",
        "",
    ),
    ("kube-scheduler", "system:kube-scheduler", ""),
    // kwok writes for all nodes, so its user name is not the name of a node: NodeRestriction lets a node
    // write only its own Pods.
    ("kwok", "operating-plane:kwok", "system:nodes"),
];

/// Files with the credentials of a plane.
#[derive(Debug)]
pub struct Credentials {
    /// Static users.
    pub users: Vec<User>,
    /// `--token-auth-file`.
    pub token_file: PathBuf,
    /// Private key that signs service-account tokens (PEM).
    pub service_account_key: PathBuf,
    /// Its public half (PEM).
    pub service_account_public: PathBuf,
}

impl Credentials {
    /// Creates the files in `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        let mut users = Vec::new();
        let mut lines = String::new();
        for (key, name, group) in USERS {
            let token = random_hex(16)?;
            // token,user,uid,"groups"
            lines += &format!("{token},{name},{key},\"{group}\"\n");
            users.push(User { key, name, token });
        }
        let key = KeyPair::generate().context("generating the service-account key")?;
        let write = |name: &str, content: &str| -> Result<PathBuf> {
            let path = dir.join(name);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        Ok(Self {
            users,
            token_file: write("tokens.csv", &lines)?,
            service_account_key: write("service-account.key", &key.serialize_pem())?,
            service_account_public: write("service-account.pub", &key.public_key_pem())?,
        })
    }
}

/// Writes a kubeconfig with one cluster, one user, one context. `ca` is a PEM file, taken into
/// the kubeconfig so that it can be moved.
pub fn write_kubeconfig(
    path: &Path,
    server: &str,
    ca: &Path,
    user: &str,
    token: &str,
) -> Result<()> {
    let ca = fs::read(ca).with_context(|| format!("reading {}", ca.display()))?;
    let name = "operating-plane";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "clusters": [{"name": name, "cluster": {
            "server": server,
            "certificate-authority-data": k8s_openapi::ByteString(ca),
        }}],
        "users": [{"name": user, "user": {"token": token}}],
    });
    let text = serde_norway::to_string(&config)?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Writes to `to` a kubeconfig for the current cluster of `from`, with another user.
pub fn write_kubeconfig_like(from: &Path, to: &Path, user: &str, token: &str) -> Result<()> {
    let text = fs::read_to_string(from).with_context(|| format!("reading {}", from.display()))?;
    let mut config: serde_json::Value = serde_norway::from_str(&text)?;
    let named = |list: &serde_json::Value, name: &serde_json::Value| {
        let mut entries = list.as_array().into_iter().flatten();
        entries.find(|entry| &entry["name"] == name).cloned()
    };
    let context = named(&config["contexts"], &config["current-context"]);
    let mut context =
        context.with_context(|| format!("no current context in {}", from.display()))?;
    context["context"]["user"] = json!(user);
    config["contexts"] = json!([context]);
    config["users"] = json!([{"name": user, "user": {"token": token}}]);
    fs::write(to, serde_norway::to_string(&config)?)
        .with_context(|| format!("writing {}", to.display()))
}

/// Writes to `to` the kubeconfig `from` with another server in all its clusters.
pub fn write_kubeconfig_at(from: &Path, to: &Path, server: &str) -> Result<()> {
    let text = fs::read_to_string(from).with_context(|| format!("reading {}", from.display()))?;
    let mut config: serde_json::Value = serde_norway::from_str(&text)?;
    for cluster in config["clusters"].as_array_mut().into_iter().flatten() {
        cluster["cluster"]["server"] = json!(server);
    }
    fs::write(to, serde_norway::to_string(&config)?)
        .with_context(|| format!("writing {}", to.display()))
}

/// `bytes` random bytes in hex digits.
pub fn random_hex(bytes: usize) -> Result<String> {
    let mut buffer = vec![0; bytes];
    SystemRandom::new()
        .fill(&mut buffer)
        .map_err(|_| anyhow!("the system has no randomness"))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_admin_is_master_and_tokens_are_unique() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = Credentials::create(dir.path()).unwrap();
        let text = fs::read_to_string(&credentials.token_file).unwrap();
        assert_eq!(text.lines().count(), USERS.len());
        assert_eq!(text.matches("system:masters").count(), 1);
        let tokens: std::collections::HashSet<_> =
            credentials.users.iter().map(|u| &u.token).collect();
        assert_eq!(tokens.len(), USERS.len());
    }

    #[test]
    fn written_kubeconfig_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, path) = (dir.path().join("ca"), dir.path().join("kubeconfig"));
        fs::write(&ca, "pem").unwrap();
        write_kubeconfig(&path, "https://127.0.0.1:1", &ca, "me", "secret").unwrap();
        let read = kube::config::Kubeconfig::read_from(&path).unwrap();
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:1"));
        assert_eq!(cluster.insecure_skip_tls_verify, None);
        assert_eq!(read.current_context.as_deref(), Some("operating-plane"));

        let other = dir.path().join("other");
        write_kubeconfig_like(&path, &other, "you", "other").unwrap();
        let text = fs::read_to_string(&other).unwrap();
        assert!(!text.contains("secret"), "the first token is not passed on");
        let read = kube::config::Kubeconfig::read_from(&other).unwrap();
        assert_eq!(read.auth_infos.len(), 1);
        assert_eq!(
            read.contexts[0].context.as_ref().unwrap().user.as_deref(),
            Some("you")
        );

        let elsewhere = dir.path().join("elsewhere");
        write_kubeconfig_at(&other, &elsewhere, "http://127.0.0.1:2").unwrap();
        let read = kube::config::Kubeconfig::read_from(&elsewhere).unwrap();
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("http://127.0.0.1:2"));
        assert_eq!(read.auth_infos.len(), 1);
    }
}
