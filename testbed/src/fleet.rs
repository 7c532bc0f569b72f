//! A control plane with the server installed, and three replicas of the server behind a load balancer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;

use crate::balancer::LoadBalancer;
use crate::observer::judge::{Limit, Rule};
use crate::observer::resource;
use crate::plane::{self, Plane};
use crate::proxy::FaultProxy;
use crate::replica::{Replica, Setup};
use crate::{keys, wait};

/// Namespace of the server's own objects.
pub const HOME: &str = "kusionstack-system";
/// The service account of the server in its namespace.
pub const SERVICE_ACCOUNT: &str = "operating";
/// Number of replicas of the server.
pub const REPLICAS: usize = 3;
/// Annotation of a CRD: its revision. A build does not replace a CRD of a higher revision.
const CRD_REVISION: &str = "operating.kusionstack.io/crd-revision";
const LEASE: &str = "kusionstack-controller-manager";
/// Timeout of every wait, long enough for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings of a fleet.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's binary.
    pub binary: PathBuf,
    /// Another build of the server, for [`Fleet::change_build`].
    pub other: Option<PathBuf>,
    /// `--request-timeout` of API server and replicas: claims without effect lapse soon after.
    pub request_timeout: Duration,
    /// Which replicas reach the API server through [`Fleet::proxy`].
    pub proxied: Proxied,
    /// Further flags of `install` and `serve`.
    pub flags: Vec<String>,
    /// Further flags of `serve` alone.
    pub serve_flags: Vec<String>,
    /// Whether tests may inject faults into the tasks of replicas ([`Setup::task_faults`]).
    pub task_faults: bool,
}

/// Which replicas reach the API server through a proxy that injects faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxied {
    /// None; there is no proxy.
    None,
    /// The replica of this index.
    One(usize),
    /// All.
    All,
}

impl Proxied {
    fn has(self, replica: usize) -> bool {
        match self {
            Proxied::None => false,
            Proxied::One(index) => index == replica,
            Proxied::All => true,
        }
    }
}

/// The plane of a fleet, shared or its own.
#[derive(Debug)]
pub enum Home {
    /// The plane of all tests of this process.
    Shared(&'static Plane),
    /// A plane that ends with the fleet.
    Own(Box<Plane>),
}

impl Deref for Home {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        match self {
            Home::Shared(plane) => plane,
            Home::Own(plane) => plane,
        }
    }
}

/// A running fleet. Dropping it ends all its parts.
pub struct Fleet {
    // Dropped in this order: the replicas end before the API server, to which they talk.
    replicas: Mutex<Vec<Option<Replica>>>,
    /// Addresses of killed replicas. The balancer still tries these addresses for a while, as real balancers
    /// do.
    gone: Mutex<Vec<SocketAddr>>,
    balancer: LoadBalancer,
    proxy: Option<FaultProxy>,
    setups: Vec<Setup>,
    url: String,
    builds: Vec<PathBuf>,
    /// Number of build changes of each replica.
    changes: [AtomicUsize; REPLICAS],
    starts: AtomicUsize,
    /// Held during a restart of the API server, and by code that needs the API server to run.
    pub maintenance: Mutex<()>,
    /// The control plane.
    pub plane: Home,
}

impl Fleet {
    /// Starts a fleet on its own plane, and waits until rules are enforced.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(options: &Options, plane: plane::Options) -> Result<Self> {
        let timeout = options.request_timeout.as_secs();
        let plane = Plane::start(plane::Options {
            apiserver_flags: vec![format!("--request-timeout={timeout}s")],
            ..plane
        });
        Self::on(Home::Own(Box::new(plane.await?)), options).await
    }

    /// As [`Fleet::start`], on a running plane.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn on(plane: Home, options: &Options) -> Result<Self> {
        let balancer = LoadBalancer::start([]).await?;
        // Not localhost: to localhost the API server speaks HTTP/2 and sends all reviews to one replica through one
        // connection. To any other address the API server speaks HTTP/1.1.
        let url = format!("https://0.0.0.0:{}", balancer.address().port());
        install(&options.binary, plane.kubeconfig(), &url, &options.flags).await?;
        let own = plane
            .kubeconfig_for_service_account(HOME, SERVICE_ACCOUNT)
            .await?;
        let proxy = match options.proxied {
            Proxied::None => None,
            _ => Some(plane.fault_proxy().await?),
        };
        let mut setups = Vec::new();
        for index in 0..REPLICAS {
            let proxied = proxy.as_ref().filter(|_| options.proxied.has(index));
            let kubeconfig = match proxied {
                Some(proxy) => plane.kubeconfig_via(proxy, &own)?,
                None => own.clone(),
            };
            let timeout = format!("{}s", options.request_timeout.as_secs());
            let mut flags: Vec<OsString> = vec!["--kubeconfig".into(), kubeconfig.into()];
            flags.extend(["--webhook-url", &url, "--request-timeout", &timeout].map(Into::into));
            flags.extend(options.flags.iter().map(Into::into));
            flags.extend(options.serve_flags.iter().map(Into::into));
            let name = format!("replica-{index}");
            let logs = plane.logs();
            setups.push(Setup {
                supervisor: plane.controlplane_binary().to_owned(),
                flags,
                task_faults: (options.task_faults).then(|| logs.join(format!("{name}.faults"))),
                name,
                logs,
            });
        }
        let starting = setups
            .iter()
            .map(|setup| Replica::start(setup, &options.binary));
        let mut replicas = Vec::new();
        for replica in futures::future::join_all(starting).await {
            let replica = replica?;
            balancer.add(replica.listen);
            replicas.push(Some(replica));
        }
        let fleet = Self {
            replicas: Mutex::new(replicas),
            gone: Mutex::default(),
            balancer,
            proxy,
            setups,
            url,
            builds: [Some(options.binary.clone()), options.other.clone()]
                .into_iter()
                .flatten()
                .collect(),
            changes: Default::default(),
            starts: AtomicUsize::new(REPLICAS),
            maintenance: Mutex::default(),
            plane,
        };
        fleet.until_enforcing().await?;
        Ok(fleet)
    }

    /// A client of the administrator.
    ///
    /// # Errors
    /// As [`Plane::client`].
    pub fn client(&self) -> Result<Client> {
        self.plane.client()
    }

    /// URL of the webhooks: that of the balancer.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The settings with which a replica is started.
    #[must_use]
    pub fn setup(&self, index: usize) -> &Setup {
        &self.setups[index]
    }

    /// The proxy through which only the replicas of [`Options::proxied`] reach the API server.
    ///
    /// # Errors
    /// When the fleet was started without.
    pub fn proxy(&self) -> Result<&FaultProxy> {
        let proxy = self.proxy.as_ref();
        proxy.context("the fleet was started without a proxy")
    }

    /// The replicas; `None` for killed or taken ones.
    pub async fn replicas(&self) -> MutexGuard<'_, Vec<Option<Replica>>> {
        self.replicas.lock().await
    }

    /// Takes a running replica out of the fleet, and out of the rotation of the balancer.
    ///
    /// # Errors
    /// When the replica was killed or taken before.
    pub async fn take(&self, index: usize) -> Result<Replica> {
        let replica = self.replicas.lock().await[index].take();
        let replica = replica.with_context(|| format!("replica {index} does not run"))?;
        self.balancer.remove(replica.listen);
        Ok(replica)
    }

    /// Kills a replica. It stays in the rotation of the balancer.
    pub async fn kill(&self, index: usize) {
        if let Some(replica) = self.replicas.lock().await[index].take() {
            self.gone.lock().await.push(replica.listen);
        }
    }

    /// Restarts a replica. If it runs, it is killed first.
    ///
    /// # Errors
    /// When the replica does not become ready.
    pub async fn restart(&self, index: usize) -> Result<()> {
        self.kill(index).await;
        let build = self.builds[self.changes(index) % self.builds.len()].clone();
        let replica = Replica::start(&self.setups[index], &build).await?;
        self.starts.fetch_add(1, Ordering::Relaxed);
        // Another listener may have the port of a replica that is gone for good.
        for address in std::mem::take(&mut *self.gone.lock().await) {
            self.balancer.remove(address);
        }
        self.balancer.add(replica.listen);
        self.replicas.lock().await[index] = Some(replica);
        Ok(())
    }

    /// Kills a replica and starts it with the next build, after that build has installed its objects, as a
    /// rolling update does.
    ///
    /// # Errors
    /// When the replica does not become ready, or the build has taken back a CRD of a higher revision.
    pub async fn change_build(&self, index: usize) -> Result<()> {
        let _stays = self.maintenance.lock().await;
        let turn = self.changes[index].fetch_add(1, Ordering::Relaxed) + 1;
        let build = &self.builds[turn % self.builds.len()];
        let before = self.crd_revisions().await?;
        install(build, self.plane.kubeconfig(), &self.url, &[]).await?;
        let after = self.crd_revisions().await?;
        for (name, revision) in before {
            let now = after.get(&name).copied().unwrap_or_default();
            if now < revision {
                let build = build.display();
                bail!("{build} took the CRD {name} back from revision {revision} to {now}");
            }
        }
        self.restart(index).await
    }

    /// Number of build changes of a replica.
    fn changes(&self, index: usize) -> usize {
        self.changes[index].load(Ordering::Relaxed)
    }

    /// Starts of replicas so far, and how many of these brought another build.
    #[must_use]
    pub fn starts_and_changes(&self) -> (usize, usize) {
        let changes = (0..REPLICAS).map(|index| self.changes(index)).sum();
        (self.starts.load(Ordering::Relaxed), changes)
    }

    /// Revision of each of the server's CRDs, by name.
    async fn crd_revisions(&self) -> Result<BTreeMap<String, u32>> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client()?);
        let mut list = api.list_metadata(&ListParams::default()).await;
        // The API server may be restarting.
        for _ in 0..60 {
            if list.is_ok() {
                break;
            }
            sleep(Duration::from_secs(1)).await;
            list = api.list_metadata(&ListParams::default()).await;
        }
        let all = list?.items.into_iter();
        let revisions = all.map(|crd| {
            let revision = crd.annotations().get(CRD_REVISION);
            let revision = revision.and_then(|r| r.parse().ok());
            (crd.name_any(), revision.unwrap_or_default())
        });
        Ok(revisions.collect())
    }

    /// Starts a replica unless it runs.
    ///
    /// # Errors
    /// As [`Fleet::restart`].
    pub async fn revive(&self, index: usize) -> Result<()> {
        let runs = self.replicas.lock().await[index].is_some();
        if runs {
            Ok(())
        } else {
            self.restart(index).await
        }
    }

    /// The replica that holds the Lease.
    ///
    /// # Errors
    /// When nobody holds it, or the API server does not answer.
    pub async fn leader(&self) -> Result<usize> {
        let leases: Api<Lease> = Api::namespaced(self.client()?, HOME);
        let lease = leases.get(LEASE).await?;
        let holder = lease.spec.and_then(|s| s.holder_identity);
        let holder = holder.context("no replica holds the Lease")?;
        let index = holder
            .strip_prefix("replica-")
            .and_then(|rest| rest.split('_').next());
        index
            .and_then(|index| index.parse().ok())
            .with_context(|| format!("the holder {holder} is no replica"))
    }

    /// Fails if a replica ended by itself.
    ///
    /// # Errors
    /// The end of its log.
    pub async fn check(&self) -> Result<()> {
        for replica in self.replicas.lock().await.iter_mut().flatten() {
            replica.check()?;
        }
        Ok(())
    }

    /// Creates a PodTransitionRule and waits until the leader has observed it.
    ///
    /// # Errors
    /// When the API server refuses the rule, or nobody observes it.
    pub async fn rule(&self, namespace: &str, rule: &Rule) -> Result<()> {
        let api = rules(self.client()?, namespace);
        let object = object(rule)?;
        api.create(&PostParams::default(), &object).await?;
        wait::within("the rule to be observed", PATIENCE, || async {
            let rule = api.get(&rule.name).await?;
            Ok(rule.data["status"]["observedGeneration"] == 1)
        })
        .await
    }

    /// Number of claims in all rules of a namespace.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn claims(&self, namespace: &str) -> Result<usize> {
        let list = rules(self.client()?, namespace)
            .list(&ListParams::default())
            .await?;
        let claims = list.items.iter().map(|rule| {
            let claims = &rule.data["status"]["ledger"]["claims"];
            claims.as_array().map_or(0, Vec::len)
        });
        Ok(claims.sum())
    }

    /// Ends all parts in order.
    pub async fn stop(self) {
        drop(self.replicas);
        drop(self.proxy);
        if let Home::Own(plane) = self.plane {
            plane.stop().await;
        }
    }

    /// Waits until the API server calls the webhooks: Pods get the readiness gate, and a rule can be created.
    ///
    /// # Errors
    /// When that does not come to pass in time.
    pub async fn until_enforcing(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client()?, "default");
        let probe: Pod = serde_json::from_value(json!({
            "metadata": {"name": "probe", "labels": {keys::CONTROL: keys::CONTROL_VALUE}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        }))?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        wait::within("the webhooks to be called", PATIENCE, || async {
            let made = pods.create(&dry_run, &probe).await?;
            Ok(made.spec.is_some_and(|s| s.readiness_gates.is_some()))
        })
        .await?;
        let rules = rules(self.client()?, "default");
        let rule = object(&Rule::over("probe", "app", "probe", Limit::Count(1)))?;
        wait::within("a rule to be accepted", PATIENCE, || async {
            rules.create(&dry_run, &rule).await?;
            Ok(true)
        })
        .await
    }
}

fn object(rule: &Rule) -> Result<DynamicObject> {
    let limit = match rule.limit {
        Limit::Count(count) => json!(count),
        Limit::Percent(percent) => json!(format!("{percent}%")),
    };
    Ok(serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "PodTransitionRule",
        "metadata": {"name": rule.name},
        "spec": {
            "selector": {"matchLabels": rule.selector},
            "rules": [{"name": "availability", "availablePolicy": {"maxUnavailableValue": limit}}],
        },
    }))?)
}

/// The PodTransitionRules of a namespace.
pub fn rules(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = resource("apps.kusionstack.io", "v1alpha1", "PodTransitionRule");
    Api::namespaced_with(client, namespace, &kind)
}

async fn install(binary: &Path, kubeconfig: &Path, url: &str, flags: &[String]) -> Result<()> {
    let output = Command::new(binary)
        .args(["install", "--webhook-url", url, "--kubeconfig"])
        .arg(kubeconfig)
        .args(flags)
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("starting {}", binary.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("`operating install` failed: {text}");
    }
    Ok(())
}
