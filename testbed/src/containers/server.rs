//! The process of a Pod: an HTTP server that ends as common servers do.

use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Environment variable `ADDRESS MILLISECONDS POD` of a process that serves, and listens after this time.
pub(super) const ASKED: &str = "OPERATING_POD_PROCESS";

/// Time from a request to its answer, unless the query says `delay=MILLISECONDS`.
pub const DEFAULT_DELAY: Duration = Duration::from_millis(20);

/// The longest delay that a request may ask for.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// How long requests in progress may take after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a process tries to bind its address, which the process of another, deleted Pod may still have.
const BIND: Duration = Duration::from_secs(5);

/// Serves as the process of a Pod if this process was started as one, and then ends the process. Otherwise does nothing.
///
/// Each request is answered with 200 and the name of the Pod, after [`DEFAULT_DELAY`]. SIGTERM closes the listener and
/// idle connections at once. Requests in progress are answered if they take no longer than [`GRACE`]. Then the process
/// ends. A request that is sent to the Pod after SIGTERM therefore fails.
pub fn serve_if_asked() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    end_with_stdin();
    let code = match serve_as_asked(&asked) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error:#}");
            1
        }
    };
    std::process::exit(code);
}

/// Ends this process when its starter has ended in any way: the starter holds the other end of standard input.
fn end_with_stdin() {
    std::thread::spawn(|| {
        // An error is the end as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

fn serve_as_asked(asked: &str) -> Result<()> {
    let described = || format!("{ASKED} is {asked:?}: expected \"ADDRESS MILLISECONDS POD\"");
    let parts: Vec<_> = asked.split(' ').collect();
    let [address, warm_up, pod] = parts[..] else {
        bail!(described());
    };
    let address: SocketAddr = address.parse().with_context(described)?;
    let warm_up = Duration::from_millis(warm_up.parse().with_context(described)?);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()?
        .block_on(serve(address, warm_up, pod))
}

async fn serve(address: SocketAddr, warm_up: Duration, pod: &str) -> Result<()> {
    sleep(warm_up).await;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = bind(address).await?;
    let (stopping, connections) = (CancellationToken::new(), TaskTracker::new());
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, pod.to_owned(), stopping.clone()));
                }
                // The process has probably no free file descriptor: wait until other connections end.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
        }
    }
    drop(listener);
    stopping.cancel();
    connections.close();
    // The end of the process cuts the connections that are left.
    let _ = timeout(GRACE, connections.wait()).await;
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let deadline = Instant::now() + BIND;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("binding {address} for {BIND:?}"));
            }
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection(stream: TcpStream, pod: String, stopping: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, &pod));
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    // The client may close the connection at any time, which is no error of the server.
    tokio::select! {
        _ = serving.as_mut() => return,
        () = stopping.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

async fn answer(request: Request<Incoming>, pod: &str) -> Result<Response<String>, Infallible> {
    sleep(delay_of(request.uri().query().unwrap_or_default())).await;
    Ok(Response::new(pod.to_owned()))
}

fn delay_of(query: &str) -> Duration {
    let asked = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("delay="));
    let asked = asked.and_then(|text| text.parse().ok());
    asked.map_or(DEFAULT_DELAY, |milliseconds| {
        Duration::from_millis(milliseconds).min(LONGEST_DELAY)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_read_from_query_and_bounded() {
        for (query, milliseconds) in [
            ("", 20),
            ("delay=0", 0),
            ("a=b&delay=7", 7),
            ("delay=soon", 20),
            ("delay=99999999", 10_000),
        ] {
            assert_eq!(
                delay_of(query),
                Duration::from_millis(milliseconds),
                "{query}"
            );
        }
    }
}
