//! Names of objects from the API server, within a short time.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use kube::core::{ApiResource, DynamicObject};

use super::typed::Typed;
use super::values::{NameSource, Resource};
use crate::cli::connect::connect_reader;

/// How long a person waits for suggestions at most.
const LIMIT: Duration = Duration::from_secs(3);
/// Number of names in one answer of the API server.
const PAGE: u32 = 500;
/// Number of names that are read at most.
const MOST: usize = 5000;

/// The names that the API server and the kubeconfig have.
pub struct LiveNames;

impl NameSource for LiveNames {
    fn names(&self, resource: Resource, typed: &Typed) -> Vec<String> {
        let (pages, received) = mpsc::channel();
        let typed = typed.clone();
        leave_terminal();
        // A program that gets credentials may block. The thread ends with the process.
        let start = thread::Builder::new().spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            if let Ok(runtime) = runtime {
                let _ = runtime.block_on(list(resource, &typed, &pages));
            }
        });
        let deadline = Instant::now() + LIMIT;
        let mut names = Vec::new();
        while start.is_ok() {
            let rest = deadline.saturating_duration_since(Instant::now());
            match received.recv_timeout(rest) {
                Ok(page) => names.extend(page),
                Err(_) => break,
            }
        }
        names
    }

    fn contexts(&self, typed: &Typed) -> Vec<String> {
        let read = match &typed.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => Kubeconfig::read(),
        };
        let contexts = read
            .map(|kubeconfig| kubeconfig.contexts)
            .unwrap_or_default();
        contexts.into_iter().map(|context| context.name).collect()
    }
}

/// Programs that get credentials inherit these streams: they must not read the line that a person types, or write into it.
fn leave_terminal() {
    let Ok(null) = std::fs::File::open("/dev/null") else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    if let Ok(null) = std::fs::File::create("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

async fn list(
    resource: Resource,
    typed: &Typed,
    pages: &Sender<Vec<String>>,
) -> anyhow::Result<()> {
    let (client, namespace) = connect_reader(&typed.reader()).await?;
    let Resource {
        group,
        version,
        plural,
        ..
    } = resource;
    let described = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        kind: String::new(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = match resource.is_namespaced {
        true => Api::namespaced_with(client, &namespace, &described),
        false => Api::all_with(client, &described),
    };
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..MOST / PAGE as usize {
        let page = api.list_metadata(&params).await?;
        let names = page.items.into_iter();
        pages.send(names.filter_map(|object| object.metadata.name).collect())?;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            break;
        }
    }
    Ok(())
}
