//! Nothing of a plane outlives it, however it ends. Read from `/proc`, so on Linux only.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use testbed::plane::{Options, Plane};
use testbed::wait;

/// Ids of the processes whose command line names the directory of a plane, with that line.
fn processes_of(plane: &Path) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if let Some(pid) = pid
            && line.contains(&format!("{}/", plane.display()))
        {
            found.push((pid, line));
        }
    }
    found
}

fn xtask(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(args)
        .env_remove("KUBECONFIG")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[test]
fn stopped_plane_leaves_no_process_and_no_file() {
    let name = format!("up-{}", std::process::id());
    let up = xtask(&["plane", "up", "--name", &name, "--nodes", "1"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let kubeconfig = text(&up.stdout);
    let dir = Path::new(&kubeconfig).parent().unwrap();
    assert_eq!(processes_of(dir).len(), 6, "{:?}", processes_of(dir));

    let twice = xtask(&["plane", "up", "--name", &name]);
    assert!(!twice.status.success());
    assert!(text(&twice.stderr).contains("is up already"));
    let status = text(&xtask(&["plane", "status"]).stdout);
    assert!(status.contains(&kubeconfig), "{status}");
    let nodes = Command::new(dir.join("bin/kubectl"))
        .args(["get", "nodes", "--output=name", "--kubeconfig", &kubeconfig])
        .output()
        .unwrap();
    assert_eq!(text(&nodes.stdout), "node/worker-0");

    let down = xtask(&["plane", "down", "--name", &name]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    wait::until_blocking("all processes to end", || processes_of(dir).is_empty());
    assert!(!dir.exists());
    let again = xtask(&["plane", "down", "--name", &name]);
    assert!(text(&again.stderr).contains("was not up"));
}

/// A plane in its own process, as in a test.
fn run_plane(name: &str) -> (Child, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["plane", "run", "--nodes", "1", "--name", name]);
    start_owner(&mut command, name, "state.json")
}

/// Starts the owner of a plane, and waits until the plane has this file.
fn start_owner(command: &mut Command, name: &str, file: &str) -> (Child, PathBuf) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let dir = testbed::paths::cache().unwrap().join("planes").join(name);
    wait::until_blocking(&format!("the file {file} of the plane"), || {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        dir.join(file).exists()
    });
    assert_eq!(processes_of(&dir).len(), 6);
    (child, dir)
}

#[test]
fn killed_owner_takes_all_processes_with_it() {
    let (child, dir) = run_plane(&format!("killed-{}", std::process::id()));
    kill_and_see(child, &dir);
}

/// Kills the owner of a plane without a chance to clean up, and checks that the plane is removed.
fn kill_and_see(mut owner: Child, dir: &Path) {
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait::until_blocking("all processes to end", || processes_of(dir).is_empty());
    // The next command removes the files that the killed one could not remove.
    xtask(&["plane", "status"]);
    assert!(!dir.exists());
}

/// Set for the process that runs only [`owner_that_freezes_its_api_server`].
const OWNER: &str = "OPERATING_TEST_OWNER";

#[test]
fn killed_owner_takes_frozen_api_server_with_it() {
    let name = format!("frozen-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "owner_that_freezes_its_api_server"])
        .env(OWNER, &name);
    let (child, dir) = start_owner(&mut command, &name, "frozen");
    kill_and_see(child, &dir);
}

/// Not a test by itself: without the variable it does nothing.
#[tokio::test]
async fn owner_that_freezes_its_api_server() {
    let Ok(name) = std::env::var(OWNER) else {
        return;
    };
    let plane = Plane::start(Options {
        nodes: 1,
        name: Some(name),
        ..Options::default()
    })
    .await
    .unwrap();
    plane.pause_apiserver().await.unwrap();
    let dir = plane.logs();
    fs::write(dir.parent().unwrap().join("frozen"), "").unwrap();
    std::future::pending().await
}

#[test]
fn interrupted_owner_cleans_up() {
    let (mut child, dir) = run_plane(&format!("interrupted-{}", std::process::id()));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    wait::until_blocking("all processes to end", || processes_of(&dir).is_empty());
    assert!(!dir.exists());
}

#[tokio::test]
async fn dropped_plane_is_gone() {
    let plane = Plane::start(Options::default()).await.unwrap();
    let logs = plane.logs();
    let dir = logs.parent().unwrap();
    assert_eq!(processes_of(dir).len(), 6);
    drop(plane);
    // The process is killed at once, but the kernel needs a moment to remove a process without a waiting
    // parent.
    wait::until_blocking("all processes to end", || processes_of(dir).is_empty());
    assert!(!dir.exists());
}
