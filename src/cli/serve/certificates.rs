//! Sets up the serving certificate, from a directory or from a Secret that the servers keep themselves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use tokio::sync::Notify;

use crate::admission::routes;
use crate::cli::args::ServeArgs;
use crate::cli::install::names;
use crate::cluster::clock;
use crate::tasks::Supervisor;
use crate::tls::CertificateResolver;
use crate::tls::certificate_files::CertificateFiles;
use crate::tls::client_authorities::ClientAuthorities;
use crate::tls::path_guard::PathGuard;
use crate::tls::selfmanaged::{CertificateNames, RenewalPolicy, SelfManaged, SyncTarget};

/// Interval of the checks of a mounted Secret.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the checks of the Secret and of the published CAs.
const SECRET_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Certificates that the servers keep themselves.
pub struct SelfManagedCertificates {
    /// The CA bundle (PEM).
    pub bundle: Vec<u8>,
    /// Triggers a check of the published CAs and paths.
    pub wake: Arc<Notify>,
}

/// Loads the first certificate into `resolver` and renews it. Self-managed certificates add a segment to the webhook
/// paths, which `path_guard` gets, unless [`has_segments`] is false.
pub async fn start_certificates(
    args: &ServeArgs,
    client: &Client,
    resolver: &Arc<CertificateResolver>,
    path_guard: &Arc<PathGuard>,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<SelfManagedCertificates>> {
    if let Some(directory) = &args.webhooks.cert_dir {
        let mut files = CertificateFiles::new(directory, Arc::clone(resolver));
        if !files.poll().await {
            let problem = resolver
                .problem()
                .map(|p| p.to_string())
                .unwrap_or_default();
            anyhow::bail!("--cert-dir: {problem}");
        }
        let run = files.run(FILE_CHECK_INTERVAL, supervisor.stop().clone());
        supervisor.spawn_supervised("the keeper of the certificate", run);
        return Ok(None);
    }
    let target = SyncTarget {
        namespace: args.cluster.namespace.clone(),
        secret: names::SECRET.to_owned(),
        mutating: routes::MUTATING_CONFIGURATION.to_owned(),
        validating: routes::VALIDATING_CONFIGURATION.to_owned(),
    };
    let names = CertificateNames::new(dns_names(args)).context("--dns-name, --webhook-url")?;
    let mut managed = SelfManaged::new(
        client.clone(),
        target,
        names,
        RenewalPolicy::default(),
        Arc::clone(resolver),
    );
    if has_segments(args) {
        managed = managed.with_segments(Arc::clone(path_guard));
    }
    let bundle = managed
        .ensure_certificates(clock::now())
        .await
        .context(
            "the serving certificate can't be made; without --cert-dir the server needs the API server, and the rights \
             operating-certificates (docs/rights.md)",
        )?;
    let wake = managed.waker();
    let run = managed.run(SECRET_CHECK_INTERVAL, clock::now, supervisor.stop().clone());
    supervisor.spawn_supervised("the keeper of the certificate", run);
    Ok(Some(SelfManagedCertificates { bundle, wake }))
}

/// Whether the webhook paths get a secret segment.
pub fn has_segments(args: &ServeArgs) -> bool {
    args.webhooks.cert_dir.is_none()
        && args.webhooks.client_ca_file.is_none()
        && !args.webhooks.plain_webhook_paths
}

/// The CAs whose clients may call the server, reloaded when the file changes. `None` if everybody may call.
pub fn client_authorities(
    args: &ServeArgs,
    supervisor: &Supervisor,
) -> anyhow::Result<Option<Arc<ClientAuthorities>>> {
    let Some(file) = &args.webhooks.client_ca_file else {
        anyhow::ensure!(
            args.webhooks.trust_callers || !args.features.grace_delete(),
            "the feature gate GraceDeleteWebhook has Pods deleted on behalf of whoever calls the webhooks: give \
             --client-ca-file and --client-name, so that only API servers can call (docs/who-may-call.md), or \
             --trust-callers if nobody else reaches the port"
        );
        return Ok(None);
    };
    let clients = ClientAuthorities::from_file(file.clone(), args.webhooks.client_names.clone());
    let clients = clients.context("--client-ca-file")?;
    let keep =
        Arc::clone(&clients).reload_periodically(FILE_CHECK_INTERVAL, supervisor.stop().clone());
    supervisor.spawn_supervised("the keeper of the client authorities", keep);
    Ok(Some(clients))
}

/// Names that the API server may connect to: those of the Service, the host of the URL, and those of `--dns-name`.
fn dns_names(args: &ServeArgs) -> Vec<String> {
    let namespace = &args.cluster.namespace;
    let service = names::SERVICE;
    let mut all = vec![
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
        format!("{service}.{namespace}"),
    ];
    let host = args
        .endpoint
        .webhook_url
        .as_ref()
        .and_then(|url| url.parse::<http::Uri>().ok());
    all.extend(host.and_then(|uri| uri.host().map(|h| h.trim_matches(['[', ']']).to_owned())));
    all.extend(args.webhooks.dns_names.iter().cloned());
    all
}
