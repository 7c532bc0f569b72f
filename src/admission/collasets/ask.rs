//! Asks the API server about probes.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Error};
use tokio::time::{Instant, timeout_at};

use super::probe::{self, Finding, Probe};
use crate::api::validation::FieldErrors;
use crate::cluster::failure;
use crate::cluster::path::Objects;

/// Requests under way at a time.
const AT_ONCE: usize = 4;
/// Left of the deadline for the answer to be written.
const MARGIN: Duration = Duration::from_millis(100);

/// What was found out.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong with the templates.
    pub errors: FieldErrors,
    /// What the API server warns of, and refusals that may pass.
    pub warnings: Vec<String>,
    /// Why something could not be found out; a clause.
    pub unknown: Option<String>,
}

/// Creates every probe in dry-run. Nothing is written, and quota is not used.
pub async fn about(
    client: &Client,
    namespace: &str,
    probes: Vec<Probe>,
    deadline: Instant,
) -> Report {
    let mut report = Report::default();
    let mut answers = stream::iter(probes)
        .map(|probe| async move {
            let asked = timeout_at(deadline - MARGIN, create(client, namespace, &probe)).await;
            (probe.at, asked)
        })
        .buffered(AT_ONCE);
    while let Some((at, asked)) = answers.next().await {
        let finding = match asked {
            Ok(Ok(warnings)) => {
                let told = warnings.into_iter().map(|w| format!("{at}: {w}"));
                report.warnings.extend(told);
                continue;
            }
            Ok(Err(Error::Api(status))) => probe::judge(&status, &at),
            Ok(Err(e)) => Finding::Unknown(format!(
                "the API server could not be asked: {}",
                failure::text(&e)
            )),
            Err(_) => Finding::Unknown("the API server gave no answer in time".into()),
        };
        match finding {
            Finding::Wrong(errors) => report.errors.extend(errors.0),
            Finding::Doubtful(why) => report.warnings.push(format!(
                "{at}: nothing can be created from it as things stand, so it was not fully checked: {why}"
            )),
            Finding::Unknown(why) => {
                report.unknown.get_or_insert(why);
            }
        }
    }
    report
}

/// The texts of the warnings that come with success.
async fn create(client: &Client, namespace: &str, probe: &Probe) -> Result<Vec<String>, Error> {
    let objects = Objects::of("/api/v1", namespace, probe.resource)?;
    let uri = format!(
        "{}?dryRun=All&fieldValidation=Warn&fieldManager=operating",
        objects.path()
    );
    let body = serde_json::to_vec(&probe.object).map_err(Error::SerdeError)?;
    let request = Request::post(uri)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(Error::HttpError)?;
    // Not `request`, which keeps the headers to itself.
    let response = client.send(request).await?;
    let code = response.status();
    if code.is_success() {
        let headers = response.headers().get_all(http::header::WARNING);
        let texts = headers
            .iter()
            .map(|h| String::from_utf8_lossy(h.as_bytes()));
        return Ok(texts.filter_map(|text| probe::warning(&text)).collect());
    }
    let body = response.into_body().collect().await?.to_bytes();
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        Status::failure(&String::from_utf8_lossy(&body), "").with_code(code.as_u16())
    });
    Err(Error::Api(status.boxed()))
}
