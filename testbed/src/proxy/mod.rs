//! A proxy on loopback in front of an API server that injects faults: slow or frozen answers, errors, lost
//! replies.

mod fault;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use fault::CurrentFault;
pub use fault::{Asked, Effect, Fault};

/// Limit of delayed events of one watch; at the limit, the proxy reads no more events.
const HELD_EVENTS: usize = 4096;

/// Listens on a free port of 127.0.0.1 with plain HTTP/1.1, and forwards every request with its own
/// credentials. Without a fault it changes nothing. Dropping the proxy ends all its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    fault: Arc<CurrentFault>,
    _accepting: AbortOnDropHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy. `upstream` must have no credentials.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(upstream: Client) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("binding a port for the fault proxy")?;
        let fault = Arc::new(CurrentFault::default());
        let relay = Relay {
            upstream,
            fault: fault.clone(),
        };
        Ok(Self {
            address: listener.local_addr()?,
            fault,
            _accepting: AbortOnDropHandle::new(tokio::spawn(relay.accept(listener))),
        })
    }

    /// The URL that replaces the API server's URL in a kubeconfig.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets a fault, which replaces any other, for new requests and for events of running watches.
    pub fn set(&self, fault: Fault) {
        self.fault.set(fault);
    }

    /// Ends the fault; frozen requests go on.
    pub fn end_fault(&self) {
        self.fault.end();
    }

    /// Number of requests that the last fault affected.
    #[must_use]
    pub fn affected_requests(&self) -> usize {
        self.fault.affected_requests()
    }
}

type AnswerBody = UnsyncBoxBody<Bytes, kube::Error>;

#[derive(Clone)]
struct Relay {
    upstream: Client,
    fault: Arc<CurrentFault>,
}

impl Relay {
    async fn accept(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => drop(connections.spawn(self.clone().serve(stream))),
                // The process has probably no free file descriptor: wait until other connections end.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn serve(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| self.clone().answer(request));
        // An error closes the connection: a lost reply, or a stopped API server.
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<AnswerBody>> {
        let (parts, body) = request.into_parts();
        let asked = Arc::new(Asked {
            method: parts.method,
            uri: parts.uri,
            body: body.collect().await?.to_bytes(),
        });
        let effect = self.fault.effect_on(&asked);
        match effect {
            Some(Effect::Answer(code)) => return refusal(code),
            Some(Effect::Freeze) => self.fault.wait_unfrozen(&asked).await,
            _ => {}
        }
        let answer = self.carry_out(&asked, parts.headers).await?;
        match effect {
            Some(Effect::LoseReply) => bail!("lost on purpose"),
            Some(Effect::Delay(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        Ok(answer.map(|body| match asked.watches() {
            true => self.delay_events(asked, body),
            false => body.boxed_unsync(),
        }))
    }

    /// Returns when the API server begins to answer; a write is stored by then.
    async fn carry_out(&self, asked: &Asked, headers: HeaderMap) -> Result<Response<Body>> {
        let mut request = Request::new(Body::from(asked.body.clone()));
        *request.method_mut() = asked.method.clone();
        *request.uri_mut() = asked.uri.clone();
        *request.headers_mut() = headers;
        for of_this_connection in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING] {
            request.headers_mut().remove(of_this_connection);
        }
        let mut answer = self.upstream.send(request).await?;
        for of_that_connection in [header::CONNECTION, header::TRANSFER_ENCODING] {
            answer.headers_mut().remove(of_that_connection);
        }
        Ok(answer)
    }

    fn delay_events(self, asked: Arc<Asked>, events: Body) -> AnswerBody {
        // Each event has its own delay from its arrival, and the order stays.
        let delayed = events.into_data_stream().map(move |event| {
            let (current, asked) = (self.fault.clone(), asked.clone());
            async move {
                current.delay_event(&asked).await;
                event.map(Frame::data)
            }
        });
        StreamBody::new(delayed.buffered(HELD_EVENTS)).boxed_unsync()
    }
}

/// An error in the form of an API server.
fn refusal(code: StatusCode) -> Result<Response<AnswerBody>> {
    let reason = match code {
        StatusCode::CONFLICT => "Conflict",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        _ => "",
    };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": "a fault on purpose", "reason": reason, "code": code.as_u16(),
    });
    let answer = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(status.to_string().into_bytes()).boxed_unsync())?;
    Ok(answer)
}

#[cfg(test)]
mod tests;
