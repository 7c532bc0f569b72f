//! The JSON of both calls. Names are in camel case.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/observe`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveRequest {
    /// The Service.
    pub employer: EmployerInfo,
    /// Its Pods.
    pub pods: Vec<PodInfo>,
}

/// Answer to `POST /v1/observe`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveAnswer {
    /// All registered members of the Service.
    pub members: Vec<MemberState>,
    /// Groups that could not be read.
    #[serde(default)]
    pub unreadable_groups: Vec<UnreadableGroup>,
}

/// Body of `POST /v1/apply`. No member occurs twice.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyRequest {
    /// The Service.
    pub employer: EmployerInfo,
    /// Members to register, or to set to this weight and this Pod.
    pub register: Vec<MemberInfo>,
    /// Members that should get no new requests.
    pub drain: Vec<MemberInfo>,
    /// Members to remove.
    pub deregister: Vec<MemberInfo>,
}

/// Answer to `POST /v1/apply`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyAnswer {
    /// What became of each change. A member that is missing here is read by the next `observe`.
    pub results: Vec<ChangeResult>,
}

/// The Service whose traffic is managed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmployerInfo {
    /// `Service`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The labels that the configuration of the server permits.
    pub labels: BTreeMap<String, String>,
    /// The annotations that the configuration of the server permits.
    pub annotations: BTreeMap<String, String>,
    /// The ports that get members.
    pub ports: Vec<PortInfo>,
    /// Whether the Service is being deleted.
    pub deleting: bool,
}

/// A port of the Service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortInfo {
    /// Group of the members: name of the port, or its number.
    pub group: String,
    /// Number of the port of the Service.
    pub port: u16,
    /// Number or name of the port of the Pods.
    pub target_port: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// A Pod that the Service selects, or that still has members.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInfo {
    /// UID.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Addresses, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Name of its node; may be empty.
    pub node: String,
    /// The labels that the configuration of the server permits.
    pub labels: BTreeMap<String, String>,
    /// Whether the Pod should serve.
    pub on: bool,
}

/// A member that should change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberInfo {
    /// Group.
    pub group: String,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Share of the traffic.
    pub weight: u32,
    /// UID of the Pod behind the address.
    pub pod_uid: String,
    /// Name of the Pod.
    pub pod_name: String,
}

/// A registered member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberState {
    /// Group.
    pub group: String,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Share of the traffic.
    pub weight: u32,
    /// UID of the Pod, as it was registered; empty if the load balancer does not keep it.
    #[serde(default)]
    pub pod_uid: String,
    /// Name of the Pod, as it was registered; empty if the load balancer does not keep it.
    #[serde(default)]
    pub pod_name: String,
    /// What the load balancer does with the member.
    pub presence: PresenceInfo,
    /// When the load balancer itself ends the draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
    /// Open connections or requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
}

/// What became of a change. Has a presence or an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeResult {
    /// Group.
    pub group: String,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// What the load balancer now does with the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<PresenceInfo>,
    /// When the load balancer itself ends the draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_until: Option<Timestamp>,
    /// Why nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// What the load balancer does with a member; see [`traffic::Presence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PresenceInfo {
    /// Gets requests.
    Serving,
    /// Registered, but gets no requests yet.
    Pending,
    /// Gets no new requests, but requests that have begun may go on.
    Draining,
    /// Not registered.
    Absent,
    /// Not known.
    Unknown,
}

/// A group that could not be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreadableGroup {
    /// Group.
    pub group: String,
    /// Why.
    pub error: Failure,
}

/// Why something failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// For the owner of the Service. Must not contain secrets.
    pub message: String,
    /// Whether the same call may succeed later.
    #[serde(default)]
    pub retryable: bool,
}
