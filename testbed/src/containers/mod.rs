//! Real processes in place of the containers of simulated Pods.
//!
//! kwok reports that containers run, and runs nothing. While a [`Containers`] exists, each Pod of its namespaces with the
//! annotation [`ANNOTATION`] has one process, which stands for the first container of the Pod. The process serves HTTP/1.1
//! on the loopback address of the Pod ([`loopback_of`]) and on the first port that the container declares.
//!
//! | The Pod | The process |
//! |---|---|
//! | has an address, and its first container runs | is started; the Pod becomes ContainersReady after the first answer |
//! | has another container ID | gets SIGTERM; a new process is started after the end of the old one |
//! | has a deletion timestamp, has ended, or its first container does not run any more | gets SIGTERM |
//! | is gone | gets SIGKILL |
//!
//! A process that a test kills is not started again, and its Pod stays Ready.
//!
//! The order of a start is: kwok reports the container as running and not ready, the process is started, it answers a
//! request, the watcher reports ContainersReady, kwok reports Ready. So no Pod is Ready before its process answers. The
//! order of a restart in place is the same. kwok reports the restart of a container after the fact, so the old process
//! serves until then. A restart by a resize is an exception: the Pod stays ContainersReady while the new process starts.
//!
//! The process is the running program itself ([`serve_if_asked`]), so that it is always as new as its starter. A program
//! that is no test calls the function first in `main`. A test program must have this test at its root:
//!
//! ```text
//! #[test]
//! fn pod_process() {
//!     testbed::containers::serve_if_asked();
//! }
//! ```
//!
//! Only Linux answers on all addresses of 127.0.0.0/8 without further configuration.

mod pod_process;
mod server;
mod wanted;
mod watcher;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

pub use pod_process::PodProcess;
pub use server::{DEFAULT_DELAY, GRACE, serve_if_asked};

/// Annotation of Pods that have a process. Its value is the time in milliseconds that the process takes until it listens,
/// at most 10000. kwok never reports the containers of such a Pod as ready; the watcher of [`Containers`] does.
pub const ANNOTATION: &str = "plane.test/process";

/// A process that answers requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Name of its Pod.
    pub pod: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process ID.
    pub process: u32,
    /// The ID of its container in the status of the Pod.
    pub container: String,
}

/// The processes that answer, by the UID of their Pods.
type Answering = Arc<Mutex<BTreeMap<String, Running>>>;

/// The processes of the Pods of some namespaces. Dropping it kills them.
#[derive(Debug)]
pub struct Containers {
    answering: Answering,
    _watching: Vec<AbortOnDropHandle<()>>,
    _logs: TempDir,
}

impl Containers {
    /// Begins to run processes for the Pods of these namespaces. The client needs the rights of an administrator.
    ///
    /// # Errors
    /// If no directory for the logs can be created.
    pub fn start(client: &Client, namespaces: &[&str]) -> Result<Self> {
        let logs = TempDir::new().context("creating a directory for logs of Pod processes")?;
        let answering = Answering::default();
        let watch = |namespace: &&str| {
            let (logs, answering) = (logs.path().to_owned(), answering.clone());
            let watching = watcher::watch(client.clone(), (*namespace).to_owned(), logs, answering);
            AbortOnDropHandle::new(tokio::spawn(watching))
        };
        Ok(Self {
            _watching: namespaces.iter().map(watch).collect(),
            answering,
            _logs: logs,
        })
    }

    /// The process of a Pod; `None` until it has answered, and from its SIGTERM on.
    #[must_use]
    pub fn of_pod(&self, pod: &str) -> Option<Running> {
        let running = self.answering.lock();
        let running = running.unwrap_or_else(PoisonError::into_inner);
        running.values().find(|running| running.pod == pod).cloned()
    }
}

/// The loopback address that stands for the address of a Pod: `127.x.y.z` for `10.x.y.z`. `None` for any other address,
/// such as that of a Pod in the network of its node.
///
/// kwok takes the addresses of the Pods of all nodes of a plane from one pool, 10.128.0.0/12. Therefore two Pods of a
/// plane never have the same address at the same time. Pods of two planes do: their tests must use different ports,
/// such as those of [`crate::ports::free`]. kwok gives the address of a deleted Pod to another Pod at once.
#[must_use]
pub fn loopback_of(pod: IpAddr) -> Option<Ipv4Addr> {
    match pod {
        IpAddr::V4(address) => match address.octets() {
            [10, x, y, z] => Some(Ipv4Addr::new(127, x, y, z)),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

/// Part of a Pod template, or of a Pod, whose container `main` has a process that listens on `port` without delay.
#[must_use]
pub fn template(image: &str, port: u16) -> Value {
    json!({
        "metadata": {"annotations": {ANNOTATION: "0"}},
        "spec": {"containers": [{"name": "main", "image": image, "ports": [{"containerPort": port}]}]},
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn address_of_pod_network_has_loopback_address() {
        let of = |address: &str| loopback_of(address.parse().unwrap());
        assert_eq!(of("10.128.3.4"), Some(Ipv4Addr::new(127, 128, 3, 4)));
        for other in ["127.0.0.1", "192.168.0.1", "11.0.0.1", "::1"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
