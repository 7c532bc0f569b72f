//! Reads lists one page at a time, so that at most one page of the objects that are not kept is in memory. The API
//! server answers all pages from the state of the first one.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::core::params::ListParams;
use serde::de::DeserializeOwned;

/// How many objects a page has. Each object may be as large as etcd allows.
const PAGE_LIMIT: u32 = 10;

/// Lists all objects of a kind and returns the results of `keep`.
///
/// # Errors
/// The error of the API server for a page.
pub async fn list_all_objects<K, R>(
    api: &Api<K>,
    keep: fn(K) -> Option<R>,
) -> Result<Vec<R>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut results = Vec::new();
    let mut page = Some(first_page());
    while let Some(params) = page {
        let list = api.list(&params).await?;
        results.extend(list.items.into_iter().filter_map(keep));
        page = next_page(&list.metadata);
    }
    Ok(results)
}

/// As [`list_all_objects`], but reads only the metadata of the objects.
///
/// # Errors
/// The error of the API server for a page.
pub async fn list_all_metadata<K, R>(
    api: &Api<K>,
    keep: fn(PartialObjectMeta<K>) -> Option<R>,
) -> Result<Vec<R>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut results = Vec::new();
    let mut page = Some(first_page());
    while let Some(params) = page {
        let list = api.list_metadata(&params).await?;
        results.extend(list.items.into_iter().filter_map(keep));
        page = next_page(&list.metadata);
    }
    Ok(results)
}

fn first_page() -> ListParams {
    ListParams::default().limit(PAGE_LIMIT)
}

fn next_page(list: &ListMeta) -> Option<ListParams> {
    let next = list.continue_.as_ref().filter(|next| !next.is_empty())?;
    Some(first_page().continue_token(next))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use kube::{Client, ResourceExt};
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::cluster::request_path;

    /// An API server with two pages, and the queries that it has received.
    fn server() -> (Api<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let queries = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&queries);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let is_first = !query.contains("continue");
            seen.lock().push(query);
            let (name, next) = if is_first { ("a", "x y") } else { ("b", "") };
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": { "continue": next },
                "items": [{ "metadata": { "name": name } }, { "metadata": { "name": "dropped" } }],
            });
            let body = Body::from(list.to_string().into_bytes());
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let client = Client::new(service, "default");
        (request_path::namespaced_api(&client, "n").unwrap(), queries)
    }

    #[tokio::test]
    async fn all_pages_are_read_and_each_is_bounded() {
        let results = |name: String| (name != "dropped").then_some(name);
        let (api, queries) = server();
        let whole = list_all_objects(&api, |o| Some(o.name_any()))
            .await
            .unwrap();
        let names: Vec<_> = whole.into_iter().filter_map(results).collect();
        assert_eq!(names, ["a", "b"]);
        let names = list_all_metadata(&api, |o| Some(o.name_any()).filter(|n| n != "dropped"));
        assert_eq!(names.await.unwrap(), ["a", "b"]);
        let queries = queries.lock().clone();
        assert_eq!(queries.len(), 4);
        for (index, query) in queries.iter().enumerate() {
            assert!(query.contains("limit=10"), "{query}");
            assert_eq!(query.contains("continue=x"), index % 2 == 1, "{query}");
        }
    }
}
