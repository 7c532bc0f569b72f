//! The only file that uses the test bed: a real API server with the installed server in front.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use testbed::{Bed, Scope};

/// Writes an executable file.
pub fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// A namespace of one test.
pub struct Ground {
    bed: Home,
    scope: Scope,
}

/// The bed of a test.
enum Home {
    Shared(&'static Bed),
    /// For a test that disturbs the replicas.
    Own(Box<Bed>),
}

impl Ground {
    /// A fresh namespace whose name begins with `prefix`.
    pub async fn new(prefix: &str) -> Ground {
        let bed = Bed::shared().await;
        let scope = bed.scope(prefix).await;
        Ground {
            bed: Home::Shared(bed),
            scope,
        }
    }

    /// A fresh namespace, in front of which runs a server of its own.
    pub async fn own(prefix: &str) -> Ground {
        let bed = Box::new(Bed::own().await);
        let scope = bed.scope(prefix).await;
        Ground {
            bed: Home::Own(bed),
            scope,
        }
    }

    pub fn bed(&self) -> &Bed {
        match &self.bed {
            Home::Shared(bed) => bed,
            Home::Own(bed) => bed,
        }
    }

    pub fn namespace(&self) -> &str {
        &self.scope.namespace
    }

    /// `kubectl ARGS… -n NAMESPACE`.
    pub async fn try_kubectl(&self, args: &[&str]) -> Output {
        let args = [&["-n", self.namespace()], args].concat();
        self.bed().kubectl(args).output().await.unwrap()
    }

    /// Runs `kubectl ARGS… -n NAMESPACE`, which must succeed. Returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args).await;
        assert!(output.status.success(), "kubectl {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Applies a manifest. The error is the output of kubectl.
    pub async fn apply(&self, manifest: &str) -> Result<(), String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(manifest.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let output = self.try_kubectl(&["apply", "-f", path]).await;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs a shell script with `kubectl` on its path, in the directory of the repository. Returns its output.
    pub async fn shell(&self, script: &str) -> Result<String, String> {
        let bin = tempfile::tempdir().unwrap();
        let binary = self.bed().controlplane_binary().display();
        let wrapper = format!("#!/bin/sh\nexec '{binary}' kubectl \"$@\"\n");
        write_program(&bin.path().join("kubectl"), &wrapper);
        let path = std::env::var("PATH").unwrap();
        let output = tokio::process::Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(crate::markdown::root())
            .env("PATH", format!("{}:{path}", bin.path().display()))
            .env("KUBECONFIG", self.bed().kubeconfig())
            .stdin(Stdio::null())
            .output();
        let output = output.await.unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(out);
        }
        Err(out + &String::from_utf8_lossy(&output.stderr))
    }

    /// Waits until exactly `count` Pods carry the labels and all of them are available.
    pub async fn until_available(&self, selector: &str, count: usize) {
        self.scope.all_available(selector, count).await;
    }

    /// Waits until the status of rule `name` has `available` available Pods and no claim.
    pub async fn until_at_rest(&self, name: &str, available: i32) {
        self.scope.until_at_rest(name, available).await;
    }

    /// Repeats `probe` until it returns true.
    pub async fn until(&self, condition: &str, probe: impl AsyncFnMut() -> bool) {
        testbed::wait::until(condition, probe).await;
    }
}
