//! The page "First steps", word for word, on a plane without a server.

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use testbed::plane::{Options, Plane};

use crate::markdown::{parse, read, root};

const STEP: &str = "first step";
const FAILS: &str = "first step: fails with ";

/// The commands of the page as one script. A block that fails ends the script, unless its comment says that it fails
/// and with which text.
fn script() -> String {
    let text = read(Path::new("docs/first-steps.md"));
    let mut script = "set -euo pipefail\n".to_owned();
    for block in parse(&text).blocks {
        let comment = block.comment.as_deref().unwrap_or_default();
        if comment == STEP {
            script += &block.text;
        } else if let Some(expected) = comment.strip_prefix(FAILS) {
            let expected = expected.trim_matches('"');
            writeln!(
                script,
                "if OUTPUT=$( {{ {} ; }} 2>&1 ); then echo \"$OUTPUT: nothing was refused\"; exit 1; fi\n\
                 grep -q '{expected}' <<< \"$OUTPUT\" || {{ echo \"$OUTPUT\"; exit 1; }}",
                block.text.trim()
            )
            .unwrap();
        }
    }
    script
}

#[tokio::test]
async fn first_steps_work_word_for_word() {
    let plane = Plane::start(Options::default()).await.unwrap();
    let bin = tempfile::tempdir().unwrap();
    let wrapper = format!(
        "#!/bin/sh\nexec '{}' kubectl \"$@\"\n",
        plane.controlplane_binary().display()
    );
    crate::plane::write_program(&bin.path().join("kubectl"), &wrapper);
    let operating = env!("CARGO_BIN_EXE_operating");
    symlink(operating, bin.path().join("operating")).unwrap();
    // The checkout stays clean: the page writes a log beside the examples.
    let directory = tempfile::tempdir().unwrap();
    symlink(root().join("examples"), directory.path().join("examples")).unwrap();

    let path = std::env::var("PATH").unwrap();
    let output = tokio::process::Command::new("bash")
        .args(["-c", &script()])
        .current_dir(directory.path())
        .env("PATH", format!("{}:{path}", bin.path().display()))
        .env("KUBECONFIG", plane.kubeconfig())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    let log = std::fs::read_to_string(directory.path().join("operating.log")).unwrap_or_default();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{err}\n{log}");
    for expected in [
        "max 1",
        "CollaSet web",
        "registry.k8s.io/pause:3.10.1",
        "1 collasets, 1 podtransitionrules",
        "uninstalled from namespace kusionstack-system",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    plane.stop().await;
}
