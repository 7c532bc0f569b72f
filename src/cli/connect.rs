//! Connects to the API server.

use std::path::Path;

use anyhow::Context;
use http::Response;
use http::header::{HeaderValue, USER_AGENT};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::{MapErrLayer, MapResponseLayer};

use super::args::{ClusterArgs, ReaderArgs};
use crate::cluster::clock;
use crate::telemetry::api_calls::ApiCallMetrics;

/// The name of this program in requests to the API server, for audit logs and request counts.
pub const CLIENT_USER_AGENT: &str = concat!("operating/", env!("CARGO_PKG_VERSION"));
/// The name for commands that only read, with the rights of a user.
const READER_USER_AGENT: &str = concat!("kubectl-operating/", env!("CARGO_PKG_VERSION"));
const NO_CLIENT: &str = "cannot set up the client of the API server";

/// A client with the credentials that the flags name.
pub async fn connect_client(args: &ClusterArgs) -> anyhow::Result<Client> {
    new_client(client_config(args).await?)
}

/// Like [`connect_client`], but counts the calls, and passes the time of each answer to the [`clock`].
pub async fn connect_counted_client(
    args: &ClusterArgs,
    calls: &ApiCallMetrics,
) -> anyhow::Result<Client> {
    let config = client_config(args).await?;
    let address = ServerAddress::of(&config);
    let builder = ClientBuilder::try_from(config).context(NO_CLIENT)?;
    let clock = MapResponseLayer::new(|answer: Response<_>| {
        clock::observe_date_header(answer.headers());
        answer
    });
    Ok(builder
        .with_layer(&address.layer())
        .with_layer(calls)
        .with_layer(&clock)
        .build())
}

/// A client with this configuration.
pub fn new_client(config: Config) -> anyhow::Result<Client> {
    let address = ServerAddress::of(&config);
    let builder = ClientBuilder::try_from(config).context(NO_CLIENT)?;
    Ok(builder.with_layer(&address.layer()).build())
}

/// Configuration of the client. The callers retry themselves, because they know which requests may be repeated. The
/// library would repeat a 429, which here is a rule's denial and not a sign of overload.
pub async fn client_config(args: &ClusterArgs) -> anyhow::Result<Config> {
    load_config(
        args.kubeconfig.as_deref(),
        args.context.as_deref(),
        CLIENT_USER_AGENT,
    )
    .await
}

/// A client with the credentials of a user, for a command that only reads. `kubeconfig` and `context` are the flags.
pub async fn connect_user(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> anyhow::Result<Client> {
    new_client(load_config(kubeconfig, context, READER_USER_AGENT).await?)
}

/// A client with the rights of a user, and the namespace that the user selected.
pub async fn connect_reader(args: &ReaderArgs) -> anyhow::Result<(Client, String)> {
    let (file, context) = (
        args.user.kubeconfig.as_deref(),
        args.user.context.as_deref(),
    );
    let config = load_config(file, context, READER_USER_AGENT).await?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    Ok((new_client(config)?, namespace))
}

/// The address of the API server, for errors: it says which cluster a person has asked.
#[derive(Clone, Debug)]
struct ServerAddress(String);

/// A request that got no answer. The text has the whole cause, because the logs and the errors of the library print only
/// the first text of a chain.
#[derive(Debug, thiserror::Error)]
#[error("the API server at {address} can't be reached: {cause}")]
struct Unreachable {
    address: String,
    cause: String,
}

impl ServerAddress {
    fn of(config: &Config) -> ServerAddress {
        ServerAddress(
            config
                .cluster_url
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
        )
    }

    /// Adds the address to errors of the connection.
    fn layer(self) -> MapErrLayer<impl Fn(BoxError) -> BoxError + Clone> {
        let address = self.0;
        MapErrLayer::new(move |error: BoxError| -> BoxError {
            // The library distinguishes its own errors, such as those of credentials, by their type.
            match error.is::<kube::Error>() {
                true => error,
                false => Box::new(Unreachable {
                    address: address.clone(),
                    cause: format!("{:#}", anyhow::Error::from_boxed(error)),
                }),
            }
        })
    }
}

/// Whether the user has named a kubeconfig, or has one at its usual place.
fn has_kubeconfig() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty())
        || Kubeconfig::read().is_ok()
}

async fn load_config(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    agent: &'static str,
) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let mut config = match kubeconfig {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)
                .with_context(|| format!("--kubeconfig: cannot read {}", file.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .with_context(|| format!("--kubeconfig: {} names no usable cluster and user", file.display()))?
        }
        None if context.is_some() => Config::from_kubeconfig(&options)
            .await
            .context("--context: the kubeconfig names no usable cluster and user of this context")?,
        // A kubeconfig without a usable context must not lead to the cluster of the service account.
        None if has_kubeconfig() => Config::from_kubeconfig(&options).await.context(
            "the kubeconfig (KUBECONFIG, or ~/.kube/config) names no usable cluster and user: name a context with --context, \
             or a file with --kubeconfig",
        )?,
        None => Config::incluster().context(
            "found no credentials of an API server: pass --kubeconfig, set KUBECONFIG, or run in a Pod with a \
             service account",
        )?,
    };
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(agent)));
    config.default_retry = false;
    Ok(config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn args(file: &Path) -> ClusterArgs {
        ClusterArgs {
            kubeconfig: Some(file.to_owned()),
            context: None,
            namespace: "n".into(),
        }
    }

    #[tokio::test]
    async fn client_sends_user_agent_and_does_not_retry() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let text = "{apiVersion: v1, kind: Config, current-context: c, \
                    clusters: [{name: k, cluster: {server: 'https://localhost:1'}}], users: [{name: u, user: {}}], \
                    contexts: [{name: c, context: {cluster: k, user: u}}]}";
        std::fs::write(&file, text).unwrap();
        let config = client_config(&args(&file)).await.unwrap();
        assert_eq!(
            config.headers,
            [(USER_AGENT, HeaderValue::from_static(CLIENT_USER_AGENT))]
        );
        assert!(CLIENT_USER_AGENT.starts_with("operating"));
        assert!(!config.default_retry);
    }

    #[tokio::test]
    async fn unreadable_kubeconfig_is_named() {
        let error = connect_client(&args(Path::new("/nowhere/config")))
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "--kubeconfig: cannot read /nowhere/config"
        );
    }
}
