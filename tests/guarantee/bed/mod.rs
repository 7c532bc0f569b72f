//! A real API server and three replicas behind one URL, each with nothing but the rights of the installed service
//! account.

#[allow(dead_code)] // of the tests that share the bed, some have no use for it
pub mod call;
pub mod objects;
pub mod observer;
pub mod replica;
pub mod wait;

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use rustix::process::{Pid, Signal};
use testbed::balancer::LoadBalancer;
use testbed::plane::{self, Plane};
use testbed::proxy::FaultProxy;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OnceCell, Semaphore, SemaphorePermit};

pub use objects::Scope;
use replica::{Flags, Replica, Setup};

/// Where the server's own objects live.
pub const HOME: &str = "kusionstack-system";
const REPLICAS: usize = 3;
#[allow(dead_code)] // of the tests that share the bed, some have no use for it
/// The replica that the faults of [`Bed::with_faults_on_one`] strike.
pub const STALLED: usize = 0;
/// The API server's `--request-timeout` by default.
const USUAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Tests with a bed of their own that may run at the same time.
const OWN_BEDS: usize = 2;

/// The bed's own: each test has a runtime that ends with it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A plane with the server installed and its replicas.
pub struct Bed {
    // Dropped in this order: replicas before the API server that they talk to.
    replicas: Mutex<Vec<Option<Replica>>>,
    /// Where replicas listened that were killed; the load balancer goes on trying them, as real ones do for a while.
    gone: Mutex<Vec<SocketAddr>>,
    lb: LoadBalancer,
    pub setup: Setup,
    proxy: Option<FaultProxy>,
    /// Replicas that reach the API server through `proxy`.
    proxied: Proxied,
    _logs: tempfile::TempDir,
    plane: Home,
    _alone: Option<SemaphorePermit<'static>>,
}

/// Which replicas reach the API server through a proxy that makes requests fail on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proxied {
    None,
    /// [`STALLED`] alone.
    One,
    All,
}

enum Home {
    Shared(&'static Plane),
    Own(Box<Plane>),
}

/// GraceDelete works only for known callers; all else is tested with what a server has by default.
fn callers(plane: &Plane, flags: Flags) -> Vec<String> {
    if !flags.iter().any(|flag| flag.contains("GraceDelete")) {
        return Vec::new();
    }
    match plane.webhook_caller() {
        Some((file, name)) => {
            let file = file.display().to_string();
            vec![
                "--client-ca-file".to_owned(),
                file,
                "--client-name".to_owned(),
                name.to_owned(),
            ]
        }
        None => vec!["--trust-callers".to_owned()],
    }
}

/// Makes something on the bed's runtime.
async fn apart<T, F>(make: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    tokio::task::spawn_blocking(|| RUNTIME.block_on(make()))
        .await
        .unwrap()
}

impl Deref for Bed {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        match &self.plane {
            Home::Shared(plane) => plane,
            Home::Own(plane) => plane,
        }
    }
}

impl Bed {
    /// The bed of all tests that leave the replicas alone; each works in namespaces of its own.
    pub async fn shared() -> &'static Bed {
        Bed::shared_with(&[]).await
    }

    /// As [`Bed::shared`], with further flags: the same in all tests of a process.
    pub async fn shared_with(flags: Flags) -> &'static Bed {
        static BED: OnceCell<Bed> = OnceCell::const_new();
        let start = move || async move {
            let plane = plane::shared().await.unwrap();
            Bed::start(
                Home::Shared(plane),
                USUAL_TIMEOUT,
                None,
                Proxied::None,
                flags,
            )
            .await
        };
        BED.get_or_init(|| apart(start)).await
    }

    /// A bed for one test that kills what others need. Few at a time: each is a whole control plane.
    pub async fn own() -> Bed {
        Bed::with_request_timeout(USUAL_TIMEOUT).await
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// As [`Bed::own`], with further flags.
    pub async fn own_with(flags: Flags) -> Bed {
        Bed::alone(
            USUAL_TIMEOUT,
            Proxied::None,
            flags,
            plane::Options::default(),
        )
        .await
    }

    /// As [`Bed::own`], with another request timeout of the API server: claims without effect lapse earlier.
    pub async fn with_request_timeout(timeout: Duration) -> Bed {
        Bed::alone(timeout, Proxied::None, &[], plane::Options::default()).await
    }

    /// As [`Bed::with_request_timeout`], with [`Bed::faults`] between all replicas and the API server.
    pub async fn with_faults(timeout: Duration) -> Bed {
        Bed::alone(timeout, Proxied::All, &[], plane::Options::default()).await
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// As [`Bed::own`], with [`Bed::faults`] between [`STALLED`] alone and the API server.
    pub async fn with_faults_on_one() -> Bed {
        let options = plane::Options::default();
        Bed::alone(USUAL_TIMEOUT, Proxied::One, &[], options).await
    }

    #[allow(dead_code)] // as above
    /// As [`Bed::own`], where all controllers of kube-controller-manager act as one user.
    pub async fn with_shared_controller_account() -> Bed {
        let options = plane::Options {
            shared_controller_account: true,
            ..plane::Options::default()
        };
        Bed::alone(USUAL_TIMEOUT, Proxied::None, &[], options).await
    }

    async fn alone(
        timeout: Duration,
        proxied: Proxied,
        flags: Flags,
        options: plane::Options,
    ) -> Bed {
        static ALONE: Semaphore = Semaphore::const_new(OWN_BEDS);
        let alone = ALONE.acquire().await.unwrap();
        apart(move || async move {
            let options = plane::Options {
                apiserver_flags: vec![format!("--request-timeout={}s", timeout.as_secs())],
                ..options
            };
            let plane = Plane::start(options).await.unwrap();
            let home = Home::Own(Box::new(plane));
            Bed::start(home, timeout, Some(alone), proxied, flags).await
        })
        .await
    }

    async fn start(
        plane: Home,
        request_timeout: Duration,
        alone: Option<SemaphorePermit<'static>>,
        proxied: Proxied,
        flags: Flags,
    ) -> Bed {
        let logs = tempfile::tempdir().unwrap();
        let lb = LoadBalancer::start([]).await.unwrap();
        // Not localhost: to that the API server speaks HTTP/2, so that all reviews go through one connection to one
        // replica. To any other address it speaks HTTP/1.1, for the very reason.
        let url = format!("https://0.0.0.0:{}", lb.address().port());
        let setup = Setup {
            supervisor: PathBuf::new(),
            kubeconfig: PathBuf::new(),
            url,
            logs: logs.path().to_owned(),
            flags,
            callers: Vec::new(),
            request_timeout,
        };
        let mut bed = Bed {
            replicas: Mutex::default(),
            gone: Mutex::default(),
            lb,
            setup,
            proxy: None,
            proxied,
            _logs: logs,
            plane,
            _alone: alone,
        };
        bed.setup.callers = callers(&bed, flags);
        bed.setup.supervisor = bed.controlplane_binary().to_owned();
        let url = bed.setup.url.clone();
        let install = [&["install", "--webhook-url", &url][..], flags].concat();
        let installed = bed.operating(&install);
        assert!(installed.status.success(), "{installed:?}");
        bed.setup.kubeconfig = bed
            .kubeconfig_for_service_account(HOME, "operating")
            .await
            .unwrap();
        if proxied != Proxied::None {
            bed.proxy = Some(bed.fault_proxy().await.unwrap());
        }
        let starting = (0..REPLICAS).map(|index| bed.start_replica(index));
        for replica in futures::future::join_all(starting).await {
            bed.lb.add(replica.listen);
            bed.replicas.get_mut().push(Some(replica));
        }
        objects::until_enforcing(&bed).await;
        bed
    }

    /// Runs the command line as the administrator.
    pub fn operating(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_operating"));
        command
            .args(args)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .env_remove("KUBECONFIG");
        command.output().unwrap()
    }

    /// A client of the administrator, bound to the runtime of the test that asks.
    pub fn admin(&self) -> Client {
        self.client().unwrap()
    }

    /// The proxy through which the replicas of this bed, or one of them, and nobody else, talk to the API server.
    pub fn faults(&self) -> &FaultProxy {
        self.proxy.as_ref().unwrap()
    }

    /// Fails when a replica has ended.
    pub async fn assert_all_run(&self) {
        for replica in self.replicas.lock().await.iter_mut() {
            assert!(!replica.as_mut().unwrap().has_ended());
        }
    }

    /// A fresh namespace and a client.
    pub async fn scope(&self, prefix: &str) -> Scope {
        let namespace = self.namespace(prefix).await.unwrap();
        Scope {
            client: self.admin(),
            namespace,
        }
    }

    /// SIGKILL to a replica; the load balancer goes on offering it.
    pub async fn kill(&self, index: usize) {
        if let Some(mut replica) = self.replicas.lock().await[index].take() {
            replica.kill();
            self.gone.lock().await.push(replica.listen);
        }
    }

    /// SIGKILL to all.
    pub async fn kill_all(&self) {
        for index in 0..REPLICAS {
            self.kill(index).await;
        }
    }

    async fn start_replica(&self, index: usize) -> Replica {
        let mut setup = self.setup.clone();
        if self.proxied == Proxied::All || (self.proxied == Proxied::One && index == STALLED) {
            let through = self.kubeconfig_via(self.faults(), &setup.kubeconfig);
            setup.kubeconfig = through.unwrap();
        }
        Replica::start(&setup, &format!("replica-{index}")).await
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// SIGKILL to all but [`STALLED`], which answers alone from now on.
    pub async fn only_the_stalled_answers(&self) {
        for index in (0..REPLICAS).filter(|index| *index != STALLED) {
            self.kill(index).await;
        }
    }

    /// Starts a killed replica again.
    pub async fn restart(&self, index: usize) {
        self.kill(index).await;
        let replica = self.start_replica(index).await;
        // Another listener may have the port of a replica that is gone for good.
        for gone in std::mem::take(&mut *self.gone.lock().await) {
            self.lb.remove(gone);
        }
        self.lb.add(replica.listen);
        self.replicas.lock().await[index] = Some(replica);
    }

    /// SIGTERM to a replica, and no new connections to it, as a Service does with a Pod that ends; returns its exit
    /// code.
    pub async fn terminate(&self, index: usize) -> Option<i32> {
        let replica = self.replicas.lock().await[index].take().unwrap();
        self.lb.remove(replica.listen);
        replica.terminate().await
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// Returns the exit code of a replica that ends by itself, and the end of its log.
    pub async fn until_ended(&self, index: usize) -> (Option<i32>, String) {
        let mut replica = self.replicas.lock().await[index].take().unwrap();
        let what = format!("replica {index} to end");
        wait::until(&what, async || replica.has_ended()).await;
        self.lb.remove(replica.listen);
        let log = self.setup.logs.join(format!("replica-{index}.log"));
        (replica.exit_code(), std::fs::read_to_string(log).unwrap())
    }

    #[allow(dead_code)] // as above
    /// What a replica answers on its plain-HTTP port; `None` when it does not.
    pub async fn get(&self, index: usize, path: &str) -> Option<(u16, String)> {
        let replicas = self.replicas.lock().await;
        replicas[index].as_ref().unwrap().get(path).await
    }

    #[allow(dead_code)] // as above
    /// A signal to a replica.
    pub async fn signal(&self, index: usize, signal: Signal) {
        let replicas = self.replicas.lock().await;
        replicas[index].as_ref().unwrap().signal(signal);
    }

    #[allow(dead_code)] // as above
    /// Process id of a replica.
    pub async fn process(&self, index: usize) -> Pid {
        self.replicas.lock().await[index].as_ref().unwrap().server()
    }

    #[allow(dead_code)] // as above
    /// Where the tasks of a replica look for faults.
    pub fn faults_of(&self, index: usize) -> PathBuf {
        replica::faults(&self.setup, &format!("replica-{index}"))
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// The most memory that a replica has had resident so far, in MiB.
    pub async fn peak_mib(&self, index: usize) -> u64 {
        self.replicas.lock().await[index]
            .as_ref()
            .unwrap()
            .peak_mib()
    }

    /// The replica that holds the Lease.
    pub async fn leader(&self) -> usize {
        let leases: Api<Lease> = Api::namespaced(self.admin(), HOME);
        wait::value("a leader", async || {
            let lease = leases
                .get_opt("kusionstack-controller-manager")
                .await
                .ok()??;
            let holder = lease.spec?.holder_identity?;
            holder
                .strip_prefix("replica-")?
                .split('_')
                .next()?
                .parse()
                .ok()
        })
        .await
    }

    /// What the replicas that answer show on `/metrics`.
    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    pub async fn scrapes(&self) -> Vec<String> {
        let replicas = self.replicas.lock().await;
        let mut found = Vec::new();
        for replica in replicas.iter().flatten() {
            found.extend(replica.get("/metrics").await.map(|(_, text)| text));
        }
        found
    }

    /// Sum of a metric over the replicas that answer, and how many of them had any.
    pub async fn metric(&self, name: &str) -> Vec<f64> {
        let replicas = self.replicas.lock().await;
        let mut found = Vec::new();
        for replica in replicas.iter().flatten() {
            found.push(replica.metric(name).await.unwrap_or_default());
        }
        found
    }
}
