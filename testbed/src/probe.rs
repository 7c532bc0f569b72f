//! The plain-HTTP port of the server: probes and metrics.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Status and body of the answer to a GET; `None` when the server does not answer.
pub async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    };
    tokio::time::timeout(PATIENCE, asking).await.ok()?
}

/// Whether the server reports that it is ready.
pub async fn is_ready(address: SocketAddr) -> bool {
    let answer = get(address, "/readyz").await;
    answer.is_some_and(|(code, _)| code == 200)
}
