//! Sends requests about ContainerRecreateRequests of OpenKruise. There is no watch: only the requests of jobs that run
//! are read.

use std::time::Duration;

use kube::core::params::{DeleteParams, PostParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::request_path::ResourcePath;
use crate::domain::operationjob::restart::recreate_request::{self, RequestState};

/// How long the served version counts as known. OpenKruise may be installed or removed at any time.
const DISCOVERY_TTL: Duration = Duration::from_secs(30);
/// Versions of the API that this controller knows, the preferred one first.
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

/// The version of ContainerRecreateRequests that the API server serves.
#[derive(Default)]
pub struct RequestApi(Mutex<Option<(Option<String>, Instant)>>);

impl RequestApi {
    /// The version, `apps.kruise.io/…`; `Some(None)` if none is served, `None` if this is not known.
    pub fn known(&self) -> Option<Option<String>> {
        let known = self.0.lock();
        let (version, at) = known.as_ref()?;
        (at.elapsed() < DISCOVERY_TTL).then(|| version.clone())
    }

    /// Asks the API server.
    pub async fn discover(&self, client: &Client) -> Result<(), Error> {
        let mut served = None;
        for version in VERSIONS {
            if serves(client, version).await? {
                served = Some(format!("{}/{version}", recreate_request::GROUP));
                break;
            }
        }
        *self.0.lock() = Some((served, Instant::now()));
        Ok(())
    }
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
}

async fn serves(client: &Client, version: &str) -> Result<bool, Error> {
    let path = format!("/apis/{}/{version}", recreate_request::GROUP);
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(Error::HttpError)?;
    match client.request::<ResourceList>(request).await {
        Ok(list) => {
            let mut resources = list.resources.iter();
            Ok(resources.any(|resource| resource.name == recreate_request::PLURAL))
        }
        Err(Error::Api(status)) if status.code == 404 => Ok(false),
        Err(e) => Err(e),
    }
}

/// The requests of a namespace, in a served version.
pub struct RecreateRequests<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    /// `apps.kruise.io/…`
    pub version: &'a str,
}

impl RecreateRequests<'_> {
    /// Reads the state of a request; `None` if it does not exist.
    pub async fn read(&self, name: &str) -> Result<Option<RequestState>, Error> {
        let request = self.path()?.get(name)?;
        match self.client.request::<Value>(request).await {
            Ok(request) => Ok(Some(recreate_request::state(&request))),
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Creates a request.
    pub async fn create(&self, body: &Value) -> Result<(), Error> {
        let body = serde_json::to_vec(body).map_err(Error::SerdeError)?;
        let request = self.path()?.create(&PostParams::default(), body)?;
        self.client.request::<Value>(request).await.map(|_| ())
    }

    /// Deletes a request. One that is gone is no error.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let request = self.path()?.delete(name, &DeleteParams::default())?;
        match self.client.request::<Value>(request).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            result => result.map(|_| ()),
        }
    }

    fn path(&self) -> Result<ResourcePath, Error> {
        let api = format!("/apis/{}", self.version);
        ResourcePath::from_parts(&api, self.namespace, recreate_request::PLURAL)
    }
}
