//! The wire form of `admission.k8s.io/v1`, and the trait by which the server asks for a decision.
//!
//! Only what decisions need is parsed. Objects stay raw JSON: a typed round trip would drop every field newer than
//! this program (contract Q23).

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

/// The only `apiVersion` that is accepted: the only one that the webhook configurations announce.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The only `kind` that is accepted.
pub const KIND: &str = "AdmissionReview";

/// See [`Handler::bytes_per_value`]: an object that is read once.
const BYTES_PER_VALUE: usize = 128;

/// Decides the reviews of one webhook path.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Decides a review; `deadline` is when the API server stops listening. The future is dropped when the deadline
    /// passes or the caller hangs up, so it must leave nothing half done that a crash could not leave too.
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict;

    /// Decides without any I/O when [`review`](Handler::review) cannot run or ended badly (overload, deadline, panic):
    /// what is never held is allowed, the rest is denied with `why`, a clause such as `the server is overloaded`.
    fn fallback(&self, request: &Request, why: &str) -> Verdict;

    /// Decides a review that takes more memory than any may, without parsing its objects; `why` is a clause.
    fn deny_excessive(&self, _request: &Request, why: &str) -> Verdict {
        Verdict::deny(413, "RequestEntityTooLarge", why)
    }

    /// Bytes of memory that a review takes at most for each JSON value of its body. Reviews wait for their memory, and
    /// one that takes too much of it is [`excessive`](Handler::excessive).
    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

/// What is being done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// `CREATE`, also of a subresource such as `pods/eviction`.
    Create,
    /// `UPDATE`, patches included.
    Update,
    /// `DELETE`, one per object of a deletecollection.
    Delete,
    /// `CONNECT`, for example `pods/exec`.
    Connect,
}

impl Operation {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
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
    /// Kind; `Eviction` on `pods/eviction`.
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
    /// Resource, plural.
    pub resource: String,
}

/// Group of all kubelets.
pub const NODES_GROUP: &str = "system:nodes";

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// For example `system:serviceaccount:kube-system:generic-garbage-collector`.
    pub username: String,
    /// Identifies the user beyond the name; empty where the authenticator knows none.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// What the authenticator knows besides.
    pub extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl UserInfo {
    /// Whether it is a kubelet (<https://kubernetes.io/docs/reference/access-authn-authz/node/>).
    pub fn is_node(&self) -> bool {
        self.groups.iter().any(|group| group == NODES_GROUP)
    }
}

/// A review to decide: the `request` of an AdmissionReview.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identifies this call; echoed in the answer. A retry of the storage transaction has another one.
    pub uid: String,
    /// Kind of the object.
    pub kind: RequestKind,
    /// Resource.
    pub resource: RequestResource,
    /// Subresource such as `status` or `eviction`; `None` when the object itself is meant.
    pub sub_resource: Option<String>,
    /// Object name, a DNS subdomain name; empty for a CREATE by `generateName` and for a deletecollection.
    pub name: String,
    /// Namespace, a DNS label; empty for cluster-scoped objects.
    pub namespace: String,
    /// Operation.
    pub operation: Operation,
    /// Who asks, as the caller says.
    pub user_info: UserInfo,
    /// Whether the caller is an API server by its client certificate.
    pub is_verified: bool,
    /// Nothing may be written for such a request.
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
    /// Reads the body of a webhook call. Where `object` and `oldObject` have a namespace or a name, it is that of the
    /// request.
    ///
    /// # Errors
    /// [`Malformed`] when the body is not an `admission.k8s.io/v1` AdmissionReview with a usable request. It names the
    /// field, quotes nothing of the body, and carries the uid when that could be read.
    pub fn parse(body: &[u8]) -> Result<Request, Malformed> {
        parse::parse_request(body)
    }

    /// The object after the operation as JSON; null without one.
    pub fn object_json(&self) -> Value {
        raw_to_json(self.object.as_deref())
    }

    /// The object before the operation as JSON; null without one.
    pub fn old_object_json(&self) -> Value {
        raw_to_json(self.old_object.as_deref())
    }

    /// The options as JSON; null without any.
    pub fn options_json(&self) -> Value {
        raw_to_json(self.options.as_deref())
    }

    /// Who asks, for messages and logs: only an API server's word counts.
    pub fn user(&self) -> String {
        let name = &self.user_info.username;
        match self.is_verified {
            true => name.clone(),
            false => format!("{name} (as the caller says, without a client certificate)"),
        }
    }

    /// `namespace/name`, or the name of a cluster-scoped object, for messages and logs. A deletecollection names none: there
    /// it is the name of the object that is to go.
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

    /// `metadata.name` of the old object, or of the new one.
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
