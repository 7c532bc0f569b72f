#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::sync::{Arc, Mutex};

use clap::{Arg, Command, CommandFactory};

use super::suggest::suggest;
use super::typed::Typed;
use super::values::{NameSource, Resource};
use crate::cli::args::{Cli, Plugin};

/// A cluster with two objects of each kind, and what was asked of it.
#[derive(Default)]
struct Cluster {
    asked: Mutex<Vec<(&'static str, Typed)>>,
}

impl NameSource for Cluster {
    fn names(&self, resource: Resource, typed: &Typed) -> Vec<String> {
        let asked = (resource.plural, typed.clone());
        self.asked.lock().unwrap().push(asked);
        let one = resource.plural.trim_end_matches('s');
        vec![format!("{one}-a"), format!("{one}-b")]
    }

    fn contexts(&self, _: &Typed) -> Vec<String> {
        vec!["east".to_owned(), "west".to_owned()]
    }
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// The words that are suggested at the end of a line.
fn suggested(command: Command, line: &str) -> Vec<String> {
    let found = suggest(command, &words(line), Arc::new(Cluster::default()));
    found.into_iter().map(|found| found.word).collect()
}

fn plugin(line: &str) -> Vec<String> {
    suggested(Plugin::command(), &format!("kubectl-operating {line}"))
}

#[test]
fn commands_flags_and_values_are_suggested() {
    assert_eq!(plugin("w"), ["why"]);
    assert_eq!(plugin("rollout u"), ["undo"]);
    assert_eq!(plugin("why -o "), ["text", "json"]);
    assert_eq!(plugin("why --output=j"), ["--output=json"]);
    assert_eq!(plugin("rollout pause --dry-run s"), ["server"]);
    assert_eq!(plugin("why --name"), ["--namespace"]);
    assert!(plugin("check ").iter().all(|word| !word.starts_with('-')));
    assert!(plugin("check -").contains(&"--mounted-certificates".to_owned()));
    assert_eq!(
        plugin("serv"),
        [] as [&str; 0],
        "the plugin has no such command"
    );
    assert_eq!(suggested(Cli::command(), "operating serv"), ["serve"]);
    assert_eq!(
        suggested(Cli::command(), "operating completion b"),
        ["bash"]
    );
}

#[test]
fn names_follow_their_kind() {
    assert_eq!(plugin("why pod/"), ["pod/pod-a", "pod/pod-b"]);
    assert_eq!(plugin("why pod/pod-b"), ["pod/pod-b"]);
    assert_eq!(
        plugin("why deployments.apps/"),
        [
            "deployments.apps/deployment-a",
            "deployments.apps/deployment-b"
        ]
    );
    assert_eq!(plugin("why cls "), ["collaset-a", "collaset-b"]);
    assert_eq!(
        plugin("why cls collaset-a "),
        ["collaset-b"],
        "a name is suggested once"
    );
    assert_eq!(plugin("why pod/pod-a pod/"), ["pod/pod-b"]);
    assert_eq!(plugin("why po"), ["pod/", "pod-a", "pod-b"]);
    assert_eq!(plugin("why col"), ["collaset/"]);
    let kinds = [
        "pod/", "cls/", "deploy/", "sts/", "ds/", "rs/", "opj/", "svc/",
    ];
    let mut found = plugin("why ");
    found.sort_by_key(|kind| kinds.iter().position(|known| known == kind));
    assert_eq!(found, kinds);
    assert_eq!(plugin("why job/"), [] as [&str; 0]);
    assert_eq!(plugin("why nonsense "), [] as [&str; 0]);

    assert_eq!(
        plugin("rollout status "),
        ["cls/collaset-a", "cls/collaset-b"]
    );
    assert_eq!(plugin("rollout status cls/collaset-b"), ["cls/collaset-b"]);
    assert_eq!(
        plugin("rollout status collaset "),
        ["collaset-a", "collaset-b"]
    );
    assert_eq!(
        plugin("rollout undo cls/collaset-a "),
        [] as [&str; 0],
        "one object only"
    );
    assert_eq!(plugin("rollout status pod/"), [] as [&str; 0]);

    assert_eq!(plugin("lifecycle begin pod/"), ["pod/pod-a", "pod/pod-b"]);
    assert_eq!(plugin("lifecycle begin pod-"), ["pod-a", "pod-b"]);
    assert_eq!(plugin("lifecycle finish pod pod-a"), ["pod-a"]);
    assert_eq!(plugin("lifecycle begin cls/"), [] as [&str; 0]);
}

#[test]
fn namespaces_and_contexts_are_suggested() {
    assert_eq!(plugin("why -n "), ["namespace-a", "namespace-b"]);
    assert_eq!(
        plugin("why --namespace=namespace-b"),
        ["--namespace=namespace-b"]
    );
    assert_eq!(plugin("check --context w"), ["west"]);
    assert_eq!(plugin("check --namespace namespace-a"), ["namespace-a"]);
}

/// A command that this test defines gets names of nodes by the name of its value alone.
#[test]
fn value_name_decides_what_is_suggested() {
    let drain = Command::new("drain").arg(Arg::new("where").value_name("NODE"));
    let command = Command::new("operating").subcommand(drain);
    assert_eq!(suggested(command, "operating drain "), ["node-a", "node-b"]);
}

#[test]
fn names_come_from_the_cluster_and_namespace_that_were_typed() {
    for line in [
        "why -n shop --context east --kubeconfig F pod/",
        "why pod/a --namespace=shop --context=east --kubeconfig=F pod/",
        "why -nshop --context east --kubeconfig F --output x --unknown pod/",
    ] {
        let cluster = Arc::new(Cluster::default());
        let words = words(&format!("kubectl-operating {line}"));
        let found = suggest(Plugin::command(), &words, cluster.clone());
        assert_eq!(found.len(), 2, "{line}");
        let asked = cluster.asked.lock().unwrap();
        let [(plural, typed)] = asked.as_slice() else {
            panic!("{line}: {asked:?}")
        };
        assert_eq!(*plural, "pods");
        let reader = typed.reader();
        assert_eq!(reader.namespace.as_deref(), Some("shop"), "{line}");
        assert_eq!(reader.user.context.as_deref(), Some("east"), "{line}");
        assert_eq!(reader.user.kubeconfig, Some("F".into()), "{line}");
    }
}

#[test]
fn malformed_lines_give_no_suggestions_of_names() {
    for line in [
        "",
        " ",
        "lifecycle run pod/a -- sh ",
        "nonsense pod/",
        "why -- ",
        "-- pod/",
    ] {
        let cluster = Arc::new(Cluster::default());
        let words = words(&format!("kubectl-operating {line}"));
        let _ = suggest(Plugin::command(), &words, cluster.clone());
        let asked = cluster.asked.lock().unwrap();
        assert!(asked.is_empty(), "{line}: {asked:?}");
    }
    let nothing = suggest(Plugin::command(), &[], Arc::new(Cluster::default()));
    assert!(nothing.is_empty());
}
