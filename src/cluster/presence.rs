//! Whether an object of any kind exists, read from the API server.
//!
//! The server may not read every kind. Where it may not read the object itself but its `scale` subresource, the answer of
//! that tells as much. Everything else is [`Presence::Unknown`].

use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{self, ApiCapabilities, Discovery};
use kube::{Client, Error};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::path::{self, is_plain};
use crate::cluster::failure;
use crate::domain::pod::Owner;

/// No look-up takes longer.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// What the API server serves is read again after this long.
const REFRESH: Duration = Duration::from_secs(60);
const NO_ANSWER: &str = "the API server did not answer in time";

/// What a read said of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It exists and its deletion has not begun.
    Here,
    /// It does not exist, has another UID, or its deletion has begun.
    Gone,
    /// It could not be read; the text says why.
    Unknown(String),
}

/// Whether the owner that a reference of an object in `namespace` names exists. An owner of a cluster-scoped kind is
/// looked up without the namespace.
pub async fn of_owner(client: &Client, namespace: &str, owner: &Owner) -> Presence {
    let (group, version) = match owner.api_version.split_once('/') {
        Some((group, version)) => (group, version),
        None => ("", owner.api_version.as_str()),
    };
    if !(group.is_empty() || is_plain(group)) || ![version, &owner.name].into_iter().all(is_plain) {
        return Presence::Gone; // the API server stores no object of such a name
    }
    let kind = GroupVersionKind::gvk(group, version, &owner.kind);
    let read = async {
        let (resource, capabilities) = discovery::pinned_kind(client, &kind).await?;
        let found = read(client, namespace, &owner.name, &resource, &capabilities).await?;
        Ok(found.filter(|uid| *uid == owner.uid).is_some())
    };
    in_time(read).await
}

/// Looks objects up of which the kind is known, but not its group.
pub struct Kinds {
    client: Client,
    served: Mutex<Option<(Instant, Arc<Discovery>)>>,
}

impl Kinds {
    /// A look-up that has read nothing yet.
    pub fn new(client: Client) -> Kinds {
        Kinds {
            client,
            served: Mutex::default(),
        }
    }

    /// Whether an object of this kind exists in a namespace, in any of the groups that serve such a kind.
    pub async fn find(&self, kind: &str, namespace: &str, name: &str) -> Presence {
        if ![namespace, name].into_iter().all(is_plain) {
            return Presence::Gone; // the API server stores no object of such a name
        }
        let served = match timeout(READ_TIMEOUT, self.served()).await {
            Ok(Ok(served)) => served,
            Ok(Err(e)) => return Presence::Unknown(failure::text(&e)),
            Err(_) => return Presence::Unknown(NO_ANSWER.to_owned()),
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
                let found = read(&self.client, namespace, name, &resource, &capabilities).await?;
                Ok(found.is_some())
            };
            match in_time(read).await {
                Presence::Gone => {}
                other => return other,
            }
        }
        Presence::Gone
    }

    /// What the API server serves, read again after [`REFRESH`].
    async fn served(&self) -> Result<Arc<Discovery>, Error> {
        let mut known = self.served.lock().await;
        if let Some((at, served)) = known.as_ref()
            && at.elapsed() < REFRESH
        {
            return Ok(Arc::clone(served));
        }
        let served = Discovery::new(self.client.clone()).run_aggregated().await?;
        let served = Arc::new(served);
        *known = Some((Instant::now(), Arc::clone(&served)));
        Ok(served)
    }
}

async fn in_time(read: impl Future<Output = Result<bool, Error>>) -> Presence {
    match timeout(READ_TIMEOUT, read).await {
        Ok(Ok(true)) => Presence::Here,
        Ok(Ok(false)) => Presence::Gone,
        Ok(Err(e)) => Presence::Unknown(failure::text(&e)),
        Err(_) => Presence::Unknown(NO_ANSWER.to_owned()),
    }
}

/// UID of the object, unless its deletion has begun; `None` if there is none.
async fn read(
    client: &Client,
    namespace: &str,
    name: &str,
    resource: &ApiResource,
    capabilities: &ApiCapabilities,
) -> Result<Option<String>, Error> {
    let api = path::dynamic(client, namespace, resource, &capabilities.scope)?;
    let denied = match api.get_metadata_opt(name).await {
        Ok(object) => {
            let alive = object.filter(|o| o.metadata.deletion_timestamp.is_none());
            return Ok(alive.and_then(|o| o.metadata.uid));
        }
        Err(e) => e,
    };
    let has_scale = capabilities.subresources.iter().any(|(r, _)| {
        let name = r.plural.rsplit('/').next();
        name == Some("scale")
    });
    if !has_scale || !matches!(&denied, Error::Api(status) if status.code == 403) {
        return Err(denied);
    }
    match api.get_scale(name).await {
        Ok(scale) => Ok(scale.metadata.uid),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(_) => Err(denied),
    }
}
