//! Builds the paths of requests to the API server. Every hand-written request takes its path from here, so that a
//! namespace or a name from a user cannot lead to another resource.
//!
//! Percent-encoding alone is not enough: the API server splits the path after decoding it (`RequestInfoFactory` reads
//! `URL.Path`), so `%2F` separates segments in the same way as `/`. Therefore this module refuses characters that
//! Kubernetes allows in no name (`IsValidPathSegmentName`), and encodes the others.

use std::borrow::Cow;
use std::fmt::Debug;

use kube::core::params::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope, Request, request};
use kube::discovery::Scope;
use kube::{Api, Client, Error, Resource};
use serde::Serialize;

use crate::api::labels;
use crate::api::url_encoding::percent_encode;

/// The field manager of all patches that are built here. Admission recognises the patches of Pods by it.
pub const FIELD_MANAGER: &str = "operating";

/// A request in the form that kube's client sends.
pub type UnsentRequest = http::Request<Vec<u8>>;

/// The objects of one resource in one namespace.
#[derive(Clone, Debug)]
pub struct ResourcePath(Request);

impl ResourcePath {
    /// Creates the path of a resource in a namespace. `api` is `/api/v1` or `/apis/GROUP/VERSION`, and `plural` is the
    /// resource. Neither may come from an object.
    ///
    /// # Errors
    /// If `namespace` is not a DNS label.
    pub fn from_parts(api: &str, namespace: &str, plural: &str) -> Result<ResourcePath, Error> {
        let namespace = checked_namespace(namespace)?;
        let path = format!("{api}/namespaces/{namespace}/{plural}");
        Ok(ResourcePath(Request::new(path)))
    }

    /// The resource of a watch, for requests in which the namespace does not matter, such as a read of the present
    /// position. `path` must be a constant, not text from an object. For a namespaced kind, the path names the
    /// namespace `default`, because a path needs a namespace.
    pub fn from_watch_path(path: &str) -> ResourcePath {
        let is_clusters =
            |plural: &str| plural == "namespaces" || plural.ends_with("webhookconfigurations");
        match path.rsplit_once('/') {
            Some((api, plural)) if !is_clusters(plural) => {
                ResourcePath(Request::new(format!("{api}/namespaces/default/{plural}")))
            }
            _ => ResourcePath(Request::new(path)),
        }
    }

    /// The path of the collection.
    pub fn path(&self) -> &str {
        &self.0.url_path
    }

    /// Reads an object.
    ///
    /// # Errors
    /// If `name` is not a valid name.
    pub fn get(&self, name: &str) -> Result<UnsentRequest, Error> {
        map_request_error(self.0.get(&encode_segment(name)?, &GetParams::default()))
    }

    /// Lists objects.
    ///
    /// # Errors
    /// If the parameters contradict each other.
    pub fn list(&self, params: &ListParams) -> Result<UnsentRequest, Error> {
        map_request_error(self.0.list(params))
    }

    /// Lists the metadata of objects.
    ///
    /// # Errors
    /// If the parameters contradict each other.
    pub fn list_metadata(&self, params: &ListParams) -> Result<UnsentRequest, Error> {
        map_request_error(self.0.list_metadata(params))
    }

    /// Creates an object from its JSON.
    ///
    /// # Errors
    /// If the parameters are not valid.
    pub fn create(&self, params: &PostParams, body: Vec<u8>) -> Result<UnsentRequest, Error> {
        map_request_error(self.0.create(params, body))
    }

    /// Creates a subresource of an object, such as an eviction, from its JSON.
    ///
    /// # Errors
    /// If a name is not valid, or the parameters are not valid.
    pub fn create_subresource(
        &self,
        name: &str,
        subresource: &str,
        params: &PostParams,
        body: Vec<u8>,
    ) -> Result<UnsentRequest, Error> {
        let (name, subresource) = (encode_segment(name)?, encode_segment(subresource)?);
        map_request_error(self.0.create_subresource(&subresource, &name, params, body))
    }

    /// Patches an object, or one of its subresources.
    ///
    /// # Errors
    /// If `name` is not a valid name, or the patch cannot be written as JSON.
    pub fn patch<P: Serialize + Debug>(
        &self,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch<P>,
    ) -> Result<UnsentRequest, Error> {
        self.patch_with(&own_patch_params(), name, subresource, patch)
    }

    /// As [`ResourcePath::patch`], as a dry run.
    ///
    /// # Errors
    /// If `name` is not a valid name, or the patch cannot be written as JSON.
    pub fn dry_run_patch<P: Serialize + Debug>(
        &self,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch<P>,
    ) -> Result<UnsentRequest, Error> {
        self.patch_with(&own_patch_params().dry_run(), name, subresource, patch)
    }

    fn patch_with<P: Serialize + Debug>(
        &self,
        params: &PatchParams,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch<P>,
    ) -> Result<UnsentRequest, Error> {
        let name = encode_segment(name)?;
        map_request_error(match subresource {
            Some(subresource) => {
                let subresource = encode_segment(subresource)?;
                self.0.patch_subresource(&subresource, &name, params, patch)
            }
            None => self.0.patch(&name, params, patch),
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// If `name` is not a valid name.
    pub fn delete(&self, name: &str, params: &DeleteParams) -> Result<UnsentRequest, Error> {
        map_request_error(self.0.delete(&encode_segment(name)?, params))
    }
}

/// Typed access to the objects of a kind in a namespace. Names that are passed to it must come from the API server or
/// from [`checked_name`], because kube does not encode them.
///
/// # Errors
/// If `namespace` is not a DNS label.
pub fn namespaced_api<K>(client: &Client, namespace: &str) -> Result<Api<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Ok(Api::namespaced(
        client.clone(),
        checked_namespace(namespace)?,
    ))
}

/// The path of one object of any kind, or of one of its subresources. `api` is `/api/v1` or `/apis/GROUP/VERSION`.
/// `namespace` is `None` for a cluster-scoped kind.
///
/// # Errors
/// If `namespace` is not a DNS label, or if another part cannot be a segment of a path.
pub fn build_object_path(
    api: &str,
    namespace: Option<&str>,
    plural: &str,
    name: &str,
    subresource: Option<&str>,
) -> Result<String, Error> {
    if let Some(part) = api.split('/').skip(1).find(|part| !is_path_safe(part)) {
        return Err(invalid_segment_error(
            "API version",
            part,
            "must be a path segment",
        ));
    }
    let mut path = api.to_owned();
    if let Some(namespace) = namespace {
        path = format!("{path}/namespaces/{}", checked_namespace(namespace)?);
    }
    for part in [plural, name].into_iter().chain(subresource) {
        path = format!("{path}/{}", encode_segment(part)?);
    }
    Ok(path)
}

/// Access to the objects of a kind that was found by discovery. Names that are passed to it must fulfil
/// [`is_path_safe`].
///
/// # Errors
/// If the kind is namespaced and `namespace` is not a DNS label.
pub fn dynamic_api(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    scope: &Scope,
) -> Result<Api<DynamicObject>, Error> {
    let client = client.clone();
    Ok(match scope {
        Scope::Cluster => Api::all_with(client, resource),
        Scope::Namespaced => Api::namespaced_with(client, checked_namespace(namespace)?, resource),
    })
}

/// Whether a text can be put into a path unchanged without changing the meaning of the path. Colons are allowed,
/// because names of some kinds have them.
pub fn is_path_safe(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    !matches!(text, "" | "." | "..") && text.chars().all(plain)
}

/// Returns the namespace if it can be put into a path.
///
/// # Errors
/// If it is not a DNS label. The API server requires this of every namespace.
pub fn checked_namespace(namespace: &str) -> Result<&str, Error> {
    match labels::dns_label_problem(namespace) {
        None => Ok(namespace),
        Some(problem) => Err(invalid_segment_error("namespace", namespace, problem)),
    }
}

/// Returns the name if it can be put into a path unchanged.
///
/// # Errors
/// If it is not a DNS subdomain name. The API server requires this of the names of Pods, Services and our own kinds.
pub fn checked_name(name: &str) -> Result<&str, Error> {
    match labels::dns_name_problem(name) {
        None => Ok(name),
        Some(problem) => Err(invalid_segment_error("name", name, problem)),
    }
}

fn own_patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// One segment of a path, percent-encoded.
fn encode_segment(text: &str) -> Result<Cow<'_, str>, Error> {
    if matches!(text, "" | "." | "..") || text.contains(['/', '%']) {
        let problem = "must not be empty, '.' or '..', and must not contain '/' or '%'";
        return Err(invalid_segment_error("name", text, problem));
    }
    Ok(percent_encode(text).into())
}

fn map_request_error(
    request: Result<UnsentRequest, request::Error>,
) -> Result<UnsentRequest, Error> {
    request.map_err(Error::BuildRequest)
}

fn invalid_segment_error(part: &str, value: &str, problem: &str) -> Error {
    let text = format!("{part} {value:?} {problem}");
    Error::BuildRequest(request::Error::Validation(text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn watch_path_of_namespaced_objects_names_one_namespace() {
        for (watched, path) in [
            ("/api/v1/pods", "/api/v1/namespaces/default/pods"),
            (
                "/apis/apps/v1/deployments",
                "/apis/apps/v1/namespaces/default/deployments",
            ),
            ("/api/v1/namespaces", "/api/v1/namespaces"),
            (
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            ),
        ] {
            assert_eq!(ResourcePath::from_watch_path(watched).path(), path);
        }
    }

    const HOSTILE: [&str; 13] = [
        "",
        ".",
        "..",
        "a/b",
        "../../kube-system/pods/x",
        "a%2fb",
        "a?x=",
        "a#b",
        "a b",
        "a\nb",
        "kube-system/pods?x=",
        "ümlaut",
        "\0",
    ];

    #[test]
    fn hostile_namespaces_build_no_request() {
        for namespace in HOSTILE.into_iter().chain([&*"a".repeat(300)]) {
            assert!(
                ResourcePath::from_parts("/api/v1", namespace, "pods").is_err(),
                "{namespace:?}"
            );
            assert!(checked_namespace(namespace).is_err(), "{namespace:?}");
        }
    }

    #[test]
    fn hostile_names_stay_within_their_segment() {
        let pods = ResourcePath::from_parts("/api/v1", "shop", "pods").unwrap();
        for name in HOSTILE {
            assert!(checked_name(name).is_err(), "{name:?}");
            let (patch, delete) = (Patch::Merge(1), DeleteParams::default());
            let requests = [
                pods.get(name),
                pods.patch(name, None, &patch),
                pods.patch(name, Some("status"), &patch),
                pods.delete(name, &delete),
            ];
            for request in requests.into_iter().flatten() {
                let uri = request.uri();
                let rest = uri.path().strip_prefix("/api/v1/namespaces/shop/pods/");
                let rest = rest.unwrap().trim_end_matches("/status");
                assert!(!rest.contains('/'), "{uri}");
                let query = uri.query().unwrap_or_default();
                assert!(["", "&fieldManager=operating"].contains(&query), "{uri}");
            }
        }
    }

    #[test]
    fn names_of_kubernetes_are_kept() {
        let pods = ResourcePath::from_parts("/api/v1", "shop-1", "pods").unwrap();
        for (name, path) in [
            ("web-0", "/api/v1/namespaces/shop-1/pods/web-0"),
            ("web.0", "/api/v1/namespaces/shop-1/pods/web.0"),
            (
                "system:node",
                "/api/v1/namespaces/shop-1/pods/system%3Anode",
            ),
        ] {
            assert_eq!(pods.get(name).unwrap().uri(), path);
        }
    }

    #[test]
    fn text_that_changes_a_path_is_not_path_safe() {
        for text in ["web-1", "system:node", "a.b"] {
            assert!(is_path_safe(text), "{text}");
        }
        for text in ["", "a/b", "..", "a?x=1", "a%2fb", "a#b", "é"] {
            assert!(!is_path_safe(text), "{text}");
        }
    }

    #[test]
    fn object_path_refuses_segments_that_change_the_path() {
        let found =
            |api, namespace, name| build_object_path(api, namespace, "jobs", name, Some("scale"));
        assert_eq!(
            found("/apis/batch/v1", Some("n"), "a").unwrap(),
            "/apis/batch/v1/namespaces/n/jobs/a/scale"
        );
        assert_eq!(found("/api/v1", None, "a").unwrap(), "/api/v1/jobs/a/scale");
        assert!(found("/apis/../v1", Some("n"), "a").is_err());
        assert!(found("/apis/batch/v1", Some("n/pods"), "a").is_err());
        assert!(found("/apis/batch/v1", Some("n"), "a/b").is_err());
    }
}
