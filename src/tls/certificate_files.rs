//! Serves certificates from a directory, in which the kubelet mounts a Secret: `tls.crt` and `tls.key` behind a link
//! `..data` that the kubelet swaps as a whole. This module polls the content, because a watch on a file misses the swap
//! of the link above it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{CertificatePair, CertificateResolver};

/// Maximum number of bytes of a chain or a key that are read. A mounted Secret has at most 1 MiB.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Time limit of a read. A read from a network file system that takes longer counts as failed.
const READ_DEADLINE: Duration = Duration::from_secs(10);

/// Keeps a [`CertificateResolver`] up to date with the files of a directory.
#[derive(Debug)]
pub struct CertificateFiles {
    directory: PathBuf,
    resolver: Arc<CertificateResolver>,
    last: Option<PairFiles>,
}

#[derive(Clone, PartialEq, Eq)]
struct PairFiles {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for PairFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Content { .. }")
    }
}

impl CertificateFiles {
    /// Certificates in `directory` for `resolver`. This function reads nothing yet.
    pub fn new(
        directory: impl Into<PathBuf>,
        resolver: Arc<CertificateResolver>,
    ) -> CertificateFiles {
        CertificateFiles {
            directory: directory.into(),
            resolver,
            last: None,
        }
    }

    /// Reads the files once. A new and valid pair is served. If the files are invalid, the problem is reported and the
    /// old pair stays in service. Returns whether a pair is in service.
    pub async fn poll(&mut self) -> bool {
        let directory = self.directory.clone();
        let read = timeout(
            READ_DEADLINE,
            tokio::task::spawn_blocking(move || read_pair_files(&directory)),
        )
        .await;
        let content = match read {
            Ok(Ok(Ok(content))) => content,
            Ok(Ok(Err(problem))) => return self.keep_current(problem),
            Ok(Err(_)) => {
                return self.keep_current(self.describe_problem("reading was interrupted"));
            }
            Err(_) => return self.keep_current(self.describe_problem("reading took too long")),
        };
        if self.last.as_ref() == Some(&content) && self.resolver.problem().is_none() {
            return self.resolver.served().is_some();
        }
        match CertificatePair::from_pem(&content.chain, &content.key) {
            Ok(pair) => {
                self.resolver.serve_pair(pair, Vec::new());
                self.last = Some(content);
                true
            }
            Err(error) => self.keep_current(self.describe_problem(&error.to_string())),
        }
    }

    /// Polls every `period` until `stop` is cancelled.
    pub async fn run(mut self, period: Duration, stop: CancellationToken) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.poll().await;
        }
    }

    fn describe_problem(&self, problem: &str) -> String {
        format!("certificates in {}: {problem}", self.directory.display())
    }

    fn keep_current(&self, problem: String) -> bool {
        self.resolver.report_problem(problem);
        self.resolver.served().is_some()
    }
}

/// Reads chain and key from one version of the directory. The link `..data` is resolved once for both files, so that a
/// swap between the two reads cannot mix two pairs.
fn read_pair_files(directory: &Path) -> Result<PairFiles, String> {
    let generation = directory
        .join("..data")
        .canonicalize()
        .unwrap_or_else(|_| directory.to_owned());
    let file = |name: &str| {
        read_bounded(&generation.join(name)).map_err(|error| {
            format!(
                "certificates in {}: {name}: {}; mount a Secret of type kubernetes.io/tls there",
                directory.display(),
                error.kind()
            )
        })
    };
    Ok(PairFiles {
        chain: file("tls.crt")?,
        key: file("tls.key")?,
    })
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
