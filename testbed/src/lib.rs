//! The test environment of the tests and the developer commands.
//!
//! A *plane* is a real Kubernetes control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler, and kwok in the role of the kubelets. A *fleet* is a plane with three replicas of the server behind
//! a balancer. A *bed* is a fleet for tests, and a *scope* is the namespace of a test.
//!
//! This crate does not depend on the crate `operating`: it sees the server as a cluster's users see it. Therefore
//! `xtask` is not compiled anew with each change of the server, and a test on the bed notices when the server renames a
//! key of its API.

pub mod api;
pub mod authority;
pub mod balancer;
pub mod bed;
pub mod binaries;
pub mod caddy;
pub mod containers;
pub mod edge;
pub mod endpoint;
pub mod fleet;
pub mod http_double;
pub mod keys;
pub mod kubectl;
pub mod load;
pub mod mutating_policy;
pub mod observer;
pub mod paths;
pub mod plane;
pub mod pods;
pub mod ports;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod recreate_double;
pub mod rendering;
pub mod replica;
pub mod review;
pub mod scope;
pub mod server;
pub mod slb_double;
pub mod source_files;
pub mod usage;
pub mod wait;
pub mod walks;

pub use bed::Bed;
pub use scope::Scope;
