//! Writes objects of the cached kinds. The response of the API server is in the cache before each call returns.

use std::sync::Arc;

use kube::core::params::{DeleteParams, Patch, PostParams, Preconditions};
use kube::{Client, Error};
use serde_json::Value;

use super::{CachedKind, ObjectCaches};
use crate::cluster::request_path;
use crate::domain::pod::PodMetadata;

/// Creates an object. Returns its UID.
pub async fn create_object<W: CachedKind>(
    client: &Client,
    objects: &ObjectCaches,
    namespace: &str,
    body: &Value,
) -> Result<String, Error> {
    let body = escape_html_like_go(&body.to_string());
    let request = namespace_path::<W>(namespace)?.create(&PostParams::default(), body)?;
    let object = client.request::<W>(request).await?;
    let uid = object.metadata().uid.clone();
    cache_response(objects, object);
    Ok(uid)
}

/// Patches an object, or its `status`.
pub async fn patch_object<W: CachedKind>(
    client: &Client,
    objects: &ObjectCaches,
    object: (&str, &str),
    patch: &Patch<Value>,
    status: bool,
) -> Result<(), Error> {
    let patched = patch_for_answer::<W>(client, objects, object, patch, status);
    patched.await.map(|_| ())
}

/// As [`patch_object`]. Returns the metadata of the answer. The cache may have a newer object. It may also have an older
/// one: the answer to a write that removes the last finalizer has no new resourceVersion.
pub async fn patch_for_answer<W: CachedKind>(
    client: &Client,
    objects: &ObjectCaches,
    (namespace, name): (&str, &str),
    patch: &Patch<Value>,
    status: bool,
) -> Result<PodMetadata, Error> {
    let request = namespace_path::<W>(namespace)?.patch(name, status.then_some("status"), patch)?;
    let object = client.request::<W>(request).await?;
    let metadata = object.metadata().clone();
    cache_response(objects, object);
    Ok(metadata)
}

/// Reads an object from etcd. `None` if no object has this name, or if the cache does not keep the object.
pub async fn get_object<W: CachedKind>(
    client: &Client,
    objects: &ObjectCaches,
    (namespace, name): (&str, &str),
) -> Result<Option<Arc<W::Cached>>, Error> {
    let request = namespace_path::<W>(namespace)?.get(name)?;
    match client.request::<W>(request).await {
        Ok(object) => cache_response(objects, object),
        Err(Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(e) => return Err(e),
    }
    Ok(W::object_cache(objects).get(namespace, name))
}

/// Deletes an object if it still has this UID, and this resourceVersion if one is given. An object that is already gone
/// is no error.
pub async fn delete_object<W: CachedKind>(
    client: &Client,
    objects: &ObjectCaches,
    (namespace, name, uid): (&str, &str, &str),
    version: Option<&str>,
) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: version.map(str::to_owned),
        }),
        ..DeleteParams::default()
    };
    let request = namespace_path::<W>(namespace)?.delete(name, &params)?;
    let answer = match client.request::<Value>(request).await {
        Ok(answer) => answer,
        Err(Error::Api(status)) if status.code == 404 => Value::Null,
        Err(e) => return Err(e),
    };
    // If the object has finalizers, it stays for now. Otherwise the response is a Status or the last state of the
    // object.
    let waits = answer["metadata"]["deletionTimestamp"].is_string()
        && answer["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|f| !f.is_empty());
    match serde_json::from_str::<W>(&answer.to_string()) {
        Ok(object) if waits => cache_response(objects, object),
        _ => W::object_cache(objects).apply_own_delete(namespace, name, uid),
    }
    Ok(())
}

/// Escapes JSON in the same way as Go (`encoding/json` with `escapeHTML`). The API server stores the data of a
/// ControllerRevision as the bytes that it receives. It refuses every later patch of the object if its own encoding of
/// the data differs from these bytes.
fn escape_html_like_go(json: &str) -> Vec<u8> {
    let mut body = json.to_owned();
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        body = body.replace(c, &format!("\\u{:04x}", u32::from(c))); // JSON has these characters in strings only
    }
    body.into_bytes()
}

fn cache_response<W: CachedKind>(objects: &ObjectCaches, object: W) {
    let key = object.object_key();
    W::object_cache(objects).apply_own_write(key, object.into_cached());
}

/// The path of the objects in a namespace.
fn namespace_path<W: CachedKind>(namespace: &str) -> Result<request_path::ResourcePath, Error> {
    let (api, plural) = W::KIND.path().rsplit_once('/').unwrap_or_default();
    request_path::ResourcePath::from_parts(api, namespace, plural)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_that_go_escapes_are_escaped() {
        let body = json!({ "a<b": ["x && y", "\u{2028}\u{2029}\\u0026 ü"] });
        let written = escape_html_like_go(&body.to_string());
        assert!(!written.iter().any(|byte| b"<>&".contains(byte)));
        let text = String::from_utf8(written).unwrap();
        assert!(text.contains("x \\u0026\\u0026 y"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), body);
    }
}
