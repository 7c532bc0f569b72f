//! The client certificate that the API server of a plane presents to webhooks, and the files that configure
//! it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use serde_json::json;

/// Common name of the certificate.
pub const NAME: &str = "kube-apiserver";

fn directory(dir: &Path) -> PathBuf {
    dir.join("webhook-client")
}

/// The authority that signs the certificate (PEM).
pub fn authority(dir: &Path) -> PathBuf {
    directory(dir).join("ca.crt")
}

/// Creates the certificate, and returns the AdmissionConfiguration for `--admission-control-config-file`.
pub fn create(dir: &Path) -> Result<PathBuf> {
    let config_dir = directory(dir);
    fs::create_dir_all(&config_dir)
        .with_context(|| format!("creating {}", config_dir.display()))?;
    let write = |name: &str, content: &str| -> Result<PathBuf> {
        let path = config_dir.join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    };
    let mut of_authority = CertificateParams::default();
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(of_authority, KeyPair::generate()?)?;
    let mut of_client = CertificateParams::default();
    of_client.distinguished_name.push(DnType::CommonName, NAME);
    of_client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let client = of_client.signed_by(&key, &authority)?;
    write("ca.crt", &authority.pem())?;
    let certificate = write("client.crt", &client.pem())?;
    let key = write("client.key", &key.serialize_pem())?;
    // `*`: for all webhooks.
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "users": [{"name": "*", "user": {
            "client-certificate": certificate, "client-key": key,
        }}],
    });
    let kubeconfig = write("kubeconfig", &serde_norway::to_string(&kubeconfig)?)?;
    let plugin = |name: &str| {
        json!({"name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": kubeconfig,
        }})
    };
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(plugin);
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": plugins,
    });
    write("admission.yaml", &serde_norway::to_string(&configuration)?)
}
