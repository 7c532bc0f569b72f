//! Reads from the API server, with errors that say what was read and what the user can do.

use std::time::Duration;

use kube::api::{Api, ListParams};
use kube::core::{Request, Status};
use kube::{Client, Error};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request::{self, ApiFailure};
use crate::domain::diagnosis::RuleObject;

/// Longest time of one read.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of objects in one page of a list.
const PAGE_LIMIT: u32 = 500;

/// Awaits a read with a deadline.
pub async fn call_with_timeout<T>(
    verb: &str,
    plural: &str,
    namespace: Option<&str>,
    read: impl Future<Output = Result<T, Error>>,
) -> anyhow::Result<T> {
    let found = api_request::within(CALL_TIMEOUT, read).await;
    found.map_err(|failure| explain_failure(verb, plural, namespace, failure))
}

/// The object that was read. `None` if there is none of this name. A missing object is named in the details of the
/// answer; without details, the API server does not know the kind.
///
/// # Errors
/// If the object can't be read, or if its kind is not known.
pub fn found<K>(read: Result<K, Error>) -> Result<Option<K>, Error> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(Error::Api(status)) if status.code == 404 && names_object(&status) => Ok(None),
        Err(e) => Err(e),
    }
}

fn names_object(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| !details.name.is_empty())
}

/// Notes for the user about facts that could not be read.
#[derive(Default)]
pub struct ReadNotes(Vec<String>);

impl ReadNotes {
    /// Adds a note. `unknown` says in a clause which fact is unknown.
    pub fn add(&mut self, unknown: &str, error: &anyhow::Error) {
        self.0.push(format!("{unknown}: {error:#}"));
    }

    /// Adds the notes of another read.
    pub fn append(&mut self, other: ReadNotes) {
        self.0.extend(other.0);
    }

    /// The notes, in their order.
    pub fn into_lines(self) -> Vec<String> {
        self.0
    }
}

/// Marks the error of a read that every other read would have too.
#[derive(Debug)]
struct ForAllReads(anyhow::Error);

impl std::fmt::Display for ForAllReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for ForAllReads {}

/// Whether every other read would fail for the same reason: the API server does not answer, or does not accept the
/// credentials.
pub fn is_for_all_reads(error: &anyhow::Error) -> bool {
    error.is::<ForAllReads>()
}

/// Describes the error of a read for the user.
pub fn explain_failure(
    verb: &str,
    plural: &str,
    namespace: Option<&str>,
    failure: ApiFailure,
) -> anyhow::Error {
    let is_for_all = match &failure {
        ApiFailure::NoAnswer(_) | ApiFailure::Broken(_) => true,
        ApiFailure::Answered(status) => status.code == 401,
    };
    let error = describe_failure(verb, plural, namespace, failure);
    match is_for_all {
        true => ForAllReads(error).into(),
        false => error,
    }
}

fn describe_failure(
    verb: &str,
    plural: &str,
    namespace: Option<&str>,
    failure: ApiFailure,
) -> anyhow::Error {
    let (place, flag) = match namespace {
        Some(namespace) => (
            format!("in namespace {namespace}"),
            format!("-n {namespace}"),
        ),
        None => ("in all namespaces".to_owned(), "-A".to_owned()),
    };
    match failure {
        ApiFailure::NoAnswer(limit) => anyhow::anyhow!(
            "cannot {verb} {plural}: the API server has not answered within {}s; is it the right one (--context)?",
            limit.as_secs()
        ),
        ApiFailure::Answered(status) => match status.code {
            403 => anyhow::anyhow!(
                "you may not {verb} {plural} {place}: ask for that right (kubectl auth can-i {verb} {plural} {flag}), or name \
                 another namespace with -n"
            ),
            401 => anyhow::anyhow!(
                "the API server does not accept these credentials: log in again, or name others with --context"
            ),
            404 if !names_object(&status) => anyhow::anyhow!(
                "this cluster knows no {plural}: the CRDs of apps.kusionstack.io are not installed; install them \
                 (operating install), or name another cluster with --context"
            ),
            _ => anyhow::anyhow!("cannot {verb} {plural} {place}: {}", status.message),
        },
        ApiFailure::Broken(error) => anyhow::Error::msg(api_request::text(&error)).context(format!(
            "cannot {verb} {plural} {place}: the API server can't be reached, or does not answer as one; is it the right one \
             (--context)?"
        )),
    }
}

/// The message about an object that does not exist.
pub fn no_such_object(kind: &str, plural: &str, namespace: &str, name: &str) -> String {
    format!(
        "there is no {kind} {name} in namespace {namespace}: see kubectl get {plural} -n {namespace}, or name another with -n"
    )
}

/// The message about an OperationJob that does not exist.
pub fn no_such_job(namespace: &str, name: &str) -> String {
    format!(
        "there is no OperationJob {name} in namespace {namespace}: a finished job is deleted after its \
         spec.TTLSecondsAfterFinished; see kubectl get operationjobs -n {namespace}, or name another with -n"
    )
}

/// The rule objects of a namespace, or of all namespaces.
pub async fn list_rules(
    client: &Client,
    namespace: Option<&str>,
) -> anyhow::Result<Vec<RuleObject>> {
    let rules: Api<PodTransitionRule> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let params = ListParams::default();
    let listed =
        call_with_timeout("list", "podtransitionrules", namespace, rules.list(&params)).await?;
    Ok(listed.items.into_iter().map(RuleObject::compile).collect())
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(default)]
    r#continue: Option<String>,
}

/// All objects of a path that have the labels, page by page, as `T`. Objects that can't be read are left out.
pub async fn list_all_pages<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    labels: Option<&str>,
) -> Result<Vec<T>, Error> {
    let params = ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default()
    };
    list_pages(client, path, params).await
}

/// All objects of a path that `params` selects; see [`list_all_pages`].
pub async fn list_pages<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    params: ListParams,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    let mut params = params.limit(PAGE_LIMIT);
    loop {
        let request = Request::new(path)
            .list(&params)
            .map_err(Error::BuildRequest)?;
        let text = client.request_text(request).await?;
        let page: Page = serde_json::from_str(&text).map_err(Error::SerdeError)?;
        let items = page.items.unwrap_or_default();
        found.extend(
            items
                .iter()
                .filter_map(|raw| serde_json::from_str(raw.get()).ok()),
        );
        match page.metadata.r#continue.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn message(code: u16, plural: &str) -> String {
        let status = Status::failure("no", "Reason").with_code(code);
        explain_failure(
            "list",
            plural,
            Some("shop"),
            ApiFailure::Answered(Box::new(status)),
        )
        .to_string()
    }

    #[test]
    fn unreachable_server_is_told_from_refusal_of_one_read() {
        let explain = |failure| explain_failure("get", "pods", Some("shop"), failure);
        let no_answer = explain(ApiFailure::NoAnswer(CALL_TIMEOUT));
        assert!(is_for_all_reads(&no_answer));
        let answered = |code| {
            let status = Status::failure("no", "Reason").with_code(code);
            explain(ApiFailure::Answered(Box::new(status)))
        };
        assert!(is_for_all_reads(&answered(401)));
        assert!(!is_for_all_reads(&answered(403)));
    }

    #[test]
    fn unknown_kind_is_told_from_missing_object() {
        let unknown = Status::failure("404 page not found", "NotFound").with_code(404);
        let mut missing = unknown.clone();
        missing.details = Some(serde_json::from_str(r#"{ "name": "web" }"#).unwrap());
        assert!(found::<()>(Err(Error::Api(Box::new(unknown)))).is_err());
        assert_eq!(
            found::<()>(Err(Error::Api(Box::new(missing)))).unwrap(),
            None
        );
    }

    #[test]
    fn failed_read_names_remedy() {
        assert!(message(404, "collasets").contains("the CRDs"));
        assert!(message(403, "pods").contains("kubectl auth can-i list pods -n shop"));
        assert!(message(404, "podtransitionrules").contains("operating install"));
        assert!(message(401, "pods").contains("--context"));
        assert_eq!(
            message(500, "pods"),
            "cannot list pods in namespace shop: no"
        );
    }
}
