//! Reads all that the preview of a node needs, with the rights of the user.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::evictions::dry_run_evictions;
use crate::cli::args::DrainArgs;
use crate::cli::why::api_reads::{self, ReadNotes};
use crate::cli::why::collect::namespace_reads::NamespaceReads;
use crate::cluster::request_path;
use crate::domain::disruption_budget::{DisruptionBudget, is_never_asked_about};
use crate::domain::drain::{
    DaemonSetRead, DrainNamespace, DrainedPod, KubectlChoice, ObservedNode, choose,
    is_of_daemon_set,
};
use crate::domain::pod::Pod;

/// Reads at the same time.
const MAX_CONCURRENT: usize = 4;

/// A Pod of the node, and whether it has a volume of type `emptyDir`.
struct NodePod {
    pod: Arc<Pod>,
    has_empty_dir: bool,
}

/// The field that [`Pod`] drops.
#[derive(Deserialize)]
struct PodVolumes {
    spec: VolumesSpec,
}

#[derive(Deserialize)]
struct VolumesSpec {
    #[serde(default)]
    volumes: Option<Vec<Volume>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<IgnoredAny>,
}

/// Namespace and name of a DaemonSet.
type DaemonSetKey = (String, String);

/// A node with its Pods, the answers to their evictions, and their budgets.
///
/// # Errors
/// If there is no such node, or if its Pods can't be read. For anything else that can't be read there is a note.
pub async fn observe_node(
    client: &Client,
    args: &DrainArgs,
    name: &str,
) -> anyhow::Result<ObservedNode> {
    request_path::checked_name(name)
        .map_err(|_| anyhow::anyhow!("{name:?} is no name of a node: see kubectl get nodes"))?;
    let mut notes = ReadNotes::default();
    check_node(client, name, &mut notes).await?;
    let pods = list_node_pods(client, name, args.pod_selector.as_deref()).await?;
    let daemon_sets = read_daemon_sets(client, &pods).await;
    let chosen = pods.into_iter().map(|NodePod { pod, has_empty_dir }| {
        let daemon_set = daemon_set_key(&pod).and_then(|key| daemon_sets.get(&key));
        let choice = choose(&pod, has_empty_dir, daemon_set, args.flags());
        (pod, choice)
    });
    let chosen: Vec<_> = chosen.collect();
    let evicted = chosen
        .iter()
        .filter(|(_, choice)| *choice == KubectlChoice::Evicts);
    let evicted: Vec<_> = evicted.map(|(pod, _)| Arc::clone(pod)).collect();
    // The budgets are read as close to the answers as possible.
    let answers = dry_run_evictions(client, &evicted).await;
    let namespaces = read_namespaces(client, &evicted, &mut notes).await;
    let mut answers = answers.into_iter();
    let pods = chosen.into_iter().map(|(pod, choice)| DrainedPod {
        answer: match choice {
            KubectlChoice::Evicts => answers.next(),
            _ => None,
        },
        pod,
        choice,
    });
    Ok(ObservedNode {
        name: name.to_owned(),
        pods: pods.collect(),
        namespaces,
        notes: notes.into_lines(),
        now: Timestamp::now(),
    })
}

async fn check_node(client: &Client, name: &str, notes: &mut ReadNotes) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let read = nodes.get_metadata_opt(name);
    match api_reads::call_with_timeout("get", "nodes", None, read).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => anyhow::bail!("there is no node {name}: see kubectl get nodes"),
        Err(error) if api_reads::is_for_all_reads(&error) => Err(error),
        Err(error) => {
            notes.add(
                "whether there is such a node is not checked; kubectl drain reads it first, and evicts nothing without it",
                &error,
            );
            Ok(())
        }
    }
}

async fn list_node_pods(
    client: &Client,
    node: &str,
    labels: Option<&str>,
) -> anyhow::Result<Vec<NodePod>> {
    let mut params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    params.label_selector = labels.map(str::to_owned);
    let listed = api_reads::list_pages::<Box<RawValue>>(client, "/api/v1/pods", params);
    let listed = api_reads::call_with_timeout("list", "pods", None, listed).await?;
    let pods = listed.iter().map(|raw| parse_pod(raw.get()));
    pods.collect::<Result<_, _>>()
        .context("a Pod of the node can't be read")
}

fn parse_pod(text: &str) -> serde_json::Result<NodePod> {
    let volumes: PodVolumes = serde_json::from_str(text)?;
    let mut volumes = volumes.spec.volumes.into_iter().flatten();
    Ok(NodePod {
        pod: Arc::new(serde_json::from_str(text)?),
        has_empty_dir: volumes.any(|volume| volume.empty_dir.is_some()),
    })
}

fn daemon_set_key(pod: &Pod) -> Option<DaemonSetKey> {
    let owner = pod.controller().filter(|_| is_of_daemon_set(pod))?;
    Some((pod.metadata.namespace.clone(), owner.name.clone()))
}

/// The DaemonSets of the Pods, each read once.
async fn read_daemon_sets(
    client: &Client,
    pods: &[NodePod],
) -> BTreeMap<DaemonSetKey, DaemonSetRead> {
    let living = pods.iter().filter(|pod| !pod.pod.is_finished());
    let keys: BTreeSet<DaemonSetKey> = living.filter_map(|pod| daemon_set_key(&pod.pod)).collect();
    let reads = keys.into_iter().map(|key| async move {
        let read = read_daemon_set(client, &key).await;
        (key, read)
    });
    stream::iter(reads).buffered(MAX_CONCURRENT).collect().await
}

async fn read_daemon_set(client: &Client, (namespace, name): &DaemonSetKey) -> DaemonSetRead {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let read = sets.get_metadata_opt(name);
    match api_reads::call_with_timeout("get", "daemonsets", Some(namespace), read).await {
        Ok(Some(_)) => DaemonSetRead::Found,
        Ok(None) => DaemonSetRead::Gone,
        Err(error) => DaemonSetRead::Unreadable(format!("{error:#}")),
    }
}

/// The namespaces of the Pods.
async fn read_namespaces(
    client: &Client,
    evicted: &[Arc<Pod>],
    notes: &mut ReadNotes,
) -> BTreeMap<String, DrainNamespace> {
    let mut pods_of: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in evicted {
        let pods = pods_of.entry(&pod.metadata.namespace).or_default();
        pods.push(pod);
    }
    let reads = pods_of.into_iter().map(|(name, pods)| async move {
        let mut notes = ReadNotes::default();
        let namespace = read_namespace(client, name, &pods, &mut notes).await;
        (name.to_owned(), namespace, notes)
    });
    let read: Vec<_> = stream::iter(reads).buffered(MAX_CONCURRENT).collect().await;
    let namespaces = read.into_iter().map(|(name, namespace, more)| {
        notes.append(more);
        (name, namespace)
    });
    namespaces.collect()
}

async fn read_namespace(
    client: &Client,
    name: &str,
    evicted: &[&Pod],
    notes: &mut ReadNotes,
) -> DrainNamespace {
    let reads = NamespaceReads::new(client, name);
    let (rules, disruption_budgets) = tokio::join!(reads.rules(), reads.disruption_budgets());
    let to_text = |error: anyhow::Error| format!("{error:#}");
    let rules = rules.map_err(to_text);
    let disruption_budgets = disruption_budgets.and_then(|listed| {
        let budgets = listed.into_iter().map(|budget| {
            let budget = serde_json::to_value(budget)?;
            serde_json::from_value::<DisruptionBudget>(budget)
        });
        Ok(budgets.collect::<Result<Vec<_>, _>>()?)
    });
    let disruption_budgets = disruption_budgets.map_err(to_text);
    let is_under_rule = rules
        .iter()
        .flatten()
        .any(|rule| evicted.iter().any(|pod| rule.set.selects(pod)));
    let asked = || evicted.iter().filter(|pod| !is_never_asked_about(pod));
    let is_under_budget = disruption_budgets
        .iter()
        .flatten()
        .any(|budget| asked().any(|pod| budget.selects(pod)));
    let excluded = match is_under_rule {
        true => reads.exclusion_reason().await,
        false => None,
    };
    let mut pods = None;
    if is_under_rule || is_under_budget {
        match reads.pods().await {
            Ok(listed) => pods = Some(listed),
            Err(error) => notes.add(
                &format!("how many Pods the budgets in namespace {name} let go is not known"),
                &error,
            ),
        }
    }
    DrainNamespace {
        rules,
        disruption_budgets,
        pods,
        excluded,
    }
}
