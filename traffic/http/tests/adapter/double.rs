//! An endpoint on loopback that gives prepared replies and keeps what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use traffic::{Changes, Employer, Member, MemberKey, Pod, PodId, PodPort};
use traffic_http::{Config, HttpAdapter};

/// A reply to one request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Status, headers, body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// The connection ends before the answer.
    Cut,
    /// No answer at all.
    Hang,
}

impl Reply {
    pub fn json(body: &Value) -> Reply {
        Reply::Answer(200, Vec::new(), body.to_string())
    }

    pub fn status(status: u16, body: &str) -> Reply {
        Reply::Answer(status, Vec::new(), body.to_owned())
    }
}

/// What the endpoint was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Asked {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    replies: VecDeque<Reply>,
}

pub struct Double {
    pub port: u16,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Double {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Double {
    pub async fn start() -> Double {
        Double::with_tls(None).await
    }

    pub async fn with_tls(tls: Option<TlsAcceptor>) -> Double {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(TokioIo::new(stream), state).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(TokioIo::new(stream), state).await;
                            }
                        }
                    }
                });
            }
        });
        Double { port, state, task }
    }

    pub fn reply(&self, reply: Reply) {
        self.state.lock().unwrap().replies.push_back(reply);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }

    pub fn last(&self) -> Asked {
        self.asked().pop().unwrap()
    }

    /// An adapter of this endpoint, with more fields of its configuration.
    pub fn adapter(&self, fields: Value) -> HttpAdapter {
        let mut all = json!({"url": format!("http://127.0.0.1:{}", self.port)});
        let all_fields = all.as_object_mut().unwrap();
        all_fields.extend(fields.as_object().unwrap().clone());
        let config: Config = serde_json::from_value(all).unwrap();
        HttpAdapter::new(config).unwrap()
    }
}

async fn serve<S>(stream: S, state: Arc<Mutex<State>>)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = service_fn(move |request| answer(request, state.clone()));
    // A cut connection is an error here.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(stream, service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<State>>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let headers = request.headers().iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    let headers = headers.collect();
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let reply = {
        let mut state = state.lock().unwrap();
        state.asked.push(Asked {
            path,
            headers,
            body,
        });
        state.replies.pop_front()
    };
    match reply.unwrap_or_else(|| Reply::status(500, "no reply was prepared")) {
        Reply::Answer(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            Ok(response.body(Full::new(Bytes::from(body))).unwrap())
        }
        Reply::Cut => Err(std::io::Error::other("cut")),
        Reply::Hang => std::future::pending().await,
    }
}

/// A Service with two ports.
pub fn employer() -> Employer {
    let text = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    Employer {
        kind: "Service".into(),
        namespace: "demo".into(),
        name: "web".into(),
        uid: "s-1".into(),
        labels: text(&[("team", "a"), ("tier", "front")]),
        annotations: text(&[
            ("resource-consist.kusionstack.io/drain-seconds", "9"),
            ("example.com/pool", "blue"),
            (
                "kubectl.kubernetes.io/last-applied-configuration",
                "private",
            ),
        ]),
        spec: json!({"ports": [
            {"name": "http", "port": 80, "targetPort": "web"},
            {"port": 9000, "targetPort": 9001},
        ]}),
        deleting: false,
    }
}

pub fn pod(number: u8) -> Pod {
    Pod {
        id: PodId {
            uid: format!("u-{number}"),
            name: format!("web-{number}"),
        },
        addresses: vec![[10, 0, 0, number].into()],
        node: "node-1".into(),
        labels: [("app", "web"), ("tier", "front")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ports: vec![PodPort {
            name: "web".into(),
            number: 8080,
            protocol: "TCP".into(),
        }],
        on: true,
    }
}

pub fn member(number: u8) -> Member {
    Member {
        key: MemberKey {
            group: "http".into(),
            address: [10, 0, 0, number].into(),
            port: 8080,
        },
        pod: pod(number).id,
        weight: 100,
    }
}

/// Registers member 1, drains member 2, removes member 3.
pub fn changes() -> Changes {
    Changes {
        register: vec![member(1)],
        drain: vec![member(2)],
        deregister: vec![member(3)],
    }
}
