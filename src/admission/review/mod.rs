//! Defines the wire form of `admission.k8s.io/v1`, and the trait [`Handler`] by which the server asks for a decision.
//!
//! Only the fields that decisions need are parsed. Objects stay raw JSON, because a conversion to types and back would
//! drop every field that is newer than this program (contract Q23).

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

pub use self::parse::Malformed;
pub use self::verdict::Verdict;

mod parse;
mod verdict;

/// The only `apiVersion` that is accepted. The webhook configurations announce no other version.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The only `kind` that is accepted.
pub const KIND: &str = "AdmissionReview";

/// See [`Handler::bytes_per_value`]. This value fits a handler that parses the object once.
const BYTES_PER_VALUE: usize = 128;

/// Decides the reviews of one webhook path.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Decides a review. `deadline` is when the API server stops waiting. The future is dropped when the deadline
    /// passes or the caller closes the connection, so each `await` must leave a state that is also safe after a crash.
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict;

    /// Decides without any I/O when [`review`](Handler::review) cannot run or did not succeed (overload, deadline,
    /// panic). Requests that are always exempt are allowed. All other requests are denied with `why`, a clause such as
    /// `the server is overloaded`.
    fn fallback(&self, request: &Request, why: &str) -> Verdict;

    /// Decides a review that needs more memory than any review may take, without parsing its objects. `why` is a
    /// clause.
    fn deny_excessive(&self, _request: &Request, why: &str) -> Verdict {
        Verdict::deny(413, "RequestEntityTooLarge", why)
    }

    /// Bytes of memory that a review takes at most for each JSON value of its body. A review waits until this memory is
    /// available. A review that needs too much of it goes to [`deny_excessive`](Handler::deny_excessive).
    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

/// The operation on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RequestOperation {
    /// `CREATE`, also of a subresource such as `pods/eviction`.
    Create,
    /// `UPDATE`, including patches.
    Update,
    /// `DELETE`. A deletecollection sends one review for each object.
    Delete,
    /// `CONNECT`, for example `pods/exec`.
    Connect,
}

impl RequestOperation {
    /// The name in an AdmissionReview.
    pub const fn as_str(self) -> &'static str {
        match self {
            RequestOperation::Create => "CREATE",
            RequestOperation::Update => "UPDATE",
            RequestOperation::Delete => "DELETE",
            RequestOperation::Connect => "CONNECT",
        }
    }
}

/// Fully qualified kind of the object. `group` is empty for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RequestKind {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind of the object; `Eviction` for `pods/eviction`.
    pub kind: String,
}

/// Fully qualified resource of the request. `group` is empty for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RequestResource {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name of the resource.
    pub resource: String,
}

/// The group to which all kubelets belong.
pub const NODES_GROUP: &str = "system:nodes";

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// User name, for example `system:serviceaccount:kube-system:generic-garbage-collector`.
    pub username: String,
    /// UID of the user; empty if the authenticator knows none.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl UserInfo {
    /// Whether the user is a kubelet (<https://kubernetes.io/docs/reference/access-authn-authz/node/>).
    pub fn is_node(&self) -> bool {
        self.groups.iter().any(|group| group == NODES_GROUP)
    }
}

/// A review to decide: the `request` of an AdmissionReview.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identifies this call. The answer contains the same uid. If the API server retries its storage transaction, the
    /// new call has another uid.
    pub uid: String,
    /// Kind of the object.
    pub kind: RequestKind,
    /// Resource of the request.
    pub resource: RequestResource,
    /// Subresource such as `status` or `eviction`; `None` for the object itself.
    pub sub_resource: Option<String>,
    /// Object name, a DNS subdomain name; empty for a CREATE with `generateName` and for a deletecollection.
    pub name: String,
    /// Namespace, a DNS label; empty for cluster-scoped objects.
    pub namespace: String,
    /// Operation of the request.
    pub operation: RequestOperation,
    /// The user, as the caller states it.
    pub user_info: UserInfo,
    /// Whether the client certificate proves that the caller is an API server.
    pub is_verified: bool,
    /// Whether the request is a dry run, for which nothing may be written.
    pub dry_run: bool,
    /// The object after the operation; `None` for DELETE.
    pub object: Option<Box<RawValue>>,
    /// The object before the operation; `None` for CREATE and CONNECT.
    pub old_object: Option<Box<RawValue>>,
    /// `CreateOptions`, `UpdateOptions` or `DeleteOptions`.
    pub options: Option<Box<RawValue>>,
}

fn raw_to_json(raw: Option<&RawValue>) -> Value {
    let read = raw.and_then(|raw| serde_json::from_str(raw.get()).ok());
    read.unwrap_or_default()
}

impl Request {
    /// Parses the body of a webhook call. If `object` or `oldObject` has a namespace or a name, it is the same as that
    /// of the request.
    ///
    /// # Errors
    /// [`Malformed`] when the body is not an `admission.k8s.io/v1` AdmissionReview with a valid request. The error
    /// names the field, quotes nothing of the body, and has the uid if it could be read.
    pub fn parse(body: &[u8]) -> Result<Request, Malformed> {
        parse::parse_request(body)
    }

    /// The object after the operation as JSON; null if there is none.
    pub fn object_json(&self) -> Value {
        raw_to_json(self.object.as_deref())
    }

    /// The object before the operation as JSON; null if there is none.
    pub fn old_object_json(&self) -> Value {
        raw_to_json(self.old_object.as_deref())
    }

    /// The options as JSON; null if there are none.
    pub fn options_json(&self) -> Value {
        raw_to_json(self.options.as_deref())
    }

    /// The user name for messages and logs. It says so if the caller is not proven to be an API server.
    pub fn user(&self) -> String {
        let name = &self.user_info.username;
        match self.is_verified {
            true => name.clone(),
            false => format!("{name} (as the caller says, without a client certificate)"),
        }
    }

    /// `namespace/name` for messages and logs, or the name of a cluster-scoped object. The request of a
    /// deletecollection has no name, so this is the name in the object.
    pub fn object_name(&self) -> String {
        let name = match self.name.as_str() {
            "" => self.name_in_object().unwrap_or_default(),
            name => name.to_owned(),
        };
        if self.namespace.is_empty() {
            name
        } else {
            format!("{}/{name}", self.namespace)
        }
    }

    /// `metadata.name` of the old object, or else of the new object.
    fn name_in_object(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(serde::Deserialize)]
        struct Metadata {
            name: String,
        }
        let raw = self.old_object.as_deref().or(self.object.as_deref())?;
        let object: Object = serde_json::from_str(raw.get()).ok()?;
        Some(object.metadata.name)
    }
}

/// Raw fields of a JSON object by name.
type RawFields<'a> = BTreeMap<String, &'a RawValue>;

#[cfg(test)]
mod tests;
