//! A worker of a load: one request at a time.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONNECTION, HOST};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::Outcome;

/// The longest body that a worker reads, in bytes.
const LONGEST_BODY: usize = 64 * 1024;
/// How many characters of a body a failure shows.
const SHOWN: usize = 200;

/// An open connection.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

/// Sends requests, one after the other.
pub(super) struct Worker {
    address: SocketAddr,
    uri: Uri,
    keeps_connection: bool,
    kept: Option<Connection>,
}

/// An outcome, with the body of a success or the reason of a failure.
type Ended = (Outcome, String);

impl Worker {
    pub(super) fn new(address: SocketAddr, uri: Uri, keeps_connection: bool) -> Self {
        Self {
            address,
            uri,
            keeps_connection,
            kept: None,
        }
    }

    /// Sends one request. A request that failed closes its connection.
    pub(super) async fn request(&mut self, limit: Duration) -> Ended {
        let kept = self.kept.take();
        match timeout(limit, self.send(kept)).await {
            Ok(Ok((ended, connection))) => {
                self.kept = connection.filter(|_| self.keeps_connection);
                ended
            }
            Ok(Err(ended)) => ended,
            Err(_) => (Outcome::Timeout, format!("no answer within {limit:?}")),
        }
    }

    async fn send(&self, kept: Option<Connection>) -> Result<(Ended, Option<Connection>), Ended> {
        let cut = |error: hyper::Error| (Outcome::Cut, chain(&error));
        if let Some(mut connection) = kept
            && connection.sender.ready().await.is_ok()
        {
            match connection.sender.send_request(self.message()?).await {
                Ok(answer) => return read(answer, connection).await,
                // The server closed the connection while it was idle, and the request was not written.
                Err(error) if error.is_canceled() => {}
                Err(error) => return Err(cut(error)),
            }
        }
        let stream = TcpStream::connect(self.address).await;
        let stream = stream.map_err(|error| (Outcome::ConnectError, error.to_string()))?;
        let _ = stream.set_nodelay(true);
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(cut)?;
        let driver = tokio::spawn(async move {
            // The request sees the error of its connection.
            let _ = driver.await;
        });
        let mut connection = Connection {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        };
        let answer = connection.sender.send_request(self.message()?).await;
        read(answer.map_err(cut)?, connection).await
    }

    fn message(&self) -> Result<Request<Empty<Bytes>>, Ended> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path).header(HOST, self.address.to_string());
        if !self.keeps_connection {
            request = request.header(CONNECTION, "close");
        }
        let request = request.body(Empty::new());
        request.map_err(|error| (Outcome::ClientError, error.to_string()))
    }
}

async fn read(
    answer: http::Response<Incoming>,
    connection: Connection,
) -> Result<(Ended, Option<Connection>), Ended> {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST_BODY).collect();
    let body = body.await.map_err(|error| (Outcome::Cut, chain(&*error)))?;
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let ended = match outcome_of(status) {
        Outcome::Ok => (Outcome::Ok, body),
        outcome => {
            let shown: String = body.chars().take(SHOWN).collect();
            (outcome, format!("{status} {shown}"))
        }
    };
    Ok((ended, Some(connection)))
}

fn outcome_of(status: StatusCode) -> Outcome {
    match status.as_u16() {
        500.. => Outcome::ServerError,
        400.. => Outcome::ClientError,
        _ => Outcome::Ok,
    }
}

/// An error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
