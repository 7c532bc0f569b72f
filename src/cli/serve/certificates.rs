//! Where the serving certificate comes from: a directory, or a Secret that the servers keep themselves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::admission::routes;
use crate::cli::args::ServeArgs;
use crate::cli::install::names;
use crate::tls::Resolver;
use crate::tls::clients::Clients;
use crate::tls::files::Files;
use crate::tls::selfmanaged::{Names, Policy, SelfManaged, Target};

/// A mounted Secret is looked at this often.
const FILES_PERIOD: Duration = Duration::from_secs(2);
/// The Secret and the published authorities are looked at this often.
const SECRET_PERIOD: Duration = Duration::from_secs(60);

/// Gets a first certificate into `resolver` and keeps it fresh until `stop`; the CA bundle (PEM) if it is self-managed.
pub async fn start(
    args: &ServeArgs,
    client: &Client,
    resolver: &Arc<Resolver>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Vec<u8>>> {
    if let Some(directory) = &args.cert_dir {
        let mut files = Files::new(directory, Arc::clone(resolver));
        if !files.poll().await {
            let problem = resolver
                .problem()
                .map(|p| p.to_string())
                .unwrap_or_default();
            anyhow::bail!("--cert-dir: {problem}");
        }
        tokio::spawn(files.run(FILES_PERIOD, stop.clone()));
        return Ok(None);
    }
    let target = Target {
        namespace: args.cluster.namespace.clone(),
        secret: names::SECRET.to_owned(),
        mutating: routes::MUTATING.to_owned(),
        validating: routes::VALIDATING.to_owned(),
    };
    let names = Names::new(dns_names(args)).context("--dns-name, --webhook-url")?;
    let managed = SelfManaged::new(
        client.clone(),
        target,
        names,
        Policy::default(),
        Arc::clone(resolver),
    );
    let bundle = managed
        .ensure(Timestamp::now())
        .await
        .context(
            "the serving certificate can't be made; without --cert-dir the server needs the rights operating-certificates \
             (docs/rights.md)",
        )?;
    tokio::spawn(managed.run(SECRET_PERIOD, stop.clone()));
    Ok(Some(bundle))
}

/// Whose calls are served, kept fresh until `stop`; `None`: everybody's.
pub fn clients(args: &ServeArgs, stop: &CancellationToken) -> anyhow::Result<Option<Arc<Clients>>> {
    let Some(file) = &args.client_ca_file else {
        return Ok(None);
    };
    let clients = Clients::read(file.clone(), args.client_names.clone());
    let clients = clients.context("--client-ca-file")?;
    tokio::spawn(Arc::clone(&clients).keep(FILES_PERIOD, stop.clone()));
    Ok(Some(clients))
}

/// Names that the API server may dial: the Service's, the URL's host and those asked for.
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
    all.extend(args.dns_names.iter().cloned());
    all
}
