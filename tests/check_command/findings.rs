//! Runs the command, and reads what it has found.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::Bed;
use testbed::kubectl::Said;

/// What the command has found, and its exit code.
#[derive(Debug)]
pub struct Report {
    pub code: i32,
    checks: Vec<Value>,
}

impl Report {
    fn new(said: &Said) -> Report {
        let report: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        Report {
            code: said.code.unwrap(),
            checks: report["checks"].as_array().unwrap().clone(),
        }
    }

    /// The finding of a check that is the worst for its user.
    fn worst(&self, check: &str) -> &Value {
        let of = self.checks.iter().filter(|c| c["check"] == check);
        let rank = |one: &&Value| {
            ["ok", "warning", "unknown", "forbidden", "problem"]
                .iter()
                .position(|s| one["state"] == *s)
        };
        of.max_by_key(rank)
            .unwrap_or_else(|| panic!("no {check}: {self:#?}"))
    }

    pub fn state(&self, check: &str) -> &str {
        self.worst(check)["state"].as_str().unwrap()
    }

    pub fn message(&self, check: &str) -> &str {
        self.worst(check)["message"].as_str().unwrap()
    }

    pub fn remedy(&self, check: &str) -> &str {
        self.worst(check)["remedy"].as_str().unwrap_or_default()
    }

    /// The checks that are not OK.
    pub fn bad(&self) -> Vec<&str> {
        let bad = self.checks.iter().filter(|c| c["state"] != "ok");
        bad.map(|c| c["check"].as_str().unwrap()).collect()
    }
}

/// `operating check` as the administrator.
pub fn check(bed: &Bed, flags: &[&str]) -> Report {
    let output = bed.operating(&[&["check", "-o", "json"], flags].concat());
    Report::new(&output.into())
}

/// `kubectl operating check` with a kubeconfig, by default as the administrator.
pub async fn check_as(bed: &Bed, kubeconfig: Option<&Path>, flags: &[&str]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("kubectl-operating");
    symlink(env!("CARGO_BIN_EXE_operating"), plugin).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(PathBuf::from(dir.path())).chain(std::env::split_paths(&path));
    let mut command = bed.kubectl([&["operating", "check", "-o", "json"], flags].concat());
    command.env("PATH", std::env::join_paths(dirs).unwrap());
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let said: Said = command.output().await.unwrap().into();
    Report::new(&said)
}
