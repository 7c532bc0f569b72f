//! Reads from the API server whether a CollaSet is being deleted together with its Pods.
//!
//! The caches are not enough to let a Pod go beyond a budget. The user who began the deletion of a CollaSet may still
//! decide that its Pods stay (`--cascade=orphan`), and after a restore of etcd the CollaSet may exist again.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Error};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::request_path;
use crate::api::collaset::CollaSet;
use crate::domain::collaset::deletes_its_pods;
use crate::domain::pod::Owner;

/// The time limit of each read.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// A CollaSet that was read is not read again for this long, because its Pods are checked one after another.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// Recent results: the namespace and the owner reference of each CollaSet that is being deleted, and when it was read.
#[derive(Debug, Default)]
pub struct DeletedCollaSets(Mutex<HashMap<(String, Owner), Instant>>);

impl DeletedCollaSets {
    /// Whether an owner of a Pod in `namespace` is a CollaSet that is being deleted together with its Pods. False if
    /// this cannot be read until `deadline`.
    pub async fn is_deleted_owner(
        &self,
        client: &Client,
        namespace: &str,
        owner: &Owner,
        deadline: Instant,
    ) -> bool {
        let key = (namespace.to_owned(), owner.clone());
        let now = Instant::now();
        let is_fresh = |at: &Instant| now.duration_since(*at) < CACHE_TTL;
        if self.0.lock().get(&key).is_some_and(is_fresh) {
            return true;
        }
        let limit = deadline.min(now + READ_TIMEOUT);
        let read = timeout_at(limit, read_collaset_metadata(client, namespace, owner));
        let Ok(Ok(Some(set))) = read.await else {
            return false;
        };
        let is_it = set.uid.as_deref() == Some(&owner.uid) && deletes_its_pods(&set);
        if is_it {
            let mut known = self.0.lock();
            known.retain(|_, at| is_fresh(at));
            known.insert(key, now);
        }
        is_it
    }
}

/// The metadata of the CollaSet that an owner reference names. `None` if it does not exist.
async fn read_collaset_metadata(
    client: &Client,
    namespace: &str,
    owner: &Owner,
) -> Result<Option<ObjectMeta>, Error> {
    let name = request_path::checked_name(&owner.name)?;
    let sets: Api<CollaSet> = request_path::namespaced_api(client, namespace)?;
    let set = sets.get_metadata_opt(name).await?;
    Ok(set.map(|set| set.metadata))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};
    use testbed::api::FakeApi;

    use super::*;

    const PATH: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/shop/collasets/web";

    fn owner(name: &str, uid: &str) -> Owner {
        Owner {
            api_version: "apps.kusionstack.io/v1alpha1".to_owned(),
            kind: "CollaSet".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            controller: true,
        }
    }

    /// An API server with one CollaSet `web`.
    fn server(metadata: Value) -> FakeApi {
        let api = FakeApi::default();
        let set = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        });
        api.put_unchanged(PATH, set);
        api
    }

    fn set(more: Value) -> Value {
        let mut metadata = json!({
            "name": "web", "namespace": "shop", "uid": "u", "finalizers": ["apps.kusionstack.io/pre-reclaim"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        json_patch::merge(&mut metadata, &more);
        metadata
    }

    async fn check_deleted_owner(
        sets: &DeletedCollaSets,
        client: &Client,
        name: &str,
        uid: &str,
    ) -> bool {
        let deadline = Instant::now() + Duration::from_secs(5);
        sets.is_deleted_owner(client, "shop", &owner(name, uid), deadline)
            .await
    }

    #[tokio::test]
    async fn only_the_very_set_that_takes_its_pods_along_counts() {
        let orphan = json!({ "finalizers": ["apps.kusionstack.io/pre-reclaim", "orphan"] });
        for (metadata, expected) in [
            (set(json!({})), true),
            (set(json!({ "finalizers": ["foregroundDeletion"] })), true),
            (set(json!({ "deletionTimestamp": null })), false),
            (set(json!({ "uid": "another" })), false),
            (set(orphan), false),
        ] {
            let client = server(metadata.clone()).client();
            let found =
                check_deleted_owner(&DeletedCollaSets::default(), &client, "web", "u").await;
            assert_eq!(found, expected, "{metadata}");
        }
        let client = server(set(json!({}))).client();
        for name in ["other", "../collasets/web", ""] {
            let found = check_deleted_owner(&DeletedCollaSets::default(), &client, name, "u").await;
            assert!(!found, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_collaset_read_is_cached_per_owner_reference() {
        let api = server(set(json!({})));
        let client = api.client();
        let sets = DeletedCollaSets::default();
        for _ in 0..3 {
            assert!(check_deleted_owner(&sets, &client, "web", "u").await);
        }
        assert_eq!(api.requests().len(), 1);
        assert!(!check_deleted_owner(&sets, &client, "other", "u").await);
        tokio::time::advance(CACHE_TTL).await;
        assert!(check_deleted_owner(&sets, &client, "web", "u").await);
        assert_eq!(api.requests().len(), 3);
    }
}
