//! The network between the API server and Services, which a plane does not have. The API server connects to the cluster
//! through a proxy on a Unix socket. The proxy finds the Service by its address, as kube-proxy does, and connects to
//! the loopback address of one of its ready endpoints.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use testbed::containers::loopback_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

/// Takes turns between endpoints.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// The socket and the file that names it, before the plane exists.
pub struct Network {
    directory: tempfile::TempDir,
    listener: UnixListener,
}

impl Network {
    pub fn prepare() -> Network {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("egress.sock");
        let configuration = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": {
                "proxyProtocol": "HTTPConnect",
                "transport": {"uds": {"udsName": socket}},
            }}],
        });
        let file = directory.path().join("egress.json");
        std::fs::write(file, configuration.to_string()).unwrap();
        Network {
            listener: UnixListener::bind(socket).unwrap(),
            directory,
        }
    }

    /// The flag of the API server.
    pub fn flag(&self) -> String {
        let file = self.directory.path().join("egress.json");
        format!("--egress-selector-config-file={}", file.display())
    }

    /// Connects to the Services of the plane until the handle is dropped.
    pub fn serve(self, client: Client) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let _directory = self.directory;
            while let Ok((stream, _)) = self.listener.accept().await {
                tokio::spawn(tunnel(stream, client.clone()));
            }
        }))
    }
}

/// Answers one request `CONNECT ADDRESS:PORT`, and then passes the bytes on.
async fn tunnel(mut stream: UnixStream, client: Client) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let target = head.split(' ').nth(1)?;
    let mut server = match connect(&client, target).await {
        Ok(server) => server,
        Err(error) => {
            let refusal = format!("HTTP/1.1 503 {error:#}\r\n\r\n");
            return stream.write_all(refusal.as_bytes()).await.ok();
        }
    };
    let answer = b"HTTP/1.1 200 Connected\r\n\r\n";
    stream.write_all(answer).await.ok()?;
    let passed = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
    passed.ok().map(drop)
}

/// A connection to a ready endpoint of the Service with this address and port.
async fn connect(client: &Client, target: &str) -> Result<TcpStream> {
    let (address, port) = target.rsplit_once(':').context("no port")?;
    let port: i32 = port.parse()?;
    let services: Api<Service> = Api::all(client.clone());
    let services = services.list(&ListParams::default()).await?;
    let has_address = |service: &&Service| {
        let spec = service.spec.as_ref();
        spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some(address)
    };
    let service = services
        .items
        .iter()
        .find(has_address)
        .context("no Service")?;
    let mut ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let port = ports.find(|p| p.port == port).context("no such port")?;

    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &service.namespace().unwrap());
    let of_service = format!("kubernetes.io/service-name={}", service.name_any());
    let of_service = ListParams::default().labels(&of_service);
    let mut ready = Vec::new();
    for slice in slices.list(&of_service).await? {
        let number = slice.ports.iter().flatten().find(|p| p.name == port.name);
        let Some(number) = number.and_then(|p| u16::try_from(p.port?).ok()) else {
            continue;
        };
        for endpoint in slice.endpoints.iter().flatten() {
            let is_ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
            let address = endpoint.addresses.first().and_then(|a| a.parse().ok());
            let address = address.and_then(loopback_of);
            ready.extend(
                address
                    .filter(|_| is_ready == Some(true))
                    .map(|a| (a, number)),
            );
        }
    }
    ensure!(!ready.is_empty(), "no ready endpoint");
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let endpoint = ready[turn % ready.len()];
    let connected = TcpStream::connect(endpoint).await;
    connected.with_context(|| format!("endpoint {endpoint:?}"))
}
