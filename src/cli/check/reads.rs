//! Reads of the checks. A check distinguishes an object that does not exist from one that its user may not see.

use std::time::Duration;

use kube::{Client, Error};
use serde_json::Value;

use super::finding::Finding;
use crate::api_request::{self, ApiFailure};
use crate::cli::why::api_reads::list_all_pages;

/// Longest time of one read.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of a read.
#[derive(Clone, Debug, PartialEq)]
pub enum Read<T = Value> {
    /// The object, or all objects of a list.
    Found(T),
    /// The object or its kind does not exist.
    Missing,
    /// The user may not read it, with the words of the API server.
    Forbidden(String),
    /// Anything else.
    Failed(String),
}

impl<T> Read<T> {
    /// The value; a list of a kind that does not exist is empty.
    ///
    /// # Errors
    /// The finding of a check that could not read it.
    pub fn or_finding(self, check: &'static str) -> Result<Option<T>, Finding> {
        match self {
            Read::Found(value) => Ok(Some(value)),
            Read::Missing => Ok(None),
            Read::Forbidden(text) => Err(Finding::forbidden(check, text)),
            Read::Failed(text) => Err(Finding::unknown(check, text)),
        }
    }
}

/// Awaits a request with a deadline.
pub async fn call<T>(request: impl Future<Output = Result<T, Error>>) -> Read<T> {
    match api_request::within(CALL_TIMEOUT, request).await {
        Ok(value) => Read::Found(value),
        Err(ApiFailure::Answered(status)) if status.code == 404 => Read::Missing,
        Err(failure) => match failure.code() {
            Some(403) => Read::Forbidden(failure.text()),
            _ => Read::Failed(failure.text()),
        },
    }
}

/// Reads the object at a path.
pub async fn get(client: &Client, path: &str) -> Read {
    call(async {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(Error::HttpError)?;
        client.request(request).await
    })
    .await
}

/// Lists all objects of a path that have the labels.
pub async fn list(client: &Client, path: &str, labels: Option<&str>) -> Read<Vec<Value>> {
    call(list_all_pages(client, path, labels)).await
}
