//! A stream that fails once the other side has sent too many bytes of any kind. hyper limits neither the number of
//! interim answers (1xx) before the answer, nor the overhead of TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Returns the bytes of `inner`, up to a limit.
pub struct BoundedStream<S> {
    inner: S,
    /// Number of bytes that may still be read.
    remaining: usize,
    limit: usize,
}

impl<S> BoundedStream<S> {
    /// Reads at most `limit` bytes from `inner`.
    pub const fn new(inner: S, limit: usize) -> Self {
        BoundedStream {
            inner,
            remaining: limit,
            limit,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(context, into);
        let received = into.filled().len().saturating_sub(before);
        match self.remaining.checked_sub(received) {
            Some(remaining) => {
                self.remaining = remaining;
                result
            }
            None => {
                into.set_filled(before);
                let kib = self.limit / 1024;
                let message = format!("the endpoint sent more than {kib} KiB");
                Poll::Ready(Err(io::Error::other(message)))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn stream_passes_limit_and_no_more() {
        let bytes = [7; 3000];
        let mut all = Vec::new();
        let read = BoundedStream::new(&bytes[..], 3000)
            .read_to_end(&mut all)
            .await;
        assert_eq!((read.unwrap(), all.len()), (3000, 3000));
        let read = BoundedStream::new(&bytes[..], 2999)
            .read_to_end(&mut all)
            .await;
        assert_eq!(
            read.unwrap_err().to_string(),
            "the endpoint sent more than 2 KiB"
        );
    }
}
