//! The HTTP server of the double.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::actions::{self, Refusal};
use super::parameters::{pairs, value};
use super::{Call, Effect, State, signature};

type Answer = Response<Full<Bytes>>;

/// Serves the connections of a listener, over TLS if there is an acceptor.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    state: Arc<Mutex<State>>,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(greet(stream, tls.clone(), state.clone()))),
            // The process has probably no free file descriptor: wait until other connections end.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn greet(stream: TcpStream, tls: Option<TlsAcceptor>, state: Arc<Mutex<State>>) {
    match tls {
        None => serve(stream, state).await,
        // A client that does not trust the certificate ends the handshake.
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                serve(stream, state).await;
            }
        }
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    state: Arc<Mutex<State>>,
) {
    let service = service_fn(move |request| answer(request, state.clone()));
    // An error closes the connection, which is a cut or a lost reply.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<State>>,
) -> Result<Answer, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?;
    let body = body.to_bytes();
    let query = pairs(parts.uri.query().unwrap_or_default());
    let form = pairs(std::str::from_utf8(&body).unwrap_or_default());
    let all: Vec<(String, String)> = query.iter().chain(&form).cloned().collect();
    let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
    let action = header("x-acs-action")
        .or_else(|| value(&all, "Action"))
        .unwrap_or_default()
        .to_owned();
    let version = header("x-acs-version")
        .or_else(|| value(&all, "Version"))
        .unwrap_or_default()
        .to_owned();

    let effect = strike(&state, &action, &all);
    if let Some(Effect::Slow(delay)) = effect {
        tokio::time::sleep(delay).await;
    }
    let refusal = match &effect {
        Some(Effect::Throttle) => Some(Refusal::new(400, "Throttling.User")),
        Some(Effect::Refuse(status, code)) => Some(Refusal::new(*status, code)),
        _ => None,
    };
    let mut state = state.lock();
    let result = match (refusal, &effect) {
        (_, Some(Effect::CutBefore)) => Err(Refusal::new(0, "cut before")),
        (Some(refusal), _) => Err(refusal),
        _ if action == "AssumeRoleWithOIDC" => actions::assume_role(&mut state, &all),
        _ => signature::verify(
            &mut state,
            parts.method.as_str(),
            &query,
            &parts.headers,
            &body,
        )
        .map_err(|code| Refusal::new(status_of(code), code))
        .and_then(|()| actions::act(&mut state, &action, &version, &all, skipped(&effect))),
    };
    let error = result.as_ref().err().map(|refusal| refusal.code.clone());
    state.calls.push(Call {
        action,
        error,
        parameters: all,
    });
    match (result, effect) {
        (_, Some(Effect::CutBefore | Effect::LoseReply)) => {
            Err(std::io::Error::other("cut on purpose"))
        }
        (Ok(_), Some(Effect::LieAfter(status, code))) => Ok(refuse(&Refusal::new(status, &code))),
        (Ok(_), Some(Effect::Garble)) => Ok(respond(200, Bytes::from_static(b"<html>"))),
        (Ok(_), Some(Effect::Answer(body))) => Ok(respond(200, body.into())),
        (Ok(_), Some(Effect::Huge(size))) => Ok(respond(200, vec![b' '; size].into())),
        (Ok(_), Some(Effect::Redirect(url))) => {
            let mut answer = respond(307, Bytes::new());
            let url = url.parse().map_err(std::io::Error::other)?;
            answer.headers_mut().insert("location", url);
            Ok(answer)
        }
        (Ok(value), _) => Ok(respond(200, value.to_string().into())),
        (Err(refusal), _) => Ok(refuse(&refusal)),
    }
}

fn skipped(effect: &Option<Effect>) -> Option<usize> {
    match effect {
        Some(Effect::Skip(index)) => Some(*index),
        _ => None,
    }
}

fn strike(state: &Mutex<State>, action: &str, parameters: &[(String, String)]) -> Option<Effect> {
    let mut state = state.lock();
    state
        .faults
        .iter_mut()
        .find_map(|fault| fault.strike(action, parameters))
}

fn status_of(code: &str) -> u16 {
    match code {
        "InvalidAccessKeyId.NotFound" => 404,
        "InvalidSecurityToken.Expired" => 403,
        _ => 400,
    }
}

fn refuse(refusal: &Refusal) -> Answer {
    // The real service quotes what it was sent, too.
    let body = json!({
        "RequestId": "request-1",
        "HostId": "slb.example",
        "Code": refusal.code,
        "Message": refusal.message,
        "Recommend": "https://error.example",
    });
    respond(refusal.status, body.to_string().into())
}

fn respond(status: u16, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}
