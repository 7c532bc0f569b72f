//! The data about traffic, which `-o json` prints. Fields are only ever added. Times are RFC 3339 in UTC. A value that
//! does not apply is absent, but lists are always present.

use jiff::Timestamp;
use serde::Serialize;

use crate::domain::traffic::report::WaitingMember;

/// What an employer, such as a Service, says about a Pod that waits for its finalizer to be added or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTrafficFacts {
    /// The employer, in the form `<Kind>/<namespace>/<name>`. Its namespace is that of the Pod.
    pub employer: String,
    /// Name of the Service. Absent if the employer is of another kind, which this command can't read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The adapter that manages the traffic of the Service. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// What the report of the employer says about the Pod, or why the report says nothing about it, in clauses. The list
    /// is never empty.
    pub says: Vec<String>,
    /// The last failure of the adapter, until a call succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the failed call is repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// What the user can do, if the server can't go on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The diagnosis of a Service: which members of its load balancer are not as the Pods need, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDiagnosis {
    /// The answer in one sentence.
    pub summary: String,
    /// The state of the Service.
    pub service: ServiceFacts,
    /// How many members are in which state, as the report of the Service says.
    pub counts: MemberCounts,
    /// Members that are not as they should be, at most ten. Their messages also say how much time is left.
    pub waiting: Vec<WaitingMember>,
    /// How many more members and Pods wait than the report lists.
    pub unlisted: usize,
    /// Pods that wait for their traffic and that the report does not list. Empty if it lists all that it counts.
    pub unlisted_pods: PodNames,
    /// The last failure of the adapter, until a call succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the failed call is repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// The Pods that the Service selects or has marked. Absent if they could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<ServicePods>,
    /// Why the traffic is not managed as it should be. The cause that explains most comes first.
    pub problems: Vec<ProblemFacts>,
    /// What happens next, or what the user can do.
    pub next: Vec<String>,
    /// What could not be read and is therefore missing in this diagnosis.
    pub notes: Vec<String>,
}

/// The state of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Whether the Service has the label `kusionstack.io/control: "true"`.
    pub managed: bool,
    /// Whether the Service has a report about its traffic.
    pub reported: bool,
    /// The adapter that manages the traffic. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The adapter that an annotation of the Service names. Absent if the annotation is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted_adapter: Option<String>,
    /// The adapters that managed the traffic before, where members or draining Pods may still be. While there are any, no
    /// Pod is released.
    pub former_adapters: Vec<String>,
    /// The drain time that an annotation of the Service asks for, as it is written there. Absent if the annotation is
    /// missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<String>,
    /// Why this annotation has no effect. Absent if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_error: Option<String>,
    /// Since when the Service is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleting_since: Option<Timestamp>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// How many members are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberCounts {
    /// Members that serve, and should.
    pub registered: usize,
    /// Members that should serve and do not yet.
    pub pending: usize,
    /// Members that should be off traffic and are not yet.
    pub draining: usize,
    /// Members whose last change failed.
    pub failed: usize,
}

/// The Pods of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePods {
    /// How many managed Pods the Service selects.
    pub selected: usize,
    /// Pods that the Service selects and that are not managed. Empty if the traffic of the Service is not managed.
    pub unmanaged: PodNames,
    /// Pods with the finalizer of the Service: no operation begins on them.
    pub protected: PodNames,
    /// Those of them that should be off traffic. They keep the finalizer until the load balancer agrees.
    pub leaving: PodNames,
    /// Pods that are not available before they have the finalizer of the Service, and do not have it.
    pub awaiting: PodNames,
}

/// Some Pods by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNames {
    /// How many there are.
    pub count: usize,
    /// The first names, at most 20, in the order of the alphabet.
    pub names: Vec<String>,
}

impl PodNames {
    /// The first `max` names: `a, b and 3 more`.
    pub fn list(&self, max: usize) -> String {
        let first: Vec<&str> = self.names.iter().take(max).map(String::as_str).collect();
        match self.count - first.len() {
            0 => first.join(", "),
            more => format!("{} and {more} more", first.join(", ")),
        }
    }
}

/// Why the traffic of a Service is not managed as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProblemFacts {
    /// The cause in a clause.
    pub reason: String,
    /// What the user can do. Absent if the reason says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}
