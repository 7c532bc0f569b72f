//! `why` and `budget`: what the API server shows, explained. They only read, with the rights of their user.

mod api;
mod around;
pub mod budget;
mod gather;
mod live;
pub mod tree;

use anyhow::Context as _;
use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use serde::Serialize;

use super::args::{BudgetArgs, Output, WhyArgs};
use super::{connect, output};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::diagnosis::facts::DryRunDeletion;
use crate::domain::diagnosis::{ObservedPod, diagnose};
use live::Look;

/// `operating why`.
pub async fn why(args: WhyArgs) -> anyhow::Result<()> {
    let name = args.name().map_err(anyhow::Error::msg)?.to_owned();
    let (client, namespace) = connect::reader(&args.reader).await?;
    let first = gather::observe(&client, &namespace, &name).await?;
    let first = first.with_context(|| api::no_such_pod(&namespace, &name))?;
    if !args.watch {
        return output::write(&explained(&first, args.output, false)?);
    }
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &namespace);
    let rules: Api<PartialObjectMeta<PodTransitionRule>> =
        Api::namespaced(client.clone(), &namespace);
    let changes =
        SelectAll::from_iter([live::changes(pods, Some(&name)), live::changes(rules, None)]);
    let (uid, began) = (first.pod.metadata.uid.clone(), first.now);
    let look = async || {
        let observed = gather::observe(&client, &namespace, &name).await?;
        let Some(mut observed) = observed.filter(|o| o.pod.metadata.uid == uid) else {
            return Ok(Look::last(gone(&name, args.output)?));
        };
        let text = explained(&observed, args.output, true)?;
        observed.now = began; // ages alone are no change
        observed.around.trial = observed.around.trial.map(DryRunDeletion::without_text);
        Ok(Look::more(text, explained(&observed, args.output, true)?))
    };
    live::follow(changes, look).await
}

/// `operating budget`.
pub async fn budget(args: BudgetArgs) -> anyhow::Result<()> {
    let (client, namespace) = connect::reader(&args.reader).await?;
    let namespace = (!args.all_namespaces).then_some(namespace);
    let look = async |line: bool| {
        let rules = api::rules(&client, namespace.as_deref()).await?;
        budget::shown(&rules, namespace.as_deref(), args.output, line)
    };
    if !args.watch {
        return output::write(&look(false).await?);
    }
    look(true).await?; // what can't be read at all is an error, and not waited for
    let rules: Api<PartialObjectMeta<PodTransitionRule>> = match &namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let changes = SelectAll::from_iter([live::changes(rules, None)]);
    live::follow(changes, async || {
        let text = look(true).await?;
        Ok(Look::more(text.clone(), text))
    })
    .await
}

/// An explanation in the form that is asked for; JSON in one `line` or in many.
fn explained(observed: &ObservedPod, form: Output, line: bool) -> anyhow::Result<String> {
    let explanation = diagnose(observed);
    match form {
        Output::Text => Ok(tree::text(&explanation, observed.now)),
        Output::Json => json(&explanation, line),
    }
}

fn gone(pod: &str, form: Output) -> anyhow::Result<String> {
    match form {
        Output::Text => Ok(format!("Pod {pod} is gone\n")),
        Output::Json => json(
            &serde_json::json!({ "summary": format!("Pod {pod} is gone") }),
            true,
        ),
    }
}

/// JSON that ends with a line break.
pub(super) fn json(value: &impl Serialize, line: bool) -> anyhow::Result<String> {
    let text = match line {
        true => serde_json::to_string(value),
        false => serde_json::to_string_pretty(value),
    };
    Ok(text.context("cannot write JSON")? + "\n")
}
