//! Provides the certificate for new connections, which can be replaced at any time.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use super::CertificatePair;
use crate::telemetry::metrics::ServerMetrics;

/// The certificate in service, and the authorities that a client must trust to accept it.
#[derive(Clone, Debug)]
pub struct ServedCertificate {
    /// Chain and key.
    pub pair: Arc<CertificatePair>,
    /// Certificate authorities in the published `caBundle`; empty if another program publishes it.
    pub roots: Arc<[CertificateDer<'static>]>,
}

/// Serves the current pair. Without a pair, handshakes fail and the server is not ready.
#[derive(Debug)]
pub struct CertificateResolver {
    served: ArcSwapOption<ServedCertificate>,
    problem: ArcSwapOption<String>,
    metrics: ServerMetrics,
}

impl CertificateResolver {
    /// A resolver that has no certificate yet.
    pub fn new(metrics: ServerMetrics) -> Arc<CertificateResolver> {
        Arc::new(CertificateResolver {
            served: ArcSwapOption::empty(),
            problem: ArcSwapOption::empty(),
            metrics,
        })
    }

    /// Serves this pair in all handshakes from now on, and clears the last problem.
    pub fn serve_pair(&self, pair: CertificatePair, roots: Vec<CertificateDer<'static>>) {
        self.metrics
            .certificate_expiry
            .set(pair.not_after().as_second() as f64);
        self.problem.store(None);
        let same = self
            .served
            .load()
            .as_deref()
            .is_some_and(|now| now.pair.leaf_der() == pair.leaf_der());
        if !same {
            self.metrics.certificate_loads.inc();
            tracing::info!(valid_until = %pair.not_after(), "serving a new certificate");
        }
        self.served.store(Some(Arc::new(ServedCertificate {
            pair: Arc::new(pair),
            roots: roots.into(),
        })));
    }

    /// Records that a newer pair is not available. The current pair stays in service. Each problem is logged once.
    pub fn report_problem(&self, problem: String) {
        self.metrics.certificate_failures.inc();
        if self.problem.load().as_deref() == Some(&problem) {
            return;
        }
        let valid_until = self
            .served()
            .map(|served| served.pair.not_after().to_string());
        tracing::error!(problem, valid_until, "keeping the current certificate");
        self.problem.store(Some(Arc::new(problem)));
    }

    /// The certificate in service.
    pub fn served(&self) -> Option<Arc<ServedCertificate>> {
        self.served.load_full()
    }

    /// Why the last attempt to get a newer pair failed, if it failed.
    pub fn problem(&self) -> Option<Arc<String>> {
        self.problem.load_full()
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.served
            .load()
            .as_ref()
            .map(|served| served.pair.certified_key().clone())
    }
}
