//! The facts that the observer stores about an object.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;

use super::{Record, at};
use crate::keys::{CONTROL, CONTROL_VALUE, SERVICE_AVAILABLE};

/// The facts about an object that budgets depend on.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A Pod.
    Pod(Box<Pod>),
    /// An object that may own Pods.
    Owner(Owner),
}

/// The facts about a Pod that its availability depends on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// UID of the controller.
    pub controller: Option<String>,
    /// Deletion has begun.
    pub deleting: bool,
    /// Succeeded or Failed.
    pub finished: bool,
    /// The condition Ready is True.
    pub ready: bool,
    /// `spec.activeDeadlineSeconds`.
    pub deadline: Option<i64>,
    /// The images and resources in the spec of the containers; a change restarts them.
    pub wanted: Vec<String>,
    /// The images and resources that the kubelet reports.
    pub running: Vec<String>,
    /// Pod-level resources, if a change of them restarts a container.
    pub pod_resources: Option<String>,
}

/// An owner of Pods or of other owners.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Owner {
    /// Labels of the Pods that it creates.
    pub labels: BTreeMap<String, String>,
    /// UID of its own controller.
    pub controller: Option<String>,
    /// Desired number of Pods; `None` if the kind has no such field.
    pub expected: Option<i64>,
    /// Deletion has begun.
    pub deleting: bool,
}

impl Record for Fact {
    const MAY_SKIP: bool = true;

    fn read(kind: &str, object: &DynamicObject) -> Result<Self> {
        Ok(match kind {
            "Pod" => Self::Pod(Box::new(Pod::read(object))),
            _ => Self::Owner(Owner::read(kind, object)),
        })
    }

    fn repeats(&self, former: &Self) -> bool {
        self == former
    }
}

impl Pod {
    /// Whether the Pod has the label that opts it into rules.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.labels.get(CONTROL).is_some_and(|v| v == CONTROL_VALUE)
    }

    /// Whether the Pod carries the availability label.
    #[must_use]
    pub fn is_labelled(&self) -> bool {
        self.labels.contains_key(SERVICE_AVAILABLE)
    }

    /// Whether the Pod is available by its labels and conditions.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_labelled() && self.ready && !self.deleting && !self.finished
    }

    /// Whether the Pod is available, and no container is about to restart.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.is_up() && self.wanted == self.running
    }

    /// Reads a Pod.
    #[must_use]
    pub fn read(object: &DynamicObject) -> Self {
        let data = &object.data;
        let items = |pointer: &str| {
            let list = at(data, pointer).as_array().cloned();
            list.unwrap_or_default()
        };
        let containers = items("/spec/containers");
        let statuses = items("/status/containerStatuses");
        let phase = at(data, "/status/phase").as_str().unwrap_or_default();
        let conditions = items("/status/conditions");
        let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        let running = |container: &Value| {
            let status = statuses.iter().find(|s| s["name"] == container["name"]);
            status.map_or_else(String::new, |s| {
                runs(container, &s["image"], &s["resources"])
            })
        };
        let wanted = |c: &Value| runs(c, &c["image"], &c["resources"]);
        let restarts = |c: &Value| restarting(c).next().is_some();
        let resources = at(data, "/spec/resources");
        Self {
            labels: object.labels().clone(),
            controller: controller(object),
            deleting: object.metadata.deletion_timestamp.is_some(),
            finished: ["Succeeded", "Failed"].contains(&phase),
            ready: conditions.iter().any(ready),
            deadline: at(data, "/spec/activeDeadlineSeconds").as_i64(),
            wanted: containers.iter().map(wanted).collect(),
            running: containers.iter().map(running).collect(),
            pod_resources: containers
                .iter()
                .any(restarts)
                .then(|| resources.to_string()),
        }
    }
}

/// The image and the resources whose change restarts the container.
fn runs(container: &Value, image: &Value, resources: &Value) -> String {
    let mut text = image.as_str().unwrap_or_default().to_owned();
    for name in restarting(container) {
        for kind in ["requests", "limits"] {
            let quantity = resources[kind][name].as_str();
            let quantity = quantity.map(|q| quantity_of(q).map_or(q.to_owned(), |n| n.to_string()));
            text += &format!(" {name} {kind} {}", quantity.unwrap_or_default());
        }
    }
    text
}

/// Resources of a container with the resize policy RestartContainer.
fn restarting(container: &Value) -> impl Iterator<Item = &str> {
    let policies = container["resizePolicy"].as_array().into_iter().flatten();
    policies
        .filter(|p| p["restartPolicy"] == "RestartContainer")
        .filter_map(|p| p["resourceName"].as_str())
}

/// A quantity in thousandths of its unit, in the forms that the tools use: `500m`, `2`, `64Mi`, `67108864`.
fn quantity_of(text: &str) -> Option<u64> {
    let units = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];
    if let Some(milli) = text.strip_suffix('m') {
        return milli.parse().ok();
    }
    for (suffix, factor) in units {
        if let Some(number) = text.strip_suffix(suffix) {
            return number.parse::<u64>().ok().map(|n| n * factor * 1000);
        }
    }
    text.parse::<u64>().ok().map(|n| n * 1000)
}

impl Owner {
    fn read(kind: &str, object: &DynamicObject) -> Self {
        let data = &object.data;
        let number = |pointer: &str| at(data, pointer).as_i64();
        let expected = match kind {
            "DaemonSet" => number("/status/desiredNumberScheduled"),
            "Job" => Some(job(data)),
            _ => number("/spec/replicas"),
        };
        let labels = at(data, "/spec/template/metadata/labels").as_object();
        let mut labels: BTreeMap<String, String> = labels
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
            .collect();
        if kind == "CollaSet" {
            labels.insert(CONTROL.to_owned(), "true".to_owned());
        }
        Self {
            labels,
            controller: controller(object),
            expected,
            deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Number of Pods that a Job wants to run now.
fn job(data: &Value) -> i64 {
    let number = |pointer: &str| at(data, pointer).as_i64();
    let conditions = at(data, "/status/conditions").as_array();
    let over = |c: &Value| {
        c["status"] == "True"
            && ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"]
                .iter()
                .any(|t| c["type"] == *t)
    };
    let suspended = at(data, "/spec/suspend") == &Value::Bool(true);
    if suspended || conditions.into_iter().flatten().any(over) {
        return 0;
    }
    let parallelism = number("/spec/parallelism").unwrap_or(1);
    let succeeded = number("/status/succeeded").unwrap_or(0);
    match number("/spec/completions") {
        Some(completions) => parallelism.min(completions - succeeded),
        None => parallelism,
    }
}

fn controller(object: &DynamicObject) -> Option<String> {
    let references = object.owner_references();
    let controller = references.iter().find(|r| r.controller == Some(true));
    controller.map(|r| r.uid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_by_value() {
        assert_eq!(quantity_of("64Mi"), quantity_of("67108864"));
        assert_eq!(quantity_of("500m"), Some(500));
        assert_eq!(quantity_of("1"), quantity_of("1000m"));
        assert_eq!(quantity_of("much"), None);
    }
}
