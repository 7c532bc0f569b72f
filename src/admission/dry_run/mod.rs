//! Creates probes in dry-run mode at the API server, and collects the errors and warnings of the API server. A probe is
//! an object that is made of the templates of a CollaSet or of a PodDecoration.

#[cfg(test)]
pub mod fake_api_server;
mod field_paths;
mod probe;
mod refusal;

use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Error};
use serde_json::Value;
use tokio::time::Instant;

use crate::api::validation::FieldErrors;
use crate::api_request::{self, ApiFailure};
use crate::cluster::request_path::ResourcePath;
pub use field_paths::FieldPaths;
pub use probe::{DryRunProbe, probe_object};
pub use refusal::parse_warning_header;
use refusal::{DryRunFinding, classify_refusal};

/// Dry-run requests that run at the same time.
const MAX_CONCURRENT: usize = 4;
/// Longest refusal that is read, in bytes. The API server reports each wrong entry of a template twice, and the report
/// can be a hundred times longer than the entry.
const MAX_REFUSAL_BYTES: usize = 256 << 10;
/// Maximum number of warnings that are passed on. The API server shows only a few of them to users.
const MAX_WARNINGS: usize = 100;
/// Time before the deadline that is reserved for writing the verdict.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// The result of all probes of an object.
#[derive(Debug, Default)]
pub struct DryRunReport {
    /// Errors in the templates.
    pub errors: FieldErrors,
    /// Warnings of the API server, and refusals that may be temporary.
    pub warnings: Vec<String>,
    /// Why the API server could not judge a probe, as a clause without a full stop.
    pub unknown: Option<String>,
}

impl DryRunReport {
    fn add_warnings(&mut self, at: &str, texts: impl IntoIterator<Item = String>) {
        let remaining = MAX_WARNINGS.saturating_sub(self.warnings.len());
        let warnings = texts.into_iter().map(|text| format!("{at}: {text}"));
        self.warnings.extend(warnings.take(remaining));
    }
}

/// Creates every probe in dry-run mode, until the list of errors is full. Nothing is written, and no quota is used.
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
                paths,
                object,
            } = probe;
            let request = create_dry_run(client, namespace, resource, object);
            (
                paths,
                api_request::by(deadline - ANSWER_MARGIN, request).await,
            )
        })
        .buffered(MAX_CONCURRENT);
    while !report.errors.is_full()
        && let Some((paths, answer)) = answers.next().await
    {
        let finding = match answer {
            Ok(warnings) => {
                let warnings = warnings.into_iter();
                let warnings = warnings.map(|text| paths.translate_text(text));
                report.add_warnings(paths.template(), warnings);
                continue;
            }
            Err(ApiFailure::Answered(status)) => classify_refusal(&status, &paths),
            Err(ApiFailure::NoAnswer(_)) => {
                DryRunFinding::Unknown("the API server gave no answer in time".into())
            }
            Err(failure) => DryRunFinding::Unknown(format!(
                "the API server could not be asked: {}",
                failure.text()
            )),
        };
        match finding {
            DryRunFinding::Wrong(errors) => report.errors.extend(errors),
            DryRunFinding::Doubtful(reason) => {
                let warning = "the API server refuses at present to create an object from it, so it was not fully checked";
                report.add_warnings(paths.template(), [format!("{warning}: {reason}")]);
            }
            DryRunFinding::Unknown(reason) => {
                report.unknown.get_or_insert(reason);
            }
        }
    }
    report
}

/// The texts of the `Warning` headers of a successful answer.
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
    drop(object); // takes many times the memory of its JSON text
    let request = Request::post(uri)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(Error::HttpError)?;
    // Not `Client::request`, which does not return the headers.
    let response = client.send(request).await?;
    let code = response.status();
    if code.is_success() {
        let headers = response.headers().get_all(http::header::WARNING);
        let texts = headers
            .iter()
            .map(|h| String::from_utf8_lossy(h.as_bytes()));
        return Ok(texts
            .filter_map(|text| parse_warning_header(&text))
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

/// The status that replaces a refusal which is too long to be read.
fn oversized_refusal(code: StatusCode) -> Status {
    let message = format!(
        "the API server refuses it with {code} and an answer of more than {MAX_REFUSAL_BYTES} bytes; create an object from it \
         to read the answer"
    );
    // A 422 names the wrong fields, which are unknown here. With a 400, the error is reported for the whole object.
    let code = match code {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        other => other,
    };
    Status::failure(&message, "").with_code(code.as_u16())
}
