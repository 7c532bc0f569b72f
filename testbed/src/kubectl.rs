//! Commands that a test runs to their end.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

use std::process::Output;

use serde_json::{Value, json};

use crate::plane::Plane;
use crate::pods::node_of;
use crate::scope::Scope;

/// The node that [`Plane::drain_web`] drains. A plane has two nodes by default.
pub const DRAINED: &str = "worker-0";
/// The other node, to which the Pods move.
pub const SPARE: &str = "worker-1";
/// Label of the Pods that the drain evicts, so that it leaves the Pods of other tests alone.
const DRAIN: &str = "drain";

/// The result of a command.
#[derive(Debug)]
pub struct Said {
    /// Exit code; `None` when a signal ended the command.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// Whether the command has succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Fails when the command has failed.
    #[must_use]
    pub fn success(self) -> Self {
        assert!(self.succeeded(), "{self:?}");
        self
    }

    /// Both outputs, one after the other.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    /// The JSON that a successful command has printed.
    #[must_use]
    pub fn json(&self) -> Value {
        assert!(self.succeeded(), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Plane {
    /// Runs `kubectl ARGS…` as the administrator.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub async fn ask_kubectl(&self, args: &[&str]) -> Said {
        self.kubectl(args).output().await.unwrap().into()
    }

    /// As [`Plane::ask_kubectl`], with a file that holds the object: `kubectl ARGS… -f FILE`.
    ///
    /// # Panics
    /// As [`Plane::ask_kubectl`].
    pub async fn ask_kubectl_about(&self, args: &[&str], object: &Value) -> Said {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, object.to_string()).unwrap();
        let file = file.path().to_str().unwrap();
        self.ask_kubectl(&[args, &["-f", file]].concat()).await
    }

    /// As [`Plane::ask_kubectl`], in the namespace of a test.
    ///
    /// # Panics
    /// As [`Plane::ask_kubectl`].
    pub async fn ask_kubectl_in(&self, scope: &Scope, args: &[&str]) -> Said {
        self.ask_kubectl(&[args, &["-n", &scope.namespace]].concat())
            .await
    }

    /// Creates a Deployment `web` whose Pods all run on the node that [`Plane::drain_web`] drains, and waits until they
    /// are available.
    ///
    /// # Panics
    /// As [`Plane::ask_kubectl`], or when a command fails.
    pub async fn deploy_web_for_drain(&self, scope: &Scope, replicas: usize) {
        let _ = self.ask_kubectl(&["cordon", SPARE]).await.success();
        let labels = json!({"metadata": {"labels": {DRAIN: scope.namespace}}});
        scope.deploy("web", replicas, labels).await;
        scope.all_available("app=web", replicas).await;
        self.uncordon(SPARE).await;
    }

    /// Runs `kubectl drain` for the Pods of a node that carry labels such as `drain=NAMESPACE`. kubectl looks in all
    /// namespaces, so the labels must be those of one test alone. The Pods need a controller. The node takes no new Pods
    /// until [`Plane::uncordon`]. Returns the output of the command.
    ///
    /// # Panics
    /// When the Pods are not evicted within 400 s.
    pub async fn drain(&self, node: &str, pods: &str) -> String {
        let selector = format!("--pod-selector={pods}");
        self.ask_kubectl(&["drain", node, &selector, "--timeout=400s"])
            .await
            .success()
            .text()
    }

    /// Lets a node take new Pods again.
    ///
    /// # Panics
    /// As [`Plane::ask_kubectl`], or when the command fails.
    pub async fn uncordon(&self, node: &str) {
        let _ = self.ask_kubectl(&["uncordon", node]).await.success();
    }

    /// Runs `kubectl drain` for the Pods of [`Plane::deploy_web_for_drain`], and waits until all of them are available
    /// on the other node. Returns the output of the command.
    ///
    /// # Panics
    /// As [`Plane::deploy_web_for_drain`].
    pub async fn drain_web(&self, scope: &Scope, replicas: usize) -> String {
        let selector = format!("{DRAIN}={}", scope.namespace);
        let output = self.drain(DRAINED, &selector).await;
        // The last Pod is recreated after the drain has ended.
        let pods = scope.all_available("app=web", replicas).await;
        self.uncordon(DRAINED).await;
        assert!(pods.iter().all(|pod| node_of(pod) == Some(SPARE)));
        output
    }
}
