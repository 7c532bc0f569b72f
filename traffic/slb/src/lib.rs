//! The adapter of Alibaba Cloud SLB, the classic load balancer (API version 2014-05-15).
//!
//! It has two modes. In the mode `observe` the cloud controller of the cluster registers Pods, and the adapter waits
//! until the load balancer agrees. In the mode `write` the adapter itself registers Pods in the default server group or
//! in VServer groups, drains them with weight 0, and removes them. [`Settings`] is its configuration, and
//! [`SlbAdapter`] the adapter.
//!
//! The caller needs these permissions. In the mode `observe`: `slb:DescribeHealthStatus` and
//! `slb:DescribeLoadBalancerListeners`. In the mode `write` in addition: `slb:DescribeLoadBalancerAttribute`,
//! `slb:DescribeVServerGroups`, `slb:DescribeVServerGroupAttribute`, `slb:AddBackendServers`, `slb:SetBackendServers`,
//! `slb:RemoveBackendServers`, `slb:AddVServerGroupBackendServers`, `slb:SetVServerGroupAttribute`,
//! `slb:RemoveVServerGroupBackendServers` and `ecs:DescribeNetworkInterfaces`.
//!
//! Facts about the API come from its public reference. Where the reference is silent, the item says so.

mod adapter;
mod added;
mod apply;
mod client;
mod credentials;
mod decide;
mod endpoint;
mod failure;
mod groups;
mod health;
mod http;
mod interfaces;
mod load_balancers;
mod mark;
mod observe;
mod occupied;
mod oidc;
mod pace;
mod reads;
mod scans;
mod secret;
mod secret_file;
mod service;
mod settings;
mod signature;
mod wire;
mod write;

pub use adapter::SlbAdapter;
pub use service::{GROUPS, LOAD_BALANCER, WEIGHT};
pub use settings::{
    CredentialSettings, FileCredentials, LoadBalancer, Mode, OidcCredentials, ServerType, Settings,
};
