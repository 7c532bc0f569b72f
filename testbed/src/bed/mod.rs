//! A fleet for tests: three replicas of the server behind one URL, each with the permissions of the installed
//! service account only. Where a [`Fleet`] returns an error, a bed panics, because a panic fails the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod forged;
mod takeover;
mod users;

use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use kube::Client;
use rustix::process::{Pid, Signal};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::fleet::{Fleet, Home, Options, Proxied, REPLICAS};
use crate::plane::{self, Plane};
use crate::proxy::FaultProxy;
use crate::scope::Scope;
use crate::server;
use crate::wait;

pub use users::{right_to_bypass, rights_on_pods};

/// The replica that the faults of [`Bed::with_faults_on_one`] affect.
pub const STALLED: usize = 0;
/// The API server's `--request-timeout` by default.
const USUAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of parallel tests that have a bed of their own.
const OWN_BEDS: usize = 2;

/// Flags of the server's command line.
pub type Flags = &'static [&'static str];

/// The runtime of the beds. The runtime of a test is unsuitable because it ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A plane with the server installed and its replicas.
pub struct Bed {
    fleet: Fleet,
    _alone: Option<SemaphorePermit<'static>>,
}

/// The settings in which the beds of a test process differ.
#[derive(Clone)]
struct Variant {
    request_timeout: Duration,
    proxied: Proxied,
    flags: Flags,
    serve_flags: Flags,
    shared_controller_account: bool,
    task_faults: bool,
}

impl Default for Variant {
    fn default() -> Self {
        Variant {
            request_timeout: USUAL_TIMEOUT,
            proxied: Proxied::None,
            flags: &[],
            serve_flags: &[],
            shared_controller_account: false,
            task_faults: false,
        }
    }
}

impl Variant {
    fn options(&self, plane: &Plane) -> Options {
        let to_strings = |flags: Flags| flags.iter().map(|flag| (*flag).to_owned());
        // Endpoints of the tests listen on these addresses. Other loopback addresses stay refused.
        let endpoints: Flags = &["--endpoint-allow-cidrs", "127.0.0.1,::1"];
        let serve = to_strings(endpoints).chain(to_strings(self.serve_flags));
        Options {
            binary: server::binary(),
            other: None,
            request_timeout: self.request_timeout,
            proxied: self.proxied,
            flags: to_strings(self.flags).collect(),
            serve_flags: serve.chain(self.callers(plane)).collect(),
            task_faults: self.task_faults,
        }
    }

    /// Flags by which a replica tells the API server from other callers: GraceDelete works for known callers only.
    fn callers(&self, plane: &Plane) -> Vec<String> {
        if !self.flags.iter().any(|flag| flag.contains("GraceDelete")) {
            return Vec::new();
        }
        match plane.webhook_caller() {
            Some((file, name)) => {
                let file = file.display().to_string();
                ["--client-ca-file", &file, "--client-name", name]
                    .map(str::to_owned)
                    .to_vec()
            }
            None => vec!["--trust-callers".to_owned()],
        }
    }
}

/// Runs a future on the runtime of the beds.
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
        &self.fleet.plane
    }
}

impl Bed {
    /// The bed that all tests of a process share if they do not disturb the replicas; each test works in
    /// namespaces of its own.
    pub async fn shared() -> &'static Bed {
        Bed::shared_with(&[]).await
    }

    /// As [`Bed::shared`], with further flags, which must be equal in all tests of a process.
    pub async fn shared_with(flags: Flags) -> &'static Bed {
        static BED: OnceCell<Bed> = OnceCell::const_new();
        let start = move || async move {
            let plane = plane::shared().await.unwrap();
            let variant = Variant {
                flags,
                ..Variant::default()
            };
            let fleet = Fleet::on(Home::Shared(plane), &variant.options(plane)).await;
            Bed {
                fleet: fleet.unwrap(),
                _alone: None,
            }
        };
        BED.get_or_init(|| apart(start)).await
    }

    /// A bed for a test that disturbs the replicas. Their number is limited, because each has a control plane
    /// of its own.
    pub async fn own() -> Bed {
        Bed::alone(Variant::default()).await
    }

    /// As [`Bed::own`], with further flags.
    pub async fn own_with(flags: Flags) -> Bed {
        Bed::alone(Variant {
            flags,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own`], with further flags of `serve` alone.
    pub async fn own_serving(serve_flags: Flags) -> Bed {
        Bed::alone(Variant {
            serve_flags,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own_with`] with `flags`, and with further flags of `serve` alone.
    pub async fn own_with_serving(flags: Flags, serve_flags: Flags) -> Bed {
        Bed::alone(Variant {
            flags,
            serve_flags,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own_with`], where a test may inject faults into the tasks of replicas ([`Bed::faults_of`]).
    pub async fn with_task_faults(flags: Flags) -> Bed {
        Bed::alone(Variant {
            flags,
            task_faults: true,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own`], with another request timeout of the API server: claims without effect lapse earlier.
    pub async fn with_request_timeout(request_timeout: Duration) -> Bed {
        Bed::alone(Variant {
            request_timeout,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::with_request_timeout`], with [`Bed::faults`] between all replicas and the API server.
    pub async fn with_faults(request_timeout: Duration) -> Bed {
        Bed::alone(Variant {
            request_timeout,
            proxied: Proxied::All,
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own`], with [`Bed::faults`] between [`STALLED`] alone and the API server.
    pub async fn with_faults_on_one() -> Bed {
        Bed::alone(Variant {
            proxied: Proxied::One(STALLED),
            ..Variant::default()
        })
        .await
    }

    /// As [`Bed::own`], where all controllers of kube-controller-manager act as one user.
    pub async fn with_shared_controller_account() -> Bed {
        Bed::alone(Variant {
            shared_controller_account: true,
            ..Variant::default()
        })
        .await
    }

    async fn alone(variant: Variant) -> Bed {
        static ALONE: Semaphore = Semaphore::const_new(OWN_BEDS);
        let alone = ALONE.acquire().await.unwrap();
        apart(move || async move {
            let timeout = variant.request_timeout.as_secs();
            let plane = Plane::start(plane::Options {
                apiserver_flags: vec![format!("--request-timeout={timeout}s")],
                shared_controller_account: variant.shared_controller_account,
                ..plane::Options::default()
            });
            let plane = plane.await.unwrap();
            let options = variant.options(&plane);
            let fleet = Fleet::on(Home::Own(Box::new(plane)), &options).await;
            Bed {
                fleet: fleet.unwrap(),
                _alone: Some(alone),
            }
        })
        .await
    }

    /// Runs the command line as the administrator.
    pub fn operating(&self, args: &[&str]) -> Output {
        let mut command = Command::new(server::binary());
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

    /// Waits until the API server calls the webhooks.
    pub async fn until_enforcing(&self) {
        self.fleet.until_enforcing().await.unwrap();
    }

    /// URL of the webhooks.
    pub fn url(&self) -> &str {
        self.fleet.url()
    }

    /// The proxy through which only the replicas of this bed, or one of them, reach the API server.
    pub fn faults(&self) -> &FaultProxy {
        self.fleet.proxy().unwrap()
    }

    /// Fails if a replica has ended.
    pub async fn assert_all_run(&self) {
        for replica in self.fleet.replicas().await.iter_mut() {
            replica.as_mut().unwrap().check().unwrap();
        }
    }

    /// A new namespace and a client.
    pub async fn scope(&self, prefix: &str) -> Scope {
        let namespace = self.namespace(prefix).await.unwrap();
        Scope {
            client: self.admin(),
            namespace,
        }
    }

    /// Kills a replica (SIGKILL). It stays in the rotation of the balancer.
    pub async fn kill(&self, index: usize) {
        self.fleet.kill(index).await;
    }

    /// Kills all replicas.
    pub async fn kill_all(&self) {
        for index in 0..REPLICAS {
            self.kill(index).await;
        }
    }

    /// Kills all replicas except [`STALLED`], which answers alone from now on.
    pub async fn only_the_stalled_answers(&self) {
        for index in (0..REPLICAS).filter(|index| *index != STALLED) {
            self.kill(index).await;
        }
    }

    /// Restarts a replica. If it runs, it is killed first.
    pub async fn restart(&self, index: usize) {
        self.fleet.restart(index).await.unwrap();
    }

    /// Ends a replica by SIGTERM and sends it no new connections, as a Service does with a terminating Pod.
    /// Returns its exit code.
    pub async fn terminate(&self, index: usize) -> Option<i32> {
        let replica = self.fleet.take(index).await.unwrap();
        replica.terminate().await.unwrap()
    }

    /// Returns the exit code of a replica that ends by itself, and its log.
    pub async fn until_ended(&self, index: usize) -> (Option<i32>, String) {
        // The balancer offers the replica until it has ended.
        let description = format!("replica {index} to end");
        wait::until(&description, async || {
            let mut replicas = self.fleet.replicas().await;
            replicas[index].as_mut().unwrap().check().is_err()
        })
        .await;
        let replica = self.fleet.take(index).await.unwrap();
        let log = replica.log();
        (replica.ended().await.unwrap(), log)
    }

    /// The answer of a replica on its plain-HTTP port; `None` if it does not answer.
    pub async fn get(&self, index: usize, path: &str) -> Option<(u16, String)> {
        let replicas = self.fleet.replicas().await;
        replicas[index].as_ref().unwrap().get(path).await
    }

    /// A signal to a replica.
    pub async fn signal(&self, index: usize, signal: Signal) {
        let replicas = self.fleet.replicas().await;
        replicas[index].as_ref().unwrap().signal(signal).unwrap();
    }

    /// Process id of a replica.
    pub async fn process(&self, index: usize) -> Pid {
        let replicas = self.fleet.replicas().await;
        let pid = replicas[index].as_ref().unwrap().pid().unwrap();
        Pid::from_raw(pid.try_into().unwrap()).unwrap()
    }

    /// Maximum resident memory of a replica so far, in MiB.
    pub async fn peak_mib(&self, index: usize) -> u64 {
        let replicas = self.fleet.replicas().await;
        replicas[index].as_ref().unwrap().peak_mib().unwrap()
    }

    /// The directory in which the tasks of a replica look for faults. The bed must be of [`Bed::with_task_faults`].
    pub fn faults_of(&self, index: usize) -> PathBuf {
        let setup = self.fleet.setup(index);
        setup.task_faults.clone().unwrap()
    }

    /// The log of a replica.
    pub fn log_of(&self, index: usize) -> String {
        std::fs::read_to_string(self.fleet.setup(index).log()).unwrap()
    }

    /// The replica that holds the Lease.
    pub async fn leader(&self) -> usize {
        wait::value("a leader", async || self.fleet.leader().await.ok()).await
    }

    /// The metrics of the replicas that answer.
    pub async fn scrapes(&self) -> Vec<String> {
        let replicas = self.fleet.replicas().await;
        let mut found = Vec::new();
        for replica in replicas.iter().flatten() {
            found.extend(replica.get("/metrics").await.map(|(_, text)| text));
        }
        found
    }

    /// A metric of each replica that was not killed, summed over its labels; 0 when the replica does not answer.
    pub async fn metric(&self, name: &str) -> Vec<f64> {
        let replicas = self.fleet.replicas().await;
        let mut found = Vec::new();
        for replica in replicas.iter().flatten() {
            let metrics = replica.metrics().await.unwrap_or_default();
            found.push(metrics.sum(name));
        }
        found
    }
}
