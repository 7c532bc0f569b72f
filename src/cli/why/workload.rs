//! `operating why` for workloads, such as `cls/NAME` and `deploy/NAME`.

use std::fmt::Debug;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use kube::{Client, Resource};

use super::Explaining;
use super::collect::namespace_reads::NamespaceReads;
use super::collect::workloads::observe_workload;
use super::follow_mode::{self, WatchChange};
use super::object::ExplainedObject;
use super::{api_reads, workload_tree};
use crate::api::collaset::CollaSet;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cli::args::WhyKind;
use crate::domain::diagnosis::workload::{ObservedWorkload, diagnose_workload};

/// Explains a workload, once or after each change of it, of Pods and of rules, until it is deleted.
pub async fn explain_workload(
    explaining: &Explaining<'_>,
    kind: WhyKind,
    name: &str,
) -> anyhow::Result<()> {
    let (client, namespace) = (explaining.client(), explaining.namespace());
    let changes = |kind_name: &'static str, plural, changes| {
        explained_object(kind_name, plural, (client, namespace, name), changes)
    };
    let explained = match kind {
        WhyKind::CollaSet => changes("CollaSet", "collasets", watch::<CollaSet>),
        WhyKind::Deployment => changes("Deployment", "deployments", watch::<Deployment>),
        WhyKind::StatefulSet => changes("StatefulSet", "statefulsets", watch::<StatefulSet>),
        WhyKind::DaemonSet => changes("DaemonSet", "daemonsets", watch::<DaemonSet>),
        _ => changes("ReplicaSet", "replicasets", watch::<ReplicaSet>),
    };
    let read = async || match explaining.args.watch {
        false => observe_workload(explaining.reads, kind, name).await,
        true => {
            let reads = NamespaceReads::new(client, namespace);
            observe_workload(&reads, kind, name).await
        }
    };
    explained.explain(explaining, read).await
}

type Explained = ExplainedObject<
    'static,
    ObservedWorkload,
    crate::domain::diagnosis::workload::facts::WorkloadDiagnosis,
>;

fn explained_object(
    kind: &'static str,
    plural: &'static str,
    (client, namespace, name): (&Client, &str, &str),
    watch: fn(&Client, &str, &str) -> BoxStream<'static, WatchChange>,
) -> Explained {
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let rules: Api<PartialObjectMeta<PodTransitionRule>> =
        Api::namespaced(client.clone(), namespace);
    ExplainedObject {
        title: format!("{kind} {name}"),
        missing: api_reads::no_such_object(kind, plural, namespace, name),
        uid: |observed| Some(&observed.workload.facts.uid),
        diagnose: diagnose_workload,
        burst_window: follow_mode::LIST_BURST_WINDOW,
        render: workload_tree::render_workload,
        changes: SelectAll::from_iter([
            watch(client, namespace, name),
            follow_mode::watch_changes(pods, None),
            follow_mode::watch_changes(rules, None),
        ])
        .boxed(),
    }
}

fn watch<K>(client: &Client, namespace: &str, name: &str) -> BoxStream<'static, WatchChange>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static,
{
    let objects: Api<PartialObjectMeta<K>> = Api::namespaced(client.clone(), namespace);
    follow_mode::watch_changes(objects, Some(name))
}
