//! The Helm chart: it renders what `manifests` contains, refuses bad values, and installs, updates and removes the
//! server while the API server calls it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod rendering;
mod values;
