//! Plays the API of Alibaba Cloud for the adapter of its classic load balancer: the parts of SLB (2014-05-15), ECS
//! (2014-05-26) and STS (2015-04-01) that the adapter calls, as they are spoken on the wire.
//!
//! The double verifies signatures, dates and nonces, lets tokens expire, keeps quotas, answers with data that is not
//! consistent yet, and has faults on request. It logs each call, so that a test can count calls.
#![allow(clippy::unwrap_used)] // a test fails by a panic

mod actions;
mod controller;
mod faults;
mod parameters;
mod people;
mod serve;
mod signature;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

pub use controller::CloudController;
pub use faults::{Effect, Fault};
pub use people::{People, Role};
pub use state::{Backend, Existing, Listener, LoadBalancer, State};

/// A call that the double answered, or on which it closed the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The action, for example `DescribeHealthStatus`.
    pub action: String,
    /// The code of the error; `None` if the call took effect, whether or not its answer arrived.
    pub error: Option<String>,
    /// Decoded parameters, in the order of the request.
    pub parameters: Vec<(String, String)>,
}

/// The double. It ends with the test.
pub struct SlbDouble {
    address: SocketAddr,
    scheme: &'static str,
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

impl SlbDouble {
    /// Listens on a free port of 127.0.0.1. The key `key-id` with the secret `key-secret` is known.
    pub async fn start() -> SlbDouble {
        SlbDouble::with(None, "http").await
    }

    /// Listens with TLS for the name `localhost`. Returns its certificate in PEM, too.
    pub async fn start_tls() -> (SlbDouble, String) {
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let leaf = leaf.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], private)
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        (SlbDouble::with(Some(tls), "https").await, leaf.pem())
    }

    async fn with(tls: Option<TlsAcceptor>, scheme: &'static str) -> SlbDouble {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::new()));
        let task = tokio::spawn(serve::accept(listener, tls, state.clone()));
        SlbDouble {
            address,
            scheme,
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The endpoint of all three products.
    pub fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    /// Everything that the double knows. A test may read and change it.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins a fault.
    pub fn fault(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Ends all faults.
    pub fn end_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// Number of calls of an action so far.
    pub fn count(&self, action: &str) -> usize {
        let state = self.state.lock();
        state.calls.iter().filter(|c| c.action == action).count()
    }

    /// The backend servers of a group; the ID of a load balancer names its default group.
    pub fn backends(&self, group: &str) -> Vec<Backend> {
        self.state.lock().group(group).clone()
    }

    /// A component that registers addresses, as the cloud controller of a cluster does.
    pub fn cloud_controller(&self) -> CloudController {
        CloudController::new(self.state.clone())
    }
}
