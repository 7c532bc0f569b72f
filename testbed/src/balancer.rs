//! A round-robin load balancer for TCP on loopback: several servers behind one URL.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Timeout for a backend to accept a connection. After it, the next backend is tried.
const CONNECT: Duration = Duration::from_secs(1);
/// Limit of parallel connections. Further connections wait in the listener's backlog.
const CONNECTIONS: usize = 4096;

/// Listens on a free port of 127.0.0.1 and forwards each connection to the next backend that accepts it,
/// without changing its bytes. Dropping the balancer ends all its connections.
#[derive(Debug)]
pub struct LoadBalancer {
    address: SocketAddr,
    backends: Arc<Backends>,
    _accepting: AbortOnDropHandle<()>,
}

impl LoadBalancer {
    /// Starts a balancer with these backends; the list may be empty.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(backends: impl IntoIterator<Item = SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("binding a port for the load balancer")?;
        let address = listener.local_addr()?;
        let backends = Arc::new(Backends::new(backends));
        let accepting = tokio::spawn(accept(listener, backends.clone()));
        Ok(Self {
            address,
            backends,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// The address of the balancer.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a backend, unless it is already in the rotation.
    pub fn add(&self, backend: SocketAddr) {
        self.backends.change(|list| {
            if !list.contains(&backend) {
                list.push(backend);
            }
        });
    }

    /// Removes a backend from the rotation. Its open connections stay.
    pub fn remove(&self, backend: SocketAddr) {
        self.backends.change(|list| list.retain(|b| *b != backend));
    }
}

#[derive(Debug)]
struct Backends {
    list: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Backends {
    fn new(list: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            list: Mutex::new(list.into_iter().collect()),
            turn: AtomicUsize::new(0),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<SocketAddr>)) {
        change(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All backends, beginning with the next in the rotation.
    fn rotation(&self) -> Vec<SocketAddr> {
        let mut list = self
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !list.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % list.len();
            list.rotate_left(turn);
        }
        list
    }

    async fn connect(&self) -> Option<TcpStream> {
        for backend in self.rotation() {
            if let Ok(Ok(stream)) = timeout(CONNECT, TcpStream::connect(backend)).await {
                return Some(stream);
            }
        }
        None
    }
}

async fn accept(listener: TcpListener, backends: Arc<Backends>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    while let Ok(permit) = permits.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let Ok((mut client, _)) = listener.accept().await else {
            // The process has probably no free file descriptor: wait until other connections end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let backends = backends.clone();
        connections.spawn(async move {
            let _permit = permit;
            // Without a backend the connection is closed, as a dead server would.
            if let Some(mut server) = backends.connect().await {
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                // Either side may close the connection at any time; the other side notices it.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server that answers every connection with its letter.
    async fn server(letter: u8) -> (SocketAddr, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(&[letter]).await.unwrap();
            }
        });
        (address, AbortOnDropHandle::new(task))
    }

    async fn ask(lb: &LoadBalancer) -> Option<u8> {
        let mut stream = TcpStream::connect(lb.address()).await.unwrap();
        stream.read_u8().await.ok()
    }

    async fn ask_often(lb: &LoadBalancer, times: usize) -> String {
        let mut answers = String::new();
        for _ in 0..times {
            answers.push(ask(lb).await.map_or('-', char::from));
        }
        answers
    }

    #[tokio::test]
    async fn connections_go_round_and_pass_over_dead_backends() {
        let (a, _a) = server(b'a').await;
        let (b, b_task) = server(b'b').await;
        let lb = LoadBalancer::start([a]).await.unwrap();
        lb.add(b);
        lb.add(b);
        assert_eq!(ask_often(&lb, 4).await, "abab");
        drop(b_task);
        // The listener closes once its task is gone.
        while TcpStream::connect(b).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask_often(&lb, 4).await, "aaaa");
        lb.remove(a);
        lb.remove(b);
        assert_eq!(ask_often(&lb, 1).await, "-");
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_until_both_sides_are_done() {
        let echo = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let lb = LoadBalancer::start([echo.local_addr().unwrap()])
            .await
            .unwrap();
        let serve = async {
            let (mut stream, _) = echo.accept().await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            stream.write_all(&text).await.unwrap();
        };
        let speak = async {
            let mut stream = TcpStream::connect(lb.address()).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let ((), text) = tokio::join!(serve, speak);
        assert_eq!(text, "hello");
    }
}
