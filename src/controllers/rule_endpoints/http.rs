//! Makes one HTTP call to an endpoint, on a connection of its own. The call is bounded in time and size, and follows no
//! redirects.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::address::AddressPolicy;
use super::bounded::BoundedStream;
use super::trust::EndpointVerifier;
use crate::domain::rules::webhook::RuleEndpoint;

/// Maximum duration of a call, from the resolution of the name to the end of the answer (contract 5.5).
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Maximum time to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Maximum number of bytes that an endpoint may send in one call: the answer, headers, interim answers, and the
/// overhead of TLS.
const MAX_RECEIVED_BYTES: usize = MAX_ANSWER_BYTES + 512 * 1024;

/// A stream that can be read and written.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// An answer with a status 2xx.
#[derive(Debug)]
pub struct HttpAnswer {
    pub body: Bytes,
    /// The problem with the rule's `caBundle`, if the endpoint is trusted all the same.
    pub warning: Option<String>,
}

/// Sends a POST with `body` to `url`, or a GET if there is no body. The error is a text for users, and is the same for
/// each call with the same problem. `ca` is the bundle of a [`RuleEndpoint`].
pub async fn call_url(
    url: &str,
    ca: &[u8],
    body: Option<Vec<u8>>,
    policy: &AddressPolicy,
) -> Result<HttpAnswer, String> {
    match timeout(CALL_DEADLINE, exchange_request(url, ca, body, policy)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("no answer within {} s", CALL_DEADLINE.as_secs())),
    }
}

/// Protocol, host and port of an endpoint. Endpoints with the same value usually fail together.
pub fn endpoint_origin(endpoint: &RuleEndpoint) -> String {
    let uri: Option<Uri> = endpoint.url.parse().ok();
    uri.as_ref().and_then(Origin::from_uri).map_or_else(
        || endpoint.url.clone(),
        |t| format!("{}:{}:{}", t.tls, t.host, t.port),
    )
}

struct Origin<'a> {
    tls: bool,
    /// Host without the brackets of an IPv6 address.
    host: &'a str,
    port: u16,
}

impl Origin<'_> {
    fn from_uri(uri: &Uri) -> Option<Origin<'_>> {
        let tls = uri.scheme_str()? == "https";
        let host = uri.host()?;
        let host = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Some(Origin { tls, host, port })
    }
}

async fn exchange_request(
    url: &str,
    ca: &[u8],
    body: Option<Vec<u8>>,
    policy: &AddressPolicy,
) -> Result<HttpAnswer, String> {
    let uri: Uri = url.parse().map_err(|e| {
        format!("the url can't be parsed: {e}; write an absolute http or https URL")
    })?;
    let origin =
        Origin::from_uri(&uri).ok_or("the url has no host: write an absolute http or https URL")?;
    let stream = BoundedStream::new(
        connect_to_origin(&origin, policy).await?,
        MAX_RECEIVED_BYTES,
    );
    let (stream, warning): (Box<dyn ByteStream>, _) = match origin.tls {
        true => {
            let (stream, warning) = connect_tls(stream, origin.host, ca).await?;
            (Box::new(stream), warning)
        }
        false => (Box::new(stream), None),
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| format!("no HTTP connection: {e}"))?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = build_request(&uri, body)?;
    let answer = sender
        .send_request(request)
        .await
        .map_err(|e| format!("the request failed: {}", innermost_cause(&e)))?;
    let status = answer.status();
    if status.is_redirection() {
        // The error does not contain the target of the redirect: the endpoint may be an internal server, and the author
        // of the rule must not learn its secrets.
        return Err(format!(
            "the answer is {}, and redirects are not followed: set the url to the target of the redirect",
            status.as_u16()
        ));
    }
    if !status.is_success() {
        return Err(format!("the answer is {status}"));
    }
    match Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await
    {
        Ok(body) => Ok(HttpAnswer {
            body: body.to_bytes(),
            warning,
        }),
        Err(e) if e.is::<LengthLimitError>() => Err(format!(
            "the answer is longer than {} KiB",
            MAX_ANSWER_BYTES / 1024
        )),
        Err(e) => Err(format!(
            "the answer broke off: {}",
            innermost_cause(e.as_ref())
        )),
    }
}

/// Makes a TLS connection over `stream`. Also returns the problem with the bundle `ca`, if the endpoint is trusted all
/// the same.
async fn connect_tls<S: ByteStream>(
    stream: S,
    host: &str,
    ca: &[u8],
) -> Result<(TlsStream<S>, Option<String>), String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        format!("TLS can't verify the host {host}: use a DNS name or an IP address")
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = Arc::new(EndpointVerifier::new(ca, system_roots(), &provider));
    let config = tls_client_config(Arc::clone(&trust), provider)?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.map_err(|error| {
        let reason = trust
            .refusal()
            .map_or_else(|| describe_io_error(&error), str::to_owned);
        format!("no TLS connection: {reason}")
    })?;
    Ok((stream, trust.warning().map(str::to_owned)))
}

async fn connect_to_origin(
    origin: &Origin<'_>,
    policy: &AddressPolicy,
) -> Result<TcpStream, String> {
    let Origin { host, port, .. } = *origin;
    let addresses = lookup_host((host, port)).await;
    let addresses: Vec<SocketAddr> = addresses
        .map_err(|_| format!("the name {host} can't be resolved"))?
        .collect();
    // Only addresses that were checked are dialled: the name is not resolved again.
    let (mut allowed, mut refusal) = (Vec::new(), None);
    for address in addresses {
        match policy.refusal_reason(address.ip()).await {
            None => allowed.push(address),
            Some(reason) => refusal = Some(refusal.unwrap_or(reason)),
        }
    }
    if let (Some(reason), []) = (refusal, &allowed[..]) {
        return Err(reason);
    }
    let mut last_error = format!("the name {host} has no address");
    for address in allowed {
        last_error = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => format!("can't connect to {host}:{port}: {}", describe_io_error(&e)),
            Err(_) => format!("can't connect to {host}:{port} in time"),
        };
    }
    Err(last_error)
}

fn build_request(uri: &Uri, body: Option<Vec<u8>>) -> Result<Request<Full<Bytes>>, String> {
    let authority = uri.authority().map_or("", |a| a.as_str());
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut request = Request::builder()
        .uri(path)
        .header(HOST, host)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("operating/", env!("CARGO_PKG_VERSION")));
    if !user.is_empty() {
        request = request.header(AUTHORIZATION, basic_authorization(user));
    }
    request = match &body {
        Some(_) => request
            .method(Method::POST)
            .header(CONTENT_TYPE, "application/json"),
        None => request.method(Method::GET),
    };
    request
        .body(Full::from(body.unwrap_or_default()))
        .map_err(|e| {
            format!(
                "no HTTP request can be made for the url: {e}; write an absolute http or https URL"
            )
        })
}

/// The header for credentials in a URL, as Go's HTTP client sends them.
fn basic_authorization(user: &str) -> String {
    let user = if user.contains(':') {
        user.to_owned()
    } else {
        format!("{user}:")
    };
    format!("Basic {}", BASE64_STANDARD.encode(user))
}

/// The TLS configuration of a client that trusts the endpoints that `trust` accepts.
fn tls_client_config(
    trust: Arc<EndpointVerifier>,
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = builder.dangerous().with_custom_certificate_verifier(trust);
    Ok(builder.with_no_client_auth())
}

fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    Arc::clone(roots)
}

fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
        _ => error.to_string(),
    }
}

/// The innermost cause of an error. The outer errors only repeat that there is one.
fn innermost_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt;

    use super::*;

    #[test]
    fn requests_carry_what_the_url_says() {
        let uri: Uri = "http://u:p@example.com:8080/a?b=c".parse().unwrap();
        let request = build_request(&uri, Some(b"{}".to_vec())).unwrap();
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/a?b=c");
        assert_eq!(request.headers()[HOST], "example.com:8080");
        assert_eq!(request.headers()[AUTHORIZATION], "Basic dTpw");
        let plain = super::build_request(&"https://a".parse().unwrap(), None).unwrap();
        assert_eq!((plain.method(), plain.uri().path()), (&Method::GET, "/"));
        assert!(!plain.headers().contains_key(AUTHORIZATION));
    }

    #[test]
    fn endpoints_fail_together_by_host_and_port() {
        let of = |url: &str| {
            endpoint_origin(&RuleEndpoint {
                url: url.into(),
                ca: Vec::new(),
            })
        };
        assert_eq!(of("https://a/x"), of("https://u@a:443/y?z"));
        assert_eq!(of("http://[::1]/"), of("http://[::1]:80"));
        assert_ne!(of("http://a/"), of("https://a/"));
    }

    /// A listener that answers nothing, and its port.
    async fn listener() -> (tokio::net::TcpListener, u16) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[tokio::test]
    async fn loopback_is_refused_in_every_notation() {
        let (listener, port) = listener().await;
        for host in [
            "127.0.0.1",
            "localhost",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:ffff:127.0.0.1]",
        ] {
            let url = format!("http://{host}:{port}/");
            let error = call_url(&url, &[], None, &AddressPolicy::default())
                .await
                .unwrap_err();
            assert!(error.contains("--endpoint-allow-cidrs"), "{url}: {error}");
        }
        let dialled = listener.accept().now_or_never();
        assert!(dialled.is_none(), "{dialled:?}");
    }

    /// Answers one call with these bytes, from an endpoint that is allowed. Returns the error.
    async fn answered(answer: &'static str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (listener, port) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let mut policy = AddressPolicy::default();
        policy.networks.allowed = vec!["127.0.0.1/32".parse().unwrap()];
        let url = format!("http://127.0.0.1:{port}/");
        let error = call_url(&url, &[], None, &policy).await.unwrap_err();
        serving.await.unwrap();
        error
    }

    #[tokio::test]
    async fn failed_answer_is_not_quoted() {
        for answer in [
            "HTTP/1.1 302 hunter2\r\nLocation: http://internal/?hunter2\r\nContent-Length: 7\r\n\r\nhunter2",
            "HTTP/1.1 403 hunter2\r\nX-Secret: hunter2\r\nContent-Length: 7\r\n\r\nhunter2",
            "hunter2 is my password\r\n\r\n",
            "SSH-2.0-hunter2\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhunter2",
        ] {
            let error = answered(answer).await;
            assert!(!error.contains("hunter2"), "{answer}: {error}");
        }
        let error = answered(
            "HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        assert!(
            error.contains("set the url to the target of the redirect"),
            "{error}"
        );
    }

    /// Sends interim answers until the client stops reading, and counts the bytes.
    #[tokio::test]
    async fn interim_answers_without_end_are_read_up_to_a_bound() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (listener, port) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
            let mut sent = 0;
            while sent < 64 * MAX_ANSWER_BYTES && stream.write_all(hints.as_bytes()).await.is_ok() {
                sent += hints.len();
            }
            sent
        });
        let mut policy = AddressPolicy::default();
        policy.networks.allowed = vec!["127.0.0.1/32".parse().unwrap()];
        let url = format!("http://127.0.0.1:{port}/");
        let error = call_url(&url, &[], None, &policy).await.unwrap_err();
        assert!(
            error.contains("the endpoint sent more than 1536 KiB"),
            "{error}"
        );
        // The bytes in the buffers of the sockets count as sent, too.
        let sent = serving.await.unwrap();
        assert!(sent < 32 * MAX_ANSWER_BYTES, "{sent}");
    }

    #[tokio::test]
    async fn link_local_addresses_are_refused_unless_allowed() {
        for url in [
            "http://169.254.169.254/latest",
            "http://[::ffff:169.254.169.254]/",
            "https://[fd00:ec2::254]/",
        ] {
            let error = call_url(url, &[], None, &AddressPolicy::default())
                .await
                .unwrap_err();
            assert!(
                error.contains("--allow-link-local-endpoints"),
                "{url}: {error}"
            );
        }
    }
}
