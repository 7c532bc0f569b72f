#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
    for command in Cli::command().get_subcommands() {
        for arg in command.get_arguments() {
            let variable = arg.get_env().and_then(|v| v.to_str()).unwrap_or_default();
            let ours = variable.starts_with("OPERATING_");
            assert!(
                ours || ["POD_NAMESPACE", "POD_NAME"].contains(&variable),
                "{arg}"
            );
        }
    }
}

#[test]
fn a_bare_api_server_to_enforcing() {
    let args = serve(&[
        "--install",
        "--kubeconfig=F",
        "--listen=127.0.0.1:9443",
        "--webhook-url=https://localhost:9443",
        "--metrics-listen=127.0.0.1:8080",
        "--leader-elect",
    ])
    .unwrap();
    assert!(args.install && args.leader_elect);
    assert_eq!(args.listen, "127.0.0.1:9443".parse().unwrap());
    assert_eq!(
        args.endpoint.webhook_url.as_deref(),
        Some("https://localhost:9443")
    );
    assert_eq!(args.request_timeout, Duration::from_secs(60));
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
