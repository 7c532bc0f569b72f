//! Reads from the API server whether an object of any kind exists.
//!
//! The server does not have the right to read every kind. If it may not read the object but its `scale` subresource,
//! the response for `scale` is used instead. All other results are [`Presence::Unknown`]. This includes a 404 that does
//! not name the object: this version of the kind may no longer be served, while the object still exists in another
//! version.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Discovery};
use kube::{Client, Error};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::not_found;
use super::request_path::{self, is_path_safe};
use crate::api_request;
use crate::domain::collaset::orphans_its_pods;
use crate::domain::pod::Owner;

/// The time limit of each lookup.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// After this long, the served kinds are read again.
const DISCOVERY_TTL: Duration = Duration::from_secs(60);
/// After this long, the served kinds are read again if the kind was not among them, and after a failure. The pause is
/// needed because each request of a tenant may name kinds that do not exist.
const DOUBTED_DISCOVERY_TTL: Duration = Duration::from_secs(5);

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The object exists and its deletion has not begun.
    Exists,
    /// The deletion of the object has begun, and its dependents stay.
    Leaving,
    /// The object does not exist, has another UID, or is being deleted together with its dependents.
    Gone,
    /// The object could not be read. The text is the cause.
    Unknown(String),
}

/// The served kinds, or why they could not be read.
type DiscoveryResult = Result<Arc<Discovery>, String>;

/// Looks objects up by their kind. The served kinds are read once for many lookups. A lookup costs one call, or two
/// calls if only `scale` may be read.
pub struct ObjectLookup {
    client: Client,
    served: Mutex<Option<(Instant, DiscoveryResult)>>,
}

impl ObjectLookup {
    /// Creates a lookup that has not read anything yet.
    pub fn new(client: Client) -> ObjectLookup {
        ObjectLookup {
            client,
            served: Mutex::default(),
        }
    }

    /// Looks up the owner that an owner reference in `namespace` names. An owner of a cluster-scoped kind is looked up
    /// without the namespace. An owner of a kind that the API server does not serve is [`Presence::Unknown`].
    pub async fn look_up_owner(&self, namespace: &str, owner: &Owner) -> Presence {
        let (group, version) = match owner.api_version.split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", owner.api_version.as_str()),
        };
        if !(group.is_empty() || is_path_safe(group))
            || ![version, &owner.name].into_iter().all(is_path_safe)
        {
            return Presence::Gone; // the API server stores no object with such a name
        }
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let (resource, capabilities) = match self.resolve_kind(&kind).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                let Owner {
                    kind, api_version, ..
                } = owner;
                let why = format!("the API server serves no kind {kind} in {api_version}");
                return Presence::Unknown(why);
            }
            Err(why) => return Presence::Unknown(why),
        };
        let read = async {
            let found = self
                .read_metadata(namespace, &owner.name, &resource, &capabilities)
                .await?;
            let found = found.filter(|found| found.uid.as_ref() == Some(&owner.uid));
            Ok(found.map_or(Presence::Gone, |found| presence_from_metadata(&found)))
        };
        with_read_timeout(read).await
    }

    /// Whether the object that an owner reference names may exist. False only if its group is not served at all. If
    /// only the version or the kind is not served, the object may exist in another version.
    pub async fn may_owner_exist(&self, owner: &Owner) -> bool {
        match owner.api_version.split_once('/') {
            Some((group, _)) => match self.served_kinds(DOUBTED_DISCOVERY_TTL).await {
                Ok(served) => served.has_group(group),
                Err(_) => true,
            },
            None => true,
        }
    }

    /// The API resource of a kind. `None` if the API server does not serve the kind.
    async fn resolve_kind(
        &self,
        kind: &GroupVersionKind,
    ) -> Result<Option<(ApiResource, ApiCapabilities)>, String> {
        let known = self.served_kinds(DISCOVERY_TTL).await?.resolve_gvk(kind);
        match known {
            Some(found) => Ok(Some(found)),
            None => Ok(self
                .served_kinds(DOUBTED_DISCOVERY_TTL)
                .await?
                .resolve_gvk(kind)),
        }
    }

    /// Looks up an object of this kind in a namespace, in all groups that serve a kind of this name.
    pub async fn find_object(&self, kind: &str, namespace: &str, name: &str) -> Presence {
        if ![namespace, name].into_iter().all(is_path_safe) {
            return Presence::Gone; // the API server stores no object with such a name
        }
        let served = match self.served_kinds(DISCOVERY_TTL).await {
            Ok(served) => served,
            Err(why) => return Presence::Unknown(why),
        };
        let kinds: Vec<_> = served
            .groups()
            .filter_map(|group| group.recommended_kind(kind))
            .collect();
        if kinds.is_empty() {
            return Presence::Unknown(format!("the API server serves no kind {kind}"));
        }
        for (resource, capabilities) in kinds {
            let read = async {
                let found = self
                    .read_metadata(namespace, name, &resource, &capabilities)
                    .await?;
                Ok(found.map_or(Presence::Gone, |found| presence_from_metadata(&found)))
            };
            match with_read_timeout(read).await {
                Presence::Gone | Presence::Leaving => {}
                other => return other,
            }
        }
        Presence::Gone
    }

    /// The served kinds, read at most `age` ago. A failure is returned again for [`DOUBTED_DISCOVERY_TTL`].
    async fn served_kinds(&self, age: Duration) -> DiscoveryResult {
        let mut known = self.served.lock().await;
        if let Some((at, served)) = known.as_ref()
            && at.elapsed()
                < if served.is_ok() {
                    age
                } else {
                    DOUBTED_DISCOVERY_TTL
                }
        {
            return served.clone();
        }
        let discovery = Discovery::new(self.client.clone());
        let served = api_request::within(READ_TIMEOUT, discovery.run_aggregated()).await;
        let served = served.map(Arc::new).map_err(|failure| failure.text());
        *known = Some((Instant::now(), served.clone()));
        served
    }

    /// Reads the metadata of the object, from `scale` if only that may be read. `None` if the object does not exist.
    async fn read_metadata(
        &self,
        namespace: &str,
        name: &str,
        resource: &ApiResource,
        capabilities: &ApiCapabilities,
    ) -> Result<Option<ObjectMeta>, Error> {
        let api =
            request_path::dynamic_api(&self.client, namespace, resource, &capabilities.scope)?;
        let is_absent = |error: &Error| {
            let ApiResource { group, plural, .. } = resource;
            matches!(error, Error::Api(status) if not_found::proves_not_found(status, group, plural, name))
        };
        let denied = match api.get_metadata(name).await {
            Ok(object) => return Ok(Some(object.metadata)),
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => e,
        };
        if !has_scale(capabilities) || !matches!(&denied, Error::Api(status) if status.code == 403)
        {
            return Err(denied);
        }
        match api.get_scale(name).await {
            Ok(scale) => Ok(Some(scale.metadata)),
            // A kind whose `scale` was removed gives this response for every object.
            Err(e) if is_absent(&e) && self.still_has_scale(resource).await => Ok(None),
            Err(_) => Err(denied),
        }
    }

    /// Whether the kind has a `scale` subresource, by what was read at most [`DOUBTED_DISCOVERY_TTL`] ago.
    async fn still_has_scale(&self, resource: &ApiResource) -> bool {
        let ApiResource {
            group,
            version,
            kind,
            ..
        } = resource;
        let kind = GroupVersionKind::gvk(group, version, kind);
        let served = self.served_kinds(DOUBTED_DISCOVERY_TTL).await.ok();
        let found = served.and_then(|served| served.resolve_gvk(&kind));
        found.is_some_and(|(_, capabilities)| has_scale(&capabilities))
    }
}

fn has_scale(capabilities: &ApiCapabilities) -> bool {
    let mut subresources = capabilities.subresources.iter();
    subresources.any(|(r, _)| r.plural.rsplit('/').next() == Some("scale"))
}

fn presence_from_metadata(object: &ObjectMeta) -> Presence {
    match object.deletion_timestamp {
        None => Presence::Exists,
        Some(_) if orphans_its_pods(object) => Presence::Leaving,
        Some(_) => Presence::Gone,
    }
}

async fn with_read_timeout(read: impl Future<Output = Result<Presence, Error>>) -> Presence {
    let found = api_request::within(READ_TIMEOUT, read).await;
    found.unwrap_or_else(|failure| Presence::Unknown(failure.text()))
}
