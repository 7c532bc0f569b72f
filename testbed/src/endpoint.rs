//! An endpoint of a webhook rule: HTTPS with its own CA. It gives the answers that a test sets, and records
//! the requests.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Method of the request.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Null for a GET.
    pub body: Value,
    /// Time of arrival, see [`now`].
    pub at: u64,
    /// The answer; `None` until it is decided.
    pub reply: Option<Reply>,
    /// Time at which the answer was sent; `None` until then.
    pub told: Option<u64>,
}

impl Heard {
    /// Names of the Pods in a POST.
    pub fn names(&self) -> Vec<String> {
        let resources = self.body["resources"].as_array().into_iter().flatten();
        resources
            .map(|r| r["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// 200 with this JSON.
    Json(Value),
    /// This status with this body, and any further header line.
    Raw(u16, &'static str, String),
    /// No answer; the connection stays open.
    Hang,
    /// No answer; the connection is closed.
    Close,
    /// No answer until the notification; then the connection is closed.
    CloseAfter(Arc<Notify>),
    /// Half of the announced body; then the connection is closed.
    CloseMidBody,
    /// 200 with JSON of this size in bytes.
    Huge(usize),
    /// This answer after a delay.
    Slow(Duration, Box<Reply>),
}

impl Reply {
    /// Lets all Pods pass.
    pub fn pass() -> Reply {
        Reply::Json(json!({"success": true}))
    }

    /// Holds all Pods, with this message.
    pub fn refuse(message: &str) -> Reply {
        Reply::Json(json!({"success": false, "message": message}))
    }

    /// Starts this task, whose result is polled.
    pub fn task(id: &str) -> Reply {
        Reply::Json(json!({"success": true, "async": true, "taskId": id}))
    }
}

type Answer = Box<dyn Fn(&Heard) -> Reply + Send + Sync>;

/// Nanoseconds since 1970, as in the labels of the lifecycle.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_nanos()).unwrap()
}

struct Shared {
    /// Whether connections are closed before a request arrives.
    down: AtomicBool,
    /// Times of such connections.
    turned_away: Mutex<Vec<u64>>,
    heard: Mutex<Vec<Heard>>,
    answer: Mutex<Answer>,
}

/// The endpoint. It ends with the test.
pub struct RuleServer {
    /// The address of the endpoint.
    pub address: SocketAddr,
    /// Base64 of its CA.
    pub ca_bundle: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl RuleServer {
    /// Starts an endpoint with these answers.
    pub async fn start(answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static) -> RuleServer {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &ca).unwrap();
        let bundle = base64(ca.pem().as_bytes());
        RuleServer::with(leaf.der().clone(), &key, bundle, answer).await
    }

    /// Starts an endpoint that lets all Pods pass, with a self-signed certificate that is also its bundle.
    pub async fn self_signed(is_ca: bool) -> RuleServer {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        if is_ca {
            leaf.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let leaf = leaf.self_signed(&key).unwrap();
        let bundle = base64(leaf.pem().as_bytes());
        RuleServer::with(leaf.der().clone(), &key, bundle, |_| Reply::pass()).await
    }

    async fn with(
        certificate: CertificateDer<'static>,
        key: &KeyPair,
        ca_bundle: String,
        answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static,
    ) -> RuleServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let shared = Arc::new(Shared {
            down: AtomicBool::default(),
            turned_away: Mutex::default(),
            heard: Mutex::default(),
            answer: Mutex::new(Box::new(answer)),
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, shared) = (acceptor.clone(), Arc::clone(&serving));
                if shared.down.load(Ordering::SeqCst) {
                    shared.turned_away.lock().unwrap().push(now());
                    continue;
                }
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let _ = serve(stream, &shared).await; // the caller may go away at any time
                    }
                });
            }
        });
        RuleServer {
            address,
            ca_bundle,
            shared,
            task,
        }
    }

    /// Starts an endpoint that lets all Pods pass.
    pub async fn passing() -> RuleServer {
        RuleServer::start(|_| Reply::pass()).await
    }

    /// Gives these answers from now on.
    pub fn answer(&self, answer: impl Fn(&Heard) -> Reply + Send + Sync + 'static) {
        *self.shared.answer.lock().unwrap() = Box::new(answer);
    }

    /// Closes all new connections from now on, or serves them again.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// Times of the connections that were closed.
    pub fn turned_away(&self) -> Vec<u64> {
        self.shared.turned_away.lock().unwrap().clone()
    }

    /// URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }

    /// `clientConfig` of a rule with this endpoint.
    pub fn config(&self) -> Value {
        json!({"url": self.url("/check"), "caBundle": self.ca_bundle})
    }

    /// As [`RuleServer::config`], with polls each second; `extra` is merged into `poll`.
    pub fn polled(&self, extra: Value) -> Value {
        let mut config = self.config();
        config["poll"] =
            json!({"url": self.url("/poll"), "caBundle": self.ca_bundle, "intervalSeconds": 1});
        json_patch::merge(&mut config["poll"], &extra);
        config
    }

    /// The requests so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.shared.heard.lock().unwrap().clone()
    }

    /// The POSTs so far.
    pub fn asked(&self) -> Vec<Heard> {
        let requests = self.heard().into_iter();
        requests.filter(|h| h.method == "POST").collect()
    }

    /// The GETs so far.
    pub fn polls(&self) -> Vec<Heard> {
        let requests = self.heard().into_iter();
        requests.filter(|h| h.method == "GET").collect()
    }

    /// Number of POSTs about a Pod.
    pub fn times(&self, pod: &str) -> usize {
        let names = self.asked().into_iter().flat_map(|h| h.names());
        names.filter(|name| name == pod).count()
    }
}

impl Drop for RuleServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Base64, as bundles are written.
pub fn base64(bytes: &[u8]) -> String {
    let value = serde_json::to_value(ByteString(bytes.to_vec())).unwrap();
    value.as_str().unwrap().to_owned()
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    shared: &Shared,
) -> std::io::Result<()> {
    let request = read(&mut stream).await?;
    let index = {
        let mut all = shared.heard.lock().unwrap();
        all.push(request.clone());
        all.len() - 1
    };
    let mut reply = (shared.answer.lock().unwrap())(&request);
    shared.heard.lock().unwrap()[index].reply = Some(reply.clone());
    if let Reply::Slow(time, then) = reply {
        tokio::time::sleep(time).await;
        reply = *then;
    }
    let tells = || shared.heard.lock().unwrap()[index].told = Some(now());
    if !matches!(reply, Reply::Hang | Reply::CloseAfter(_)) {
        tells();
    }
    match reply {
        Reply::Slow(..) => panic!("slow twice"),
        Reply::Json(value) => respond(&mut stream, 200, "", value.to_string().as_bytes()).await?,
        Reply::Raw(status, header, body) => {
            respond(&mut stream, status, header, body.as_bytes()).await?;
        }
        Reply::Hang => tokio::time::sleep(Duration::from_secs(3_600)).await,
        Reply::Close => {}
        Reply::CloseAfter(release) => {
            release.notified().await;
            tells();
        }
        Reply::CloseMidBody => {
            let half = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"success\": true, ";
            stream.write_all(half).await?;
        }
        Reply::Huge(size) => {
            let body = format!(
                "{{\"success\": true, \"message\": \"{}\"}}",
                "x".repeat(size)
            );
            respond(&mut stream, 200, "", body.as_bytes()).await?;
        }
    }
    stream.shutdown().await
}

async fn respond<S: AsyncWrite + Unpin>(
    stream: &mut S,
    status: u16,
    header: &str,
    body: &[u8],
) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Reason\r\n{header}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<Heard> {
    let mut all = Vec::new();
    let head = loop {
        if let Some(at) = all.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut all).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let text = String::from_utf8(all[..head].to_vec()).unwrap();
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().unwrap())
    });
    while all.len() < head + length.unwrap_or(0) {
        if stream.read_buf(&mut all).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut line = text.lines().next().unwrap().split(' ');
    Ok(Heard {
        method: line.next().unwrap().to_owned(),
        target: line.next().unwrap().to_owned(),
        body: serde_json::from_slice(&all[head..]).unwrap_or_default(),
        at: now(),
        reply: None,
        told: None,
    })
}
