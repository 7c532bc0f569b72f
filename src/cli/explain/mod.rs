//! `operating explain`: decides an AdmissionReview offline, with the handlers of the server. Their requests to the API
//! server are answered from files.

mod fake_api;
mod index_setup;
mod input_files;
mod outcome;
mod route;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::args::{ExplainArgs, Output};
use super::{output, why};
use crate::admission::review::{Handler, Request, Verdict};
use crate::admission::{self, AdmissionContext, AdmissionSettings};
use crate::cluster::deleted_collasets::DeletedCollaSets;
use crate::cluster::events::EventRecorder;
use crate::cluster::identity::Identity;
use crate::cluster::index::Index;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::presence::ObjectLookup;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::watch::CatchUpSignal;
use crate::domain::rules::webhook::EndpointNetworks;
use crate::ledger::commit::Ledgers;
use outcome::ReviewOutcome;

/// Exit code: the request is denied.
const EXIT_DENIED: u8 = 1;
/// Exit code: the input can't be used.
const EXIT_UNUSABLE: u8 = 2;

/// A decision without a network needs far less.
const DECISION_TIMEOUT: Duration = Duration::from_secs(60);

/// Decides and prints. Returns the exit code of the process.
pub async fn command(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let outcome = match decide_review(&args).await {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(EXIT_UNUSABLE));
        }
    };
    for note in &outcome.notes {
        eprintln!("note: {note}");
    }
    output::write_stdout(&match args.format.output {
        Output::Text => outcome.to_text(),
        Output::Json => why::to_json_text(&outcome, false)?,
    })?;
    Ok(match outcome.allowed {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_DENIED),
    })
}

/// The verdict on the review in the files.
async fn decide_review(args: &ExplainArgs) -> anyhow::Result<ReviewOutcome> {
    let mut request = input_files::read_review(&args.review)?;
    // The verdict is that of the real request. The dry run only prevents the write of the claim.
    let asked_dry = std::mem::replace(&mut request.dry_run, true);
    let mut objects = input_files::read_input_objects(&args.rules, &args.pods, &request.namespace)?;
    let mut notes = std::mem::take(&mut objects.notes);
    objects.add_reviewed_pod(&request)?;
    if args.pods.is_empty() && request.resource.resource == "pods" {
        notes.push(
            "no other Pods are given (--pods): budgets are computed as if there were none beside this one".to_owned(),
        );
    }
    if asked_dry {
        notes.push("the request is a dry-run: nothing would be written".to_owned());
    }
    let index = Arc::new(Index::default());
    notes.extend(index_setup::fill_index(&index, &objects));
    let (client, unanswered) = fake_api::fake_client(&objects);
    index.decision_watches.trust_for_a_year(); // files do not change
    let ledgers = Ledgers::new(RuleStore::new(
        client.clone(),
        Arc::clone(&index),
        CatchUpSignal::default(),
    ));
    let context = Arc::new(AdmissionContext {
        events: EventRecorder::new(client.clone(), Timestamp::now),
        object_lookup: ObjectLookup::new(client.clone()),
        client,
        identity: Identity::default(),
        index: Arc::clone(&index),
        objects: Arc::default(),
        traffic: Arc::default(),
        disruption_budgets: Arc::default(),
        owners: LiveOwners::new(&index),
        deleted_collasets: DeletedCollaSets::default(),
        ledgers: Arc::clone(&ledgers),
        settings: AdmissionSettings {
            request_timeout: DECISION_TIMEOUT,
            grace_delete: args.features.grace_delete(),
            max_rules: admission::MAX_RULES_PER_NAMESPACE,
            collasets: true, // a CollaSet is reviewed even if the cluster does not review it
            collaset_bytes: usize::MAX,
            endpoints: EndpointNetworks::default(),
        },
        now: Timestamp::now,
        earliest: Timestamp::now,
    });
    let paths = route::handler_paths(&request)?;
    let handlers = admission::handlers(&context);
    let mut verdicts = Vec::new();
    for path in paths {
        let handler = handlers.iter().find(|(of, _)| *of == path);
        let (_, handler) =
            handler.context("the table of webhooks names a path without a handler")?;
        let verdict = call_handler(handler, &mut request).await?;
        if let Some(unanswered_request) = unanswered.first_unanswered() {
            anyhow::bail!(
                "it can't be decided offline: {path} asks the API server for {unanswered_request}; try the request itself with \
                 kubectl --dry-run=server"
            );
        }
        let allowed = verdict.is_allowed();
        verdicts.push((path, verdict));
        if !allowed {
            break;
        }
    }
    Ok(ReviewOutcome::from_verdicts(
        &request,
        &verdicts,
        index_setup::rule_budgets(&index, &ledgers, &request),
        notes,
    ))
}

/// Calls one handler. The next handler gets the object with the changes of this one, as with the API server.
async fn call_handler(
    handler: &Arc<dyn Handler>,
    request: &mut Request,
) -> anyhow::Result<Verdict> {
    let verdict = handler
        .review(request, Instant::now() + DECISION_TIMEOUT)
        .await;
    if let (Some(patch), Some(object)) = (verdict.patch(), &request.object) {
        let mut value: Value = serde_json::from_str(object.get())?;
        json_patch::patch(&mut value, patch).context("a patch does not fit its object")?;
        request.object = Some(to_raw_value(&value)?);
    }
    Ok(verdict)
}
