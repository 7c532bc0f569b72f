//! `operating check`: is the server there, does it answer, and are its objects as this version needs them? The command
//! only reads, with the rights of its user.
//!
//! Each file has one check: it reads, and a function without I/O judges what was read.

mod authority;
mod clock;
mod crds;
mod deployment;
mod finding;
mod lease;
mod namespaces;
mod policies;
mod reads;
mod report;
mod rights;
mod rules;
mod server;
mod webhooks;

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::time::{Instant, sleep};

use self::finding::{Finding, Outcome, may_improve};
use super::answering_server::find_answering;
use super::args::CheckArgs;
use super::install::{self, EnabledFeatures, names};
use super::{connect, output};
use crate::admission::routes::ConfigurationSettings;
use crate::admission::version_answer::AnsweringVersion;
use crate::api::keys;

/// The pause between two checks of `--wait`.
const PAUSE: Duration = Duration::from_secs(2);

/// Checks, prints what was found, and returns the exit code of the process.
pub async fn command(args: CheckArgs) -> anyhow::Result<ExitCode> {
    match check_and_print(&args).await {
        Ok(outcome) => Ok(ExitCode::from(outcome.exit_code())),
        Err(error) => {
            eprintln!("error: {error:#}");
            Ok(ExitCode::from(Outcome::Unknown.exit_code()))
        }
    }
}

async fn check_and_print(args: &CheckArgs) -> anyhow::Result<Outcome> {
    let (file, context) = (&args.cluster.kubeconfig, &args.cluster.context);
    let client = connect::connect_user(file.as_deref(), context.as_deref()).await?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    let mut has_said = false;
    let findings = loop {
        let findings = check_all(&client, args).await;
        let goes_on = until.is_some_and(|until| Instant::now() + PAUSE < until);
        if !goes_on || !may_improve(&findings) {
            break findings;
        }
        if !has_said {
            eprintln!("waiting until all is well");
            has_said = true;
        }
        sleep(PAUSE).await;
    };
    output::write_stdout(&report::render(&findings, args.format.output)?)?;
    Ok(Outcome::of(&findings))
}

async fn check_all(client: &Client, args: &CheckArgs) -> Vec<Finding> {
    let now = match clock::read_server_time(client).await {
        Ok(now) => now,
        // Every other check would wait in vain.
        Err(error) => return vec![Finding::unknown("api-server", error)],
    };
    let namespace = &args.cluster.namespace;
    let clock = clock::judge(now, Timestamp::now());
    let answering = find_answering(client, &args.ask_in).await;
    let mut findings = vec![server::judge(&answering, &AnsweringVersion::own())];
    findings.extend(webhooks::check(client, &settings(args), now).await);
    findings.extend(crds::check(client).await);
    findings.extend(policies::check(client).await);
    let (workloads, account) = deployment::check(client, namespace).await;
    findings.extend(workloads);
    // The checks before took some time.
    let now = clock::read_server_time(client).await.unwrap_or(now);
    findings.extend(lease::check(client, namespace, now).await);
    let path = format!("/apis/{}/v1alpha1/podtransitionrules", keys::GROUP);
    let rules = reads::list(client, &path, None).await;
    findings.extend(namespaces::check(client, rules.clone()).await);
    findings.extend(rules::judge(rules));
    let account = account.unwrap_or_else(|| names::SERVICE_ACCOUNT.to_owned());
    findings.push(rights::check(client, namespace, &account, features(args)).await);
    findings.push(clock);
    findings
}

/// What an installation with the flags of the server would write. Its address stays as it is stored.
fn settings(args: &CheckArgs) -> ConfigurationSettings {
    let namespace = &args.cluster.namespace;
    ConfigurationSettings {
        client: install::client_config(None, namespace),
        namespace: namespace.clone(),
        ca_bundle: None,
        grace_delete: args.features.grace_delete(),
        collasets: args.features.collasets(),
        cert_manager: None,
        segment: None,
    }
}

fn features(args: &CheckArgs) -> EnabledFeatures {
    EnabledFeatures {
        collasets: args.features.collasets(),
        traffic: args.features.resource_consist(),
        grace_delete: args.features.grace_delete(),
        certificates: !args.mounted_certificates,
        webhooks: !args.fixed_webhooks,
    }
}
