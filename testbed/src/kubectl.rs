//! Commands that a test runs to their end.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

use std::process::Output;

use serde_json::Value;

use crate::plane::Plane;
use crate::scope::Scope;

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
}
