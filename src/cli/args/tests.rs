#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use clap::CommandFactory;

use super::*;

fn serve(args: &[&str]) -> Result<ServeArgs, String> {
    let all = ["operating", "serve"].iter().chain(args);
    match Cli::try_parse_from(all).map_err(|e| e.to_string())?.command {
        Command::Serve(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_has_a_variable_of_the_environment() {
    let mut commands: Vec<_> = Cli::command().get_subcommands().cloned().collect();
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().cloned());
        for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let variable = arg.get_env().and_then(|v| v.to_str()).unwrap_or_default();
            let ours = variable.starts_with("OPERATING_");
            assert!(
                ours || ["POD_NAMESPACE", "POD_NAME"].contains(&variable),
                "{}",
                arg.get_id()
            );
        }
    }
}

#[test]
fn install_and_address_flags_are_parsed() {
    let args = serve(&[
        "--install",
        "--kubeconfig=F",
        "--listen=127.0.0.1:9443",
        "--webhook-url=https://localhost:9443",
        "--metrics-listen=127.0.0.1:8080",
        "--leader-elect",
    ])
    .unwrap();
    assert!(args.install && args.controllers.leader_elect);
    assert_eq!(args.webhooks.listen, "127.0.0.1:9443".parse().unwrap());
    assert_eq!(
        args.endpoint.webhook_url.as_deref(),
        Some("https://localhost:9443")
    );
    assert_eq!(args.webhooks.request_timeout, Duration::from_secs(60));
}

#[test]
fn refusals_name_the_flag_and_the_remedy() {
    for (flag, remedy) in [
        ("--webhook-url=http://localhost", "write https://HOST:PORT"),
        ("--request-timeout=60", "write a duration such as 500ms"),
        ("--namespace=A", "lower-case letters"),
        ("--listen=9443", "invalid socket address"),
        ("--max-connections=0", "0 is not in 1.."),
        ("--log-format=xml", "[possible values: text, json]"),
    ] {
        let error = serve(&[flag]).unwrap_err();
        assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
    let both = serve(&["--cert-dir=/certs", "--dns-name=a"]).unwrap_err();
    assert!(both.contains("cannot be used with"), "{both}");
}

/// The kinds and the names of the objects that `why` explains.
fn why(args: &[&str]) -> Result<Vec<(WhyKind, String)>, String> {
    let all = ["operating", "why"].iter().chain(args);
    match Cli::try_parse_from(all).map_err(|e| e.to_string())?.command {
        Command::Read(ReadCommand::Why(args)) => args.subjects().map(|subjects| {
            let subjects = subjects.into_iter();
            subjects
                .map(|subject| (subject.kind, subject.name.to_owned()))
                .collect()
        }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn objects_of_why_are_named_as_for_kubectl() {
    let web = |kind: WhyKind| vec![(kind, "web".to_owned())];
    for (args, kind) in [
        (&["pod/web"][..], WhyKind::Pod),
        (&["pods/web"], WhyKind::Pod),
        (&["Pod/web"], WhyKind::Pod),
        (&["po/web"], WhyKind::Pod),
        (&["pod", "web"], WhyKind::Pod),
        (&["web"], WhyKind::Pod),
        (&["opj/web"], WhyKind::OperationJob),
        (&["operationjobs", "web"], WhyKind::OperationJob),
        (
            &["operationjob.apps.kusionstack.io/web"],
            WhyKind::OperationJob,
        ),
        (&["svc/web"], WhyKind::Service),
        (&["services", "web"], WhyKind::Service),
        (&["cls/web"], WhyKind::CollaSet),
        (&["collasets", "web"], WhyKind::CollaSet),
        (&["collaset.apps.kusionstack.io/web"], WhyKind::CollaSet),
        (
            &["collasets.v1alpha1.apps.kusionstack.io", "web"],
            WhyKind::CollaSet,
        ),
        (&["deploy/web"], WhyKind::Deployment),
        (&["deployment.apps/web"], WhyKind::Deployment),
        (&["deployments.v1.apps/web"], WhyKind::Deployment),
        (&["sts/web"], WhyKind::StatefulSet),
        (&["ds", "web"], WhyKind::DaemonSet),
        (&["replicaset.apps/web"], WhyKind::ReplicaSet),
    ] {
        assert_eq!(why(args).unwrap(), web(kind), "{args:?}");
    }
    for (args, remedy) in [
        (&["job/web"][..], "job is not supported"),
        (
            &["job", "web"],
            "operating why accepts pod/NAME, cls/NAME (CollaSet), deploy/NAME, sts/NAME",
        ),
        (&["web-3", "web-4"], "write pod/web-3 pod/web-4"),
        (&["pod.apps.kusionstack.io/web"], "is not supported"),
        (&["opj.example.com/web"], "is not supported"),
        (&["deploy.extensions/web"], "is not supported"),
        (&["pod/"], "the name is missing: write pod/NAME"),
        (&["opj/"], "the name is missing: write opj/NAME"),
        (&["svc/"], "the name is missing: write svc/NAME"),
        (&["deploy", ""], "the name is missing: write deploy/NAME"),
        (&["pod/a/b"], "a/b is not a name: write pod/NAME"),
        (
            &["a", "b", "c"],
            "if these are Pods, write pod/a pod/b pod/c",
        ),
        (&["deploy"], "the name is missing: write deploy/NAME"),
        (&["Pods"], "write pod/NAME"),
        (
            &["pods", "web-3", "deploy/web"],
            "pods is a kind without a name: write pod/NAME",
        ),
        (&["pod/a", "b", "c"], "b has no kind"),
        (&[], "required"),
    ] {
        let error = why(args).unwrap_err();
        assert!(error.contains(remedy), "{args:?}: {error}");
    }
}

#[test]
fn several_objects_of_why_are_explained_but_not_watched() {
    let pod = |name: &str| (WhyKind::Pod, name.to_owned());
    let both = vec![pod("a"), pod("b")];
    assert_eq!(why(&["pod/a", "pod/b"]).unwrap(), both);
    assert_eq!(why(&["pod", "a", "b"]).unwrap(), both);
    let mixed = why(&["pod/a", "deploy/web"]).unwrap();
    let web = (WhyKind::Deployment, "web".to_owned());
    assert_eq!(mixed, vec![pod("a"), web]);
    let error = why(&["pod/a", "pod/b", "--watch"]).unwrap_err();
    assert!(error.contains("--watch follows one object"), "{error}");
    assert!(why(&["pod/a", "--watch"]).is_ok());
}

#[test]
fn plugin_name_offers_read_only_commands() {
    let called = |program: &str| parse(vec![program.into(), "why".into(), "pod/a".into()]);
    for program in [
        "kubectl-operating",
        "/usr/local/bin/kubectl-operating",
        "operating",
    ] {
        let command = called(program).command;
        assert!(
            matches!(command, Command::Read(ReadCommand::Why(_))),
            "{command:?}"
        );
    }
    let error = Plugin::try_parse_from(["kubectl-operating", "serve"]).unwrap_err();
    assert!(error.to_string().contains("kubectl operating"), "{error}");
    Plugin::command().debug_assert();
}

/// The command of a line that begins with `rollout` or `lifecycle`.
fn steer(line: &str) -> Result<SteerCommand, String> {
    let all = std::iter::once("operating").chain(line.split_whitespace());
    match Cli::try_parse_from(all).map_err(|e| e.to_string())?.command {
        Command::Steer(command) => Ok(command),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rollouts_name_collasets_as_kubectl_does() {
    let name = |objects: &str| match steer(&format!("rollout history {objects}"))? {
        SteerCommand::Rollout(steer::RolloutCommand::History(args)) => {
            args.set.name().map(str::to_owned)
        }
        other => panic!("{other:?}"),
    };
    for objects in [
        "cls/web",
        "cls web",
        "CollaSet/web",
        "collasets.apps.kusionstack.io web",
    ] {
        assert_eq!(name(objects).as_deref(), Ok("web"), "{objects}");
    }
    for (objects, remedy) in [
        ("web", "write cls/NAME"),
        ("deploy/web", "use kubectl rollout"),
        ("cls/", "the name is missing"),
        ("cls/a b", "name one CollaSet"),
    ] {
        let error = name(objects).unwrap_err();
        assert!(error.contains(remedy), "{objects}: {error}");
    }
}

#[test]
fn status_waits_unless_told_otherwise() {
    let watches = |line: &str| match steer(line) {
        Ok(SteerCommand::Rollout(steer::RolloutCommand::Status(args))) => args.watch,
        other => panic!("{other:?}"),
    };
    assert!(watches("rollout status cls/web"));
    assert!(watches("rollout status cls/web -w"));
    assert!(!watches("rollout status --watch=false cls web"));
}

#[test]
fn command_of_operation_follows_two_dashes() {
    let run = |line: &str| -> Result<steer::RunArgs, String> {
        match steer(line)? {
            SteerCommand::Lifecycle(steer::LifecycleCommand::Run(args)) => Ok(args),
            other => panic!("{other:?}"),
        }
    };
    let args = run("lifecycle run pod/web --type upgrade -- sh -c true").unwrap();
    assert_eq!(args.command, ["sh", "-c", "true"]);
    assert_eq!(steer::pod_name(&args.object).as_deref(), Ok("web"));
    let error = run("lifecycle run pod/web --type upgrade").unwrap_err();
    assert!(error.contains("COMMAND"), "{error}");
    let error = run("lifecycle run web --type -x- -- true").unwrap_err();
    assert!(error.contains("--type"), "{error}");
    for (words, wanted) in [("web", true), ("pod web", true), ("cls/web", false)] {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        assert_eq!(steer::pod_name(&words).is_ok(), wanted, "{words:?}");
    }
}

fn drain(args: &[&str]) -> Result<DrainArgs, String> {
    let all = ["operating", "drain"].iter().chain(args);
    match Cli::try_parse_from(all).map_err(|e| e.to_string())?.command {
        Command::Read(ReadCommand::Drain(args)) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn drain_takes_nodes_or_their_labels_and_flags_of_kubectl() {
    let args = drain(&["worker-0", "worker-1"]).unwrap();
    assert_eq!(args.nodes, ["worker-0", "worker-1"]);
    let flags = args.flags();
    assert!(flags.ignore_daemonsets && flags.delete_emptydir_data && !flags.force);
    let args = drain(&[
        "--ignore-daemonsets",
        "n",
        "--delete-emptydir-data=false",
        "--force",
    ]);
    let flags = args.unwrap().flags();
    assert!(flags.ignore_daemonsets && !flags.delete_emptydir_data && flags.force);
    assert_eq!(
        drain(&["-l", "pool=old"]).unwrap().selector.as_deref(),
        Some("pool=old")
    );
    assert!(drain(&[]).unwrap_err().contains("NODE"));
    assert!(
        drain(&["n", "-l", "pool=old"])
            .unwrap_err()
            .contains("cannot be used with")
    );
}
