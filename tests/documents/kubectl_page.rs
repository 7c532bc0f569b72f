//! Each command of the page about kubectl prints what the page says.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use crate::markdown::{Block, parse, read};
use crate::plane::{Ground, write_program};

const PAGE: &str = "docs/kubectl.md";
const PASSES: &str = "run";
const FAILS: &str = "run: fails";

/// The commands of a block, each with its output.
fn commands(block: &Block) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block.text.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((_, output))) => *output += &format!("{line}\n"),
            (None, None) => panic!("{PAGE}:{}: output without a command", block.line),
        }
    }
    commands
}

/// Whether an output is as expected. `…` stands for any text.
fn shows(expected: &str, output: &str) -> bool {
    let mut parts = expected.trim_end().split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = output.trim_end().strip_prefix(first) else {
        return false;
    };
    let mut ends_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        ends_open = part.is_empty();
        rest = &rest[at + part.len()..];
    }
    ends_open || rest.is_empty()
}

#[test]
fn only_the_dots_stand_for_other_text() {
    assert!(shows("a\n", "a\n") && shows("a …\n", "a b\nc\n") && shows("a …c\n", "a bc\n"));
    assert!(!shows("a\n", "ab\n") && !shows("a …c\n", "a bcd\n") && !shows("", "a"));
}

/// Runs a command, and returns whether it succeeded, and both outputs.
async fn run(ground: &Ground, directory: &Path, command: &str) -> (bool, String) {
    let path = std::env::var("PATH").unwrap();
    let output = tokio::process::Command::new("bash")
        .args(["-o", "pipefail", "-c", &format!("{{ {command} ; }} 2>&1")])
        .env("PATH", format!("{}:{path}", directory.display()))
        .env("KUBECONFIG", ground.bed().kubeconfig())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[tokio::test]
async fn kubectl_does_with_a_collaset_what_the_page_says() {
    let ground = Ground::new("kubectl-page").await;
    let namespace = ground.namespace();
    let directory = tempfile::tempdir().unwrap();
    let kubectl = ground.bed().controlplane_binary().display().to_string();
    let wrapper = format!("#!/bin/sh\nexec '{kubectl}' kubectl \"$@\"\n");
    write_program(&directory.path().join("kubectl"), &wrapper);
    symlink(
        env!("CARGO_BIN_EXE_operating"),
        directory.path().join("operating"),
    )
    .unwrap();
    let example = crate::markdown::root().join("examples/collaset.yaml");
    ground
        .kubectl(&["apply", "-f", example.to_str().unwrap()])
        .await;
    let ready = ["wait", "--for=condition=Ready", "cls/web", "--timeout=170s"];
    ground.kubectl(&ready).await;
    ground.until_at_rest("web", 4).await;

    let (mut wrong, mut ran) = (Vec::new(), 0);
    for block in parse(&read(Path::new(PAGE))).blocks {
        let comment = block.comment.as_deref().unwrap_or_default();
        assert!([PASSES, FAILS].contains(&comment), "{PAGE}:{}", block.line);
        for (command, expected) in commands(&block) {
            let here = command.replace("-n shop", &format!("-n {namespace}"));
            let (succeeded, output) = run(&ground, directory.path(), &here).await;
            let output = output.replace(namespace, "shop");
            ran += 1;
            if succeeded != (comment == PASSES) || !shows(&expected, &output) {
                wrong.push(format!("$ {command}\n{output}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "the page does not show:\n{}",
        wrong.join("\n")
    );
    assert!(ran > 20, "{ran} commands");
}
