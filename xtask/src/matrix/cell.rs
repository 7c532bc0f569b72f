//! A cell of the matrix: one owner, one verb, one namespace.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{
    DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::observer::{Pod, resource};
use testbed::wait;
use tokio::time::sleep;

use super::owners::{self, NAME, Owner};

/// Number of nodes of a lane.
pub const LANE_NODES: usize = 4;
/// Timeout for the Pods of a cell to become available at its beginning.
const BEGIN: Duration = Duration::from_secs(300);

/// The disruption of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it all
pub enum Verb {
    Rollout,
    ScaleDown,
    /// Scale up in the middle of a rollout.
    ScaleUp,
    DeleteStorm,
    EvictionStorm,
    Drain,
    /// A rollout and an eviction storm at once.
    Both,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Rollout,
        Self::ScaleDown,
        Self::ScaleUp,
        Self::DeleteStorm,
        Self::EvictionStorm,
        Self::Drain,
        Self::Both,
    ];

    /// Name in the table and for `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::ScaleDown => "scale-down",
            Self::ScaleUp => "scale-up",
            Self::DeleteStorm => "delete-storm",
            Self::EvictionStorm => "eviction-storm",
            Self::Drain => "drain",
            Self::Both => "two-at-once",
        }
    }

    /// Whether the verb changes the image of the Pods.
    #[must_use]
    pub fn rolls_out(self) -> bool {
        matches!(self, Self::Rollout | Self::ScaleUp | Self::Both)
    }
}

/// See the module.
pub struct Cell<'a> {
    /// The administrator.
    pub client: Client,
    /// The namespace of the Pods.
    pub namespace: String,
    /// The kind of their owner.
    pub owner: Owner,
    /// The lane whose nodes they run on.
    pub lane: usize,
    /// For `kubectl`.
    pub plane: &'a testbed::plane::Plane,
}

impl Cell<'_> {
    /// The Pods of the cell.
    #[must_use]
    pub fn pods(&self) -> Api<DynamicObject> {
        let kind = resource("", "v1", "Pod");
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// The owner's API.
    ///
    /// # Errors
    /// For Pods without an owner.
    pub fn owners(&self) -> Result<Api<DynamicObject>> {
        let kind = self.owner.kind().context("these Pods have no owner")?;
        Ok(Api::namespaced_with(
            self.client.clone(),
            &self.namespace,
            &kind,
        ))
    }

    /// Creates the owner and its Pods and waits until all are available.
    pub async fn begin(&self) -> Result<()> {
        let size = self.owner.size();
        if self.owner == Owner::Bare {
            self.bare(0..size).await?;
        } else {
            let kind = self.owner.kind().context("a kind")?;
            let mut object = self.owner.object(self.lane, size);
            object["apiVersion"] = json!(kind.api_version);
            object["kind"] = json!(kind.kind);
            let object = serde_json::from_value(object)?;
            self.owners()?
                .create(&PostParams::default(), &object)
                .await?;
        }
        wait::within("the Pods of the cell", BEGIN, || async {
            self.is_whole(size, None).await
        })
        .await
    }

    /// Creates Pods without an owner.
    async fn bare(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        for number in numbers {
            let mut pod = owners::template(self.lane, "web:1");
            pod["metadata"]["name"] = json!(format!("{NAME}-{number}"));
            let pod = serde_json::from_value(pod)?;
            self.pods().create(&PostParams::default(), &pod).await?;
        }
        Ok(())
    }

    /// Carries out the verb, and returns when its effects are complete. Refused requests are repeated.
    pub async fn act(&self, verb: Verb) -> Result<()> {
        let size = self.owner.size();
        let image = verb.rolls_out().then_some("web:2");
        let mut count = size;
        match verb {
            Verb::Rollout => self.roll_out().await?,
            Verb::ScaleDown => {
                count = size / 2;
                self.scale(count).await?;
            }
            Verb::ScaleUp => {
                count = if self.owner == Owner::DaemonSet {
                    LANE_NODES
                } else {
                    size + 2
                };
                let scale = async {
                    // In the middle of the rollout: when the first Pods have begun to change, or when
                    // nothing has changed for a while.
                    sleep(Duration::from_secs(3)).await;
                    self.scale(count).await
                };
                futures::try_join!(self.roll_out(), scale)?;
            }
            Verb::DeleteStorm => self.storm(Self::delete).await?,
            Verb::EvictionStorm => self.storm(Self::evict).await?,
            Verb::Drain => self.drain().await?,
            Verb::Both => {
                futures::try_join!(self.roll_out(), self.storm(Self::evict))?;
            }
        }
        if self.owner == Owner::Bare {
            // The new Pods of a scale-up have the new image from the rollout or the old one from their creation.
            let deletes_pods = matches!(verb, Verb::DeleteStorm | Verb::EvictionStorm | Verb::Both);
            let pod_count = self.pods().list(&ListParams::default()).await?.items.len();
            let count = match verb {
                _ if deletes_pods => 0,
                Verb::Drain => pod_count,
                _ => count,
            };
            return self.until_whole(count, None).await;
        }
        let in_place = self.owner == Owner::Job && verb != Verb::Rollout;
        self.until_whole(count, image.filter(|_| !in_place)).await
    }

    async fn until_whole(&self, count: usize, image: Option<&str>) -> Result<()> {
        loop {
            if self.is_whole(count, image).await.unwrap_or_default() {
                return Ok(());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Whether exactly `count` Pods exist, all of them available and with the image.
    async fn is_whole(&self, count: usize, image: Option<&str>) -> Result<bool> {
        let pods = self.pods().list(&ListParams::default()).await?.items;
        let fits = |pod: &DynamicObject| {
            let of = |image| image_of(pod) == Some(image);
            Pod::read(pod).serves() && image.is_none_or(of)
        };
        Ok(pods.len() == count && pods.iter().all(fits))
    }

    /// The states of the Pods, for the table.
    pub async fn describe_pods(&self) -> String {
        let Ok(list) = self.pods().list(&ListParams::default()).await else {
            return "the API server does not answer".to_owned();
        };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for pod in &list.items {
            let fact = Pod::read(pod);
            let state = match () {
                () if fact.deleting => "terminating",
                () if fact.serves() => "available",
                () => "unavailable",
            };
            let image = image_of(pod).unwrap_or_default();
            *counts.entry(format!("{state} with {image}")).or_default() += 1;
        }
        let parts: Vec<_> = counts
            .iter()
            .map(|(state, n)| format!("{n} {state}"))
            .collect();
        parts.join(", ")
    }

    async fn roll_out(&self) -> Result<()> {
        let Some(patch) = self.owner.with_image("web:2") else {
            return self.storm(Self::change_image).await;
        };
        self.patch_owner(patch).await?;
        if self.owner == Owner::ReplicationController {
            // Only the user replaces the Pods of a ReplicationController.
            self.storm(Self::delete).await?;
        }
        Ok(())
    }

    async fn patch_owner(&self, patch: Value) -> Result<()> {
        let owners = self.owners()?;
        let patch = Patch::Merge(patch);
        owners.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn scale(&self, count: usize) -> Result<()> {
        if let Some(patch) = self.owner.scaled(count) {
            return self.patch_owner(patch).await;
        }
        let size = self.owner.size();
        if self.owner == Owner::DaemonSet {
            for index in 0..LANE_NODES {
                let value = (index < count).then_some("true");
                label_node(
                    &self.client,
                    &node(self.lane, index),
                    json!({"daemons": value}),
                )
                .await?;
            }
            return Ok(());
        }
        if count > size {
            return self.bare(size..count).await;
        }
        let pods = self.pods().list(&ListParams::default()).await?.items;
        let deletions = pods
            .iter()
            .skip(count)
            .map(|pod| self.until_done(pod, Self::delete));
        futures::future::try_join_all(deletions).await?;
        Ok(())
    }

    /// Sends a request for each current Pod in parallel, until it succeeds or the Pod is gone.
    async fn storm<'s, F>(
        &'s self,
        request: impl Fn(&'s Self, DynamicObject) -> F + Copy,
    ) -> Result<()>
    where
        F: Future<Output = kube::Result<()>>,
    {
        let pods = self.pods().list(&ListParams::default()).await?.items;
        let all = pods.iter().map(|pod| self.until_done(pod, request));
        futures::future::try_join_all(all).await?;
        Ok(())
    }

    async fn until_done<'s, F>(
        &'s self,
        pod: &DynamicObject,
        request: impl Fn(&'s Self, DynamicObject) -> F,
    ) -> Result<()>
    where
        F: Future<Output = kube::Result<()>>,
    {
        // Clients retry at different times.
        let pause = 300 + u64::from(pod.name_any().bytes().map(u32::from).sum::<u32>() % 5) * 150;
        loop {
            match request(self, pod.clone()).await {
                Ok(()) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(kube::Error::Api(status)) if [409, 429, 500, 504].contains(&status.code) => {}
                Err(error) => bail!("{} of {}: {error}", self.namespace, pod.name_any()),
            }
            let now = self.pods().get_opt(&pod.name_any()).await?;
            let same =
                |p: &DynamicObject| p.uid() == pod.uid() && p.metadata.deletion_timestamp.is_none();
            if !now.as_ref().is_some_and(same) {
                return Ok(());
            }
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn delete(&self, pod: DynamicObject) -> kube::Result<()> {
        let params = DeleteParams {
            preconditions: only(&pod),
            ..DeleteParams::default()
        };
        let deleted = self.pods().delete(&pod.name_any(), &params).await;
        deleted.map(drop)
    }

    async fn evict(&self, pod: DynamicObject) -> kube::Result<()> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let params = EvictParams {
            delete_options: Some(DeleteParams {
                preconditions: only(&pod),
                ..DeleteParams::default()
            }),
            ..EvictParams::default()
        };
        pods.evict(&pod.name_any(), &params).await.map(drop)
    }

    async fn change_image(&self, pod: DynamicObject) -> kube::Result<()> {
        let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
        let patch = Patch::Strategic(image);
        let params = PatchParams::default();
        let patched = self.pods().patch(&pod.name_any(), &params, &patch).await;
        patched.map(drop)
    }

    /// `kubectl drain` of half the nodes of the lane, and back.
    async fn drain(&self) -> Result<()> {
        let nodes = [node(self.lane, 0), node(self.lane, 1)];
        let [first, second] = [&nodes[0], &nodes[1]].map(String::as_str);
        let drain = ["drain", first, second, "--ignore-daemonsets", "--force"];
        let output = self.plane.kubectl(drain).output().await?;
        let uncordon = self.plane.kubectl(["uncordon", first, second]).output();
        uncordon.await?;
        if !output.status.success() {
            bail!("kubectl drain: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

/// Name of a node of a lane.
#[must_use]
pub fn node(lane: usize, index: usize) -> String {
    format!("worker-{}", lane * LANE_NODES + index)
}

/// Gives the nodes of a lane their labels, all but one for the DaemonSet, and lets all take Pods.
pub async fn ready_lane(client: &Client, lane: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for index in 0..LANE_NODES {
        let daemons = (index < Owner::DaemonSet.size()).then_some("true");
        let name = node(lane, index);
        label_node(
            client,
            &name,
            json!({"lane": lane.to_string(), "daemons": daemons}),
        )
        .await?;
        nodes.uncordon(&name).await?;
    }
    Ok(())
}

async fn label_node(client: &Client, name: &str, labels: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn image_of(pod: &DynamicObject) -> Option<&str> {
    pod.data["spec"]["containers"][0]["image"].as_str()
}

fn only(pod: &DynamicObject) -> Option<Preconditions> {
    Some(Preconditions {
        uid: pod.uid(),
        resource_version: None,
    })
}
