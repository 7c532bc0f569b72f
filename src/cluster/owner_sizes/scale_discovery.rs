//! Finds the resource of a kind, and whether it has a `scale` subresource.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::{Client, Error};
use serde::Deserialize;

use super::read_failure::ReadFailure;
use super::single_flight::SingleFlightCache;

/// How long a `scale` subresource that was found counts as present. If it is removed, reading it gives a 404.
const SCALE_TTL: Duration = Duration::from_secs(60);
/// How long a missing `scale` subresource or a missing kind counts as missing, because a CustomResourceDefinition may
/// be created or get a `scale` at any time. A failed read is also repeated after this time.
const NO_SCALE_TTL: Duration = Duration::from_secs(1);

/// A resource of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    /// The plural in the path of the resource.
    pub plural: String,
    pub namespaced: bool,
    /// Whether the resource has the subresource `scale`.
    pub scale: bool,
}

type ResourcesByKind = HashMap<String, Resource>;

/// Cached discovery of the resources of API groups.
#[derive(Debug, Default)]
pub(super) struct ScaleDiscovery(
    SingleFlightCache<String, Result<Arc<ResourcesByKind>, ReadFailure>>,
);

impl ScaleDiscovery {
    /// The resource of a kind. `None` if the API server does not serve this kind. `api_version` must be valid path
    /// segments.
    ///
    /// # Errors
    /// The error of the API server, or why it could not be asked.
    pub async fn find_resource(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Resource>, ReadFailure> {
        self.cached_resources(client, api_version, kind, SCALE_TTL)
            .await
    }

    /// As [`ScaleDiscovery::find_resource`], for use after a response that contradicts the cached result.
    ///
    /// # Errors
    /// The error of the API server, or why it could not be asked.
    pub async fn find_resource_anew(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Resource>, ReadFailure> {
        self.cached_resources(client, api_version, kind, NO_SCALE_TTL)
            .await
    }

    async fn cached_resources(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
        ttl: Duration,
    ) -> Result<Option<Resource>, ReadFailure> {
        let age = |answer: &Result<Arc<ResourcesByKind>, _>| match answer {
            Ok(kinds) if kinds.get(kind).is_some_and(|r| r.scale) => ttl,
            _ => NO_SCALE_TTL,
        };
        let key = api_version.to_owned();
        let kinds = self
            .0
            .get_or_read(&key, age, || list_resources(client, api_version))
            .await?;
        Ok(kinds.get(kind).cloned())
    }
}

/// The path of a group and version: `/api/v1` or `/apis/GROUP/VERSION`.
pub(super) fn group_version_path(api_version: &str) -> String {
    match api_version.contains('/') {
        true => format!("/apis/{api_version}"),
        false => format!("/api/{api_version}"),
    }
}

async fn list_resources(
    client: &Client,
    api_version: &str,
) -> Result<Arc<ResourcesByKind>, ReadFailure> {
    let path = group_version_path(api_version);
    let request = Request::get(&path)
        .body(Vec::new())
        .map_err(|e| ReadFailure::invalid_request(&e))?;
    match client.request::<List>(request).await {
        Ok(list) => Ok(Arc::new(resources_by_kind(list))),
        Err(Error::Api(status)) if status.code == 404 => Ok(Arc::default()),
        Err(e) => Err(ReadFailure::from_error(&e, &path)),
    }
}

/// `APIResourceList`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    resources: Vec<Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    name: String,
    kind: String,
    namespaced: bool,
}

fn resources_by_kind(list: List) -> ResourcesByKind {
    let scales: Vec<String> = list
        .resources
        .iter()
        .filter_map(|entry| Some(entry.name.strip_suffix("/scale")?.to_owned()))
        .collect();
    let whole = list
        .resources
        .into_iter()
        .filter(|entry| !entry.name.contains('/'));
    whole
        .map(|entry| {
            let resource = Resource {
                scale: scales.contains(&entry.name),
                namespaced: entry.namespaced,
                plural: entry.name,
            };
            (entry.kind, resource)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_with_scale_are_discovered() {
        let list = json!({ "kind": "APIResourceList", "resources": [
            { "name": "rollouts", "kind": "Rollout", "namespaced": true, "verbs": ["get"] },
            { "name": "rollouts/status", "kind": "Rollout", "namespaced": true },
            { "name": "rollouts/scale", "kind": "Scale", "group": "autoscaling", "namespaced": true },
            { "name": "analyses", "kind": "Analysis", "namespaced": true },
        ] });
        let kinds = resources_by_kind(serde_json::from_value(list).unwrap());
        assert_eq!(kinds.len(), 2);
        assert!(kinds["Rollout"].scale && kinds["Rollout"].namespaced);
        assert_eq!(kinds["Rollout"].plural, "rollouts");
        assert!(!kinds["Analysis"].scale);
    }
}
