//! Asks the API server about probes.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Error};
use serde_json::Value;
use tokio::time::Instant;

use super::probe::{self, DryRunFinding, DryRunProbe};
use crate::api::validation::FieldErrors;
use crate::apirequest::{self, Failure};
use crate::cluster::request_path::ResourcePath;

/// Requests under way at a time.
const MAX_CONCURRENT: usize = 4;
/// Longest refusal that is read, in bytes. The API server tells of each wrong entry of a template twice, in words that can
/// take a hundred times the bytes of the entry.
const MAX_REFUSAL_BYTES: usize = 256 << 10;
/// Warnings that are passed on; the API server shows users few of them.
const MAX_WARNINGS: usize = 100;
/// Left of the deadline for the answer to be written.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// What was found out.
#[derive(Debug, Default)]
pub struct DryRunReport {
    /// What is wrong with the templates.
    pub errors: FieldErrors,
    /// What the API server warns of, and refusals that may pass.
    pub warnings: Vec<String>,
    /// Why something could not be found out; a clause.
    pub unknown: Option<String>,
}

impl DryRunReport {
    fn add_warnings(&mut self, at: &str, texts: impl IntoIterator<Item = String>) {
        let room = MAX_WARNINGS.saturating_sub(self.warnings.len());
        let told = texts.into_iter().map(|text| format!("{at}: {text}"));
        self.warnings.extend(told.take(room));
    }
}

/// Creates every probe in dry-run, until there are errors enough. Nothing is written, and quota is not used.
pub async fn dry_run_probes(
    client: &Client,
    namespace: &str,
    probes: Vec<DryRunProbe>,
    deadline: Instant,
) -> DryRunReport {
    let mut report = DryRunReport::default();
    let mut answers = stream::iter(probes)
        .map(|probe| async move {
            let DryRunProbe {
                resource,
                at,
                object,
            } = probe;
            let asked = create_dry_run(client, namespace, resource, object);
            (at, apirequest::by(deadline - ANSWER_MARGIN, asked).await)
        })
        .buffered(MAX_CONCURRENT);
    while !report.errors.is_full()
        && let Some((at, asked)) = answers.next().await
    {
        let finding = match asked {
            Ok(warnings) => {
                report.add_warnings(&at, warnings);
                continue;
            }
            Err(Failure::Answered(status)) => probe::classify_refusal(&status, &at),
            Err(Failure::NoAnswer(_)) => {
                DryRunFinding::Unknown("the API server gave no answer in time".into())
            }
            Err(failure) => DryRunFinding::Unknown(format!(
                "the API server could not be asked: {}",
                failure.text()
            )),
        };
        match finding {
            DryRunFinding::Wrong(errors) => report.errors.extend(errors),
            DryRunFinding::Doubtful(why) => {
                let what =
                    "nothing can be created from it as things stand, so it was not fully checked";
                report.add_warnings(&at, [format!("{what}: {why}")]);
            }
            DryRunFinding::Unknown(why) => {
                report.unknown.get_or_insert(why);
            }
        }
    }
    report
}

/// The texts of the warnings that come with success.
async fn create_dry_run(
    client: &Client,
    namespace: &str,
    resource: &str,
    object: Value,
) -> Result<Vec<String>, Error> {
    let objects = ResourcePath::from_parts("/api/v1", namespace, resource)?;
    let uri = format!(
        "{}?dryRun=All&fieldValidation=Warn&fieldManager=operating",
        objects.path()
    );
    let body = serde_json::to_vec(&object).map_err(Error::SerdeError)?;
    drop(object); // many times as large
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
        return Ok(texts
            .filter_map(|text| probe::parse_warning_header(&text))
            .collect());
    }
    let body = Limited::new(response.into_body(), MAX_REFUSAL_BYTES);
    let status = match body.collect().await {
        Ok(body) => {
            let body = body.to_bytes();
            serde_json::from_slice(&body).unwrap_or_else(|_| {
                Status::failure(&String::from_utf8_lossy(&body), "").with_code(code.as_u16())
            })
        }
        Err(error) if error.is::<LengthLimitError>() => oversized_refusal(code),
        Err(error) => return Err(Error::Service(error)),
    };
    Err(Error::Api(status.boxed()))
}

/// Stands for a refusal that is too long to be read.
fn oversized_refusal(code: StatusCode) -> Status {
    let message = format!(
        "the API server refuses it with {code} and an answer of more than {MAX_REFUSAL_BYTES} bytes; create an object from it \
         to read the answer"
    );
    // Of wrong fields no names are known: so it is the object as a whole that is wrong.
    let code = match code {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        other => other,
    };
    Status::failure(&message, "").with_code(code.as_u16())
}
