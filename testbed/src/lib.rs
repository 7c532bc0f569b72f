//! What the tests and the developer commands run on.
//!
//! A *plane* is a real Kubernetes control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager,
//! kube-scheduler, and kwok in the role of the kubelets. The server under test runs on the plane as a child process.
//! This crate does not depend on the crate `operating`: it sees the server as a cluster's users see it.

pub mod balancer;
pub mod binaries;
pub mod fleet;
pub mod observer;
pub mod paths;
pub mod plane;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod server;
pub mod usage;
pub mod wait;
