//! Developer commands as a library, so that the tests start planes by themselves.
//!
//! A *plane* is a real Kubernetes control plane on loopback ports: etcd, kube-apiserver,
//! kube-controller-manager, kube-scheduler, and kwok in the role of the kubelets.

pub mod bench;
pub mod binaries;
pub mod book;
pub mod check;
pub mod cli;
pub mod demo;
pub mod fleet;
pub mod fuzz;
pub mod lb;
pub mod matrix;
pub mod observer;
pub mod paths;
pub mod plane;
pub mod proxy;
pub mod server;
pub mod soak;
