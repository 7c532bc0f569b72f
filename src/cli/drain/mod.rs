//! `operating drain`: what would `kubectl drain` of a node get? The command reads and sends dry runs, with the rights of
//! its user.

mod evictions;
mod reads;
mod tree;

use std::process::ExitCode;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};

use super::args::{DrainArgs, Output};
use super::why::{api_reads, to_json_text};
use super::{connect, output};
use crate::domain::drain::facts::DrainOutcome;
use crate::domain::drain::preview;

/// Shows the preview of each node, and returns the exit code of the process.
pub async fn command(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let outcome = match preview_nodes(&args).await {
        Ok(outcome) => outcome,
        Err(error) => {
            output::write_stderr(&format!("error: {error:#}"));
            DrainOutcome::Unknown
        }
    };
    Ok(ExitCode::from(outcome.exit_code()))
}

async fn preview_nodes(args: &DrainArgs) -> anyhow::Result<DrainOutcome> {
    let user = &args.user;
    let client = connect::connect_user(user.kubeconfig.as_deref(), user.context.as_deref()).await?;
    let nodes = node_names(&client, args).await?;
    let mut worst = DrainOutcome::Ok;
    for (index, node) in nodes.iter().enumerate() {
        let outcome = match preview_node(&client, args, node, nodes.len() > 1).await {
            Ok((text, outcome)) => {
                let is_next = index > 0 && args.format.output == Output::Text;
                output::write_stdout(&format!("{}{text}", if is_next { "\n" } else { "" }))?;
                outcome
            }
            Err(error) => {
                output::write_stderr(&format!("error: {error:#}"));
                if api_reads::is_for_all_reads(&error) {
                    return Ok(worst.max(DrainOutcome::Unknown));
                }
                DrainOutcome::Unknown
            }
        };
        worst = worst.max(outcome);
    }
    Ok(worst)
}

/// The nodes to look at, each once.
async fn node_names(client: &Client, args: &DrainArgs) -> anyhow::Result<Vec<String>> {
    let Some(selector) = &args.selector else {
        let mut names: Vec<String> = Vec::new();
        for name in &args.nodes {
            // kubectl accepts the kind, too.
            let name = name.strip_prefix("node/").unwrap_or(name);
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        return Ok(names);
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default().labels(selector);
    let listed = nodes.list_metadata(&params);
    let listed = api_reads::call_with_timeout("list", "nodes", None, listed).await?;
    let names = listed.items.into_iter();
    let names: Vec<_> = names.filter_map(|node| node.metadata.name).collect();
    anyhow::ensure!(
        !names.is_empty(),
        "no node has the labels {selector}: see kubectl get nodes --show-labels"
    );
    Ok(names)
}

/// The preview of a node as text, and what it means. With `line`, JSON is on one line.
async fn preview_node(
    client: &Client,
    args: &DrainArgs,
    node: &str,
    line: bool,
) -> anyhow::Result<(String, DrainOutcome)> {
    let facts = preview(&reads::observe_node(client, args, node).await?);
    let text = match args.format.output {
        Output::Text => tree::render_preview(&facts),
        Output::Json => to_json_text(&facts, line)?,
    };
    Ok((text, facts.outcome))
}
