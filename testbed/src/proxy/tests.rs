#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use kube::Config;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

/// A stand-in for an API server: it counts requests, echoes their credentials, and sends the events of the
/// test to watches.
struct Upstream {
    carried_out: Arc<AtomicUsize>,
    events: mpsc::UnboundedSender<&'static str>,
    url: String,
    _serving: AbortOnDropHandle<()>,
}

impl Upstream {
    async fn start() -> Upstream {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let carried_out = Arc::new(AtomicUsize::default());
        let (events, to_send) = mpsc::unbounded_channel();
        let to_send = Arc::new(tokio::sync::Mutex::new(to_send));
        let count = carried_out.clone();
        let answer = move |request: Request<Incoming>| {
            let (count, to_send) = (count.clone(), to_send.clone());
            async move {
                count.fetch_add(1, Ordering::Relaxed);
                let body = if request.uri().query() == Some("watch=true") {
                    let to_send = to_send.lock_owned().await;
                    let events = futures::stream::unfold(to_send, |mut to_send| async {
                        let event = Frame::data(Bytes::from(to_send.recv().await?));
                        Some((Ok::<_, anyhow::Error>(event), to_send))
                    });
                    StreamBody::new(events).boxed_unsync()
                } else {
                    let authorization =
                        request.headers()[header::AUTHORIZATION].as_bytes().to_vec();
                    http_body_util::Full::from(authorization)
                        .map_err(|never| match never {})
                        .boxed_unsync()
                };
                anyhow::Ok(Response::new(body))
            }
        };
        let serving = async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(answer.clone());
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(serving);
            }
        };
        Upstream {
            carried_out,
            events,
            url,
            _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    fn carried_out(&self) -> usize {
        self.carried_out.load(Ordering::Relaxed)
    }
}

async fn start() -> (Upstream, FaultProxy, Client) {
    let upstream = Upstream::start().await;
    let proxy = FaultProxy::start(client(&upstream.url)).await.unwrap();
    let client = client(&proxy.url());
    (upstream, proxy, client)
}

fn client(url: &str) -> Client {
    let mut config = Config::new(url.parse().unwrap());
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

async fn ask(client: &Client, method: Method, path: &str) -> Result<Response<Body>, kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::AUTHORIZATION, "Bearer mine")
        .body(Body::empty());
    client.send(request.unwrap()).await
}

async fn text(answer: Response<Body>) -> String {
    let body = answer.into_body().collect_bytes().await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn without_a_fault_credentials_and_answers_pass() {
    let (upstream, proxy, client) = start().await;
    let answer = ask(&client, Method::GET, "/a").await.unwrap();
    assert_eq!(text(answer).await, "Bearer mine");
    assert_eq!((upstream.carried_out(), proxy.affected_requests()), (1, 0));
}

#[tokio::test]
async fn every_nth_matching_request_fails_without_effect() {
    let (upstream, proxy, client) = start().await;
    proxy.set(
        Fault::new(Effect::Answer(StatusCode::CONFLICT))
            .on(|asked| asked.writes() && asked.uri.path() == "/a")
            .every(2),
    );
    let mut codes = Vec::new();
    for (method, path) in [
        (Method::PATCH, "/a"),
        (Method::GET, "/a"),
        (Method::PATCH, "/b"),
        (Method::PATCH, "/a?x=y"),
        (Method::PATCH, "/a"),
    ] {
        codes.push(ask(&client, method, path).await.unwrap().status().as_u16());
    }
    assert_eq!(codes, [200, 200, 200, 409, 200]);
    assert_eq!((upstream.carried_out(), proxy.affected_requests()), (4, 1));
    // The fault would affect the next request.
    proxy.end_fault();
    let answer = ask(&client, Method::PATCH, "/a").await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), proxy.affected_requests()),
        (200, 1)
    );
}

#[tokio::test]
async fn error_reads_as_api_servers_own() {
    let (_upstream, proxy, client) = start().await;
    proxy.set(Fault::new(Effect::Answer(StatusCode::TOO_MANY_REQUESTS)));
    let request = Request::get("/a").body(Vec::new()).unwrap();
    let error = client.request_text(request).await.unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (status.code, status.reason.as_str()),
        (429, "TooManyRequests")
    );
}

#[tokio::test]
async fn request_whose_reply_is_lost_was_carried_out() {
    let (upstream, proxy, client) = start().await;
    proxy.set(Fault::new(Effect::LoseReply));
    ask(&client, Method::PATCH, "/a").await.unwrap_err();
    assert_eq!((upstream.carried_out(), proxy.affected_requests()), (1, 1));
}

#[tokio::test]
async fn delayed_answer_comes_no_earlier() {
    let (_upstream, proxy, client) = start().await;
    let delay = Duration::from_millis(50);
    proxy.set(Fault::new(Effect::Delay(delay)));
    let start = Instant::now();
    ask(&client, Method::GET, "/a").await.unwrap();
    assert!(start.elapsed() >= delay);
}

#[tokio::test]
async fn frozen_request_goes_on_when_fault_ends() {
    let (upstream, proxy, client) = start().await;
    proxy.set(Fault::new(Effect::Freeze));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, Method::GET, "/a").await.unwrap().status() }
    });
    while proxy.affected_requests() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(upstream.carried_out(), 0);
    assert!(!asking.is_finished());
    proxy.end_fault();
    assert_eq!(asking.await.unwrap(), StatusCode::OK);
    assert_eq!(upstream.carried_out(), 1);
}

#[tokio::test]
async fn watch_streams_and_can_be_frozen_midway() {
    let (upstream, proxy, client) = start().await;
    let answer = ask(&client, Method::GET, "/a?watch=true").await.unwrap();
    let mut events = answer.into_body().into_data_stream();
    upstream.events.send("one").unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "one");
    proxy.set(Fault::new(Effect::Freeze));
    upstream.events.send("two").unwrap();
    let moment = Duration::from_millis(50);
    assert!(tokio::time::timeout(moment, events.next()).await.is_err());
    proxy.end_fault();
    assert_eq!(events.next().await.unwrap().unwrap(), "two");
}
