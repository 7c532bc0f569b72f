//! What tools for GitOps read: the health scripts for Argo CD, the status that Flux and Helm compute, and
//! `helm install --wait`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod argo_cd;
mod helm_wait;
mod kstatus;
