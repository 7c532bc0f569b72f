//! `cargo xtask soak`: a tenant does random operations of the whole API, while replicas die and watches
//! stall.

mod act;
mod faults;
mod ledgers;
mod ops;
mod rest;
mod tenant;
mod unrest;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::build::build;
use act::{Actor, Outcome, list};
use faults::Pace;
use ops::{Kind, Operation};
use testbed::fleet::{Fleet, Options, Proxied, REPLICAS};
use testbed::observer::judge::{Violation, judge};
use testbed::observer::{Fact, Observer, requests_for, workload_kinds};
use testbed::plane;
use testbed::wait;

const NODES: usize = 4;
/// Number of Pods of an owner at the beginning.
const SIZE: u64 = 5;
/// Maximum number of requests in a printed violation.
const REQUESTS: usize = 60;
/// Maximum number of printed violations.
const SHOWN: usize = 5;
/// Timeout for all Pods to be available at the beginning.
const BEGIN: Duration = Duration::from_secs(300);

/// Flags of `soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of operations
    #[arg(long, default_value_t = 10_000)]
    operations: usize,
    /// Seed of the sequence of operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations at the same time
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Seconds in which all objects must come to rest; controllers back off for up to 1,000 s
    #[arg(long, default_value_t = 1_200)]
    rest: u64,
    /// Use this binary of the server instead of building one
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
    /// Another build of the server. Instead of kills of the leader, replicas change between both builds, one
    /// after the other: rolling updates back and forth, each with its `operating install`
    #[arg(long, value_name = "PATH")]
    other_bin: Option<PathBuf>,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of operations.
    pub operations: usize,
    /// Seed of their sequence.
    pub seed: u64,
    /// Number of parallel operations.
    pub concurrency: usize,
    /// Pause before each operation.
    pub pause: Duration,
    /// Interval of kills of the leader; the watches stall twice as often.
    pub kill: Duration,
    /// Duration of a stall of the watches.
    pub stalled: Duration,
    /// Timeout for all objects to come to rest at the end.
    pub rest: Duration,
}

impl Plan {
    /// The plan of the tests: a minute, with every fault once.
    #[must_use]
    pub fn brief(seed: u64) -> Self {
        Self {
            operations: 600,
            seed,
            concurrency: 6,
            pause: Duration::from_millis(400),
            kill: Duration::from_secs(20),
            stalled: Duration::from_secs(8),
            // Longer than the 5 minutes for which a ReplicaSet waits for a creation or a deletion that it
            // has missed.
            rest: Duration::from_secs(420),
        }
    }
}

/// The results of the soak.
#[derive(Debug)]
pub struct Report {
    /// Operations by kind and outcome.
    counts: BTreeMap<Kind, BTreeMap<Outcome, usize>>,
    /// The violations, each with its history and the requests behind it.
    pub violations: Vec<String>,
    /// The objects that did not come to rest.
    pub unrest: Option<String>,
    /// Time until all objects were at rest.
    rested: Duration,
    /// The observations of the ledgers.
    ledgers: ledgers::Seen,
    /// Starts of replicas, and how many of these brought another build.
    starts: (usize, usize),
}

/// Runs the soak and prints its results.
///
/// # Errors
/// If a rule was broken, an object did not come to rest, or the environment could not be started.
pub async fn run(args: Args) -> Result<()> {
    let binary = match &args.bin {
        Some(path) => path.canonicalize()?,
        None => build(false).await?,
    };
    let other = args.other_bin.as_ref().map(|path| path.canonicalize());
    let report = play(
        binary,
        other.transpose()?,
        Plan {
            operations: args.operations,
            seed: args.seed,
            concurrency: args.concurrency.max(1),
            pause: Duration::from_millis(200),
            kill: Duration::from_secs(60),
            stalled: Duration::from_secs(15),
            rest: Duration::from_secs(args.rest),
        },
    )
    .await?;
    report.print();
    report.check()
}

impl Report {
    /// Prints counts, violations and the objects that are not at rest.
    pub fn print(&self) {
        println!(
            "\n{:<24} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "OPERATION", "ADMITTED", "DENIED", "VOID", "FAILED", "IDLE"
        );
        for (kind, outcomes) in &self.counts {
            let of = |outcome| outcomes.get(&outcome).copied().unwrap_or_default();
            println!(
                "{:<24} {:>8} {:>8} {:>8} {:>8} {:>8}",
                format!("{kind:?}"),
                of(Outcome::Admitted),
                of(Outcome::Denied),
                of(Outcome::Void),
                of(Outcome::Failed),
                of(Outcome::Idle)
            );
        }
        for violation in self.violations.iter().take(SHOWN) {
            println!("\n{violation}");
        }
        println!("\n{} violations", self.violations.len());
        for fault in self.ledgers.faults.iter().take(SHOWN) {
            println!("{fault}");
        }
        let stayed = self.ledgers.stayed.iter();
        let stayed: Vec<_> = stayed
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!(
            "{} writes of ledgers, {} faults in them; fields that stayed: {}",
            self.ledgers.writes,
            self.ledgers.faults.len(),
            stayed.join(", ")
        );
        let (starts, changes) = self.starts;
        println!("{starts} starts of replicas, {changes} changes of build");
        match &self.unrest {
            Some(unrest) => println!("{unrest}"),
            None => println!("at rest after {} s", self.rested.as_secs()),
        }
    }

    /// Fails if the guarantee was broken.
    ///
    /// # Errors
    /// The number of violations, or the objects that are not at rest.
    pub fn check(&self) -> Result<()> {
        if !self.violations.is_empty() {
            bail!("{} requests broke a rule", self.violations.len());
        }
        if let Some(fault) = self.ledgers.faults.first() {
            bail!("{fault}");
        }
        match &self.unrest {
            Some(unrest) => bail!("{unrest}"),
            None => Ok(()),
        }
    }
}

/// Runs the soak on its own control plane, with three replicas of the server. If there is another build,
/// replicas change between both.
///
/// # Errors
/// If the environment could not be started. Violations are in the report.
pub async fn play(binary: PathBuf, other: Option<PathBuf>, plan: Plan) -> Result<Report> {
    eprintln!("starting a control plane and three replicas");
    let rolls = other.is_some();
    let fleet = Fleet::start(
        &Options {
            binary,
            other,
            request_timeout: Duration::from_secs(30),
            proxied: Proxied::One(REPLICAS - 1),
            flags: Vec::new(),
            serve_flags: Vec::new(),
            task_faults: false,
        },
        plane::Options {
            nodes: NODES,
            ..plane::Options::default()
        },
    )
    .await?;
    let namespace = fleet.plane.namespace("soak").await?;
    let admin = fleet.client()?;
    let actor = Actor {
        client: tenant::enrol(&fleet, &namespace).await?,
        admin: admin.clone(),
        namespace: namespace.clone(),
        nodes: NODES,
    };
    furnish(&fleet, &actor).await?;
    let observer = Observer::of_budgets(&admin, &namespace, &workload_kinds()).await?;

    let counts = Mutex::new(BTreeMap::new());
    let ledgers = Arc::default();
    let following = ledgers::follow(admin.clone(), namespace.clone(), Arc::clone(&ledgers));
    let following = AbortOnDropHandle::new(tokio::spawn(following));
    disturb(&fleet, &actor, &plan, rolls, &counts).await?;
    fleet.proxy()?.end_fault();
    for index in 0..REPLICAS {
        fleet.revive(index).await?;
    }
    eprintln!("waiting for everything to come to rest");
    let resting = rest::come_to_rest(&fleet, &actor, plan.rest);
    let rested = tokio::select! {
        rested = resting => rested,
        result = faults::end_overdue_pods(&admin, &namespace) => result.map(|()| Duration::ZERO),
        result = faults::revive_controllers(&fleet) => result.map(|()| Duration::ZERO),
    };
    fleet.check().await?;

    let violations = judge_rules(&fleet, &namespace, &observer, &plan).await?;
    let (rested, unrest) = match rested {
        Ok(rested) => (rested, None),
        Err(error) => (plan.rest, Some(format!("{error:#}"))),
    };
    let starts = fleet.starts_and_changes();
    fleet.stop().await;
    drop(following);
    let ledgers = std::mem::take(&mut *ledgers::lock(&ledgers));
    Ok(Report {
        counts: counts.into_inner().unwrap_or_else(PoisonError::into_inner),
        violations,
        unrest,
        rested,
        ledgers,
        starts,
    })
}

/// Carries out all operations while faults strike. With `rolls`, replicas change their build; otherwise leaders are
/// killed.
async fn disturb(
    fleet: &Fleet,
    actor: &Actor,
    plan: &Plan,
    rolls: bool,
    counts: &Mutex<Counts>,
) -> Result<()> {
    let pace = Pace {
        kill: plan.kill,
        roll: plan.kill / 3,
        stall: plan.kill / 2,
        stalled: plan.stalled,
    };
    let kills = async {
        match rolls {
            true => faults::roll(fleet, pace).await,
            false => faults::kill_leaders(fleet, pace).await,
        }
    };
    tokio::select! {
        result = operate(fleet, actor, plan, counts) => result,
        result = kills => result.context("killing replicas"),
        result = faults::stall_watches(fleet, pace) => result.context("stalling watches"),
        result = faults::end_overdue_pods(&actor.admin, &actor.namespace) => result,
        result = faults::revive_controllers(fleet) => result,
    }
}

/// The violations of all rules by the changes that the observer has seen.
async fn judge_rules(
    fleet: &Fleet,
    namespace: &str,
    observer: &Observer<Fact>,
    plan: &Plan,
) -> Result<Vec<String>> {
    let changes = observer.changes().await?;
    eprintln!("judging {} changes", changes.len());
    let mut violations = Vec::new();
    // A replica may not know the changes during a stall of its watches.
    let leniency = plan.stalled + Duration::from_secs(15);
    for rule in tenant::rules() {
        let judgement = judge(&changes, &rule, leniency);
        eprintln!(
            "rule {}: worst {}, losses {:?}",
            rule.name, judgement.worst, judgement.losses
        );
        for violation in judgement.violations {
            let shown = violations.len() < SHOWN;
            violations.push(tell(fleet, namespace, &violation, shown)?);
        }
    }
    Ok(violations)
}

/// Describes a violation, with the requests that caused it if `shown`.
fn tell(fleet: &Fleet, namespace: &str, violation: &Violation, shown: bool) -> Result<String> {
    if !shown {
        return Ok(violation.to_string());
    }
    let log = fleet.plane.audit_log();
    let requests = requests_for(&log, namespace, &violation.pods, REQUESTS)?;
    Ok(format!(
        "{violation}  requests:\n    {}",
        requests.join("\n    ")
    ))
}

/// Creates the owners, their Pods and the rules, and waits until all Pods are available.
async fn furnish(fleet: &Fleet, actor: &Actor) -> Result<()> {
    for (kind, name) in tenant::OWNERS {
        let api: Api<DynamicObject> =
            Api::namespaced_with(actor.client.clone(), &actor.namespace, &tenant::kind(kind));
        let object = serde_json::from_value(tenant::owner(kind, name, SIZE))?;
        let created = api.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("creating {kind} {name}"))?;
    }
    for index in 0..usize::try_from(SIZE)? {
        actor.create_bare(1_000_000 + index).await?;
    }
    // The Pods of every owner except the DaemonSet, the Pods without an owner, and one Pod of the DaemonSet
    // on each node.
    let expected = usize::try_from(SIZE)? * tenant::OWNERS.len() + NODES;
    wait::within("the Pods of the soak", BEGIN, || async {
        let pods = list(&actor.admin, &actor.namespace).await?;
        let serving = pods
            .iter()
            .filter(|p| testbed::observer::Pod::read(p).serves());
        let serving = serving.count();
        if serving < expected {
            bail!("{serving} of {expected} Pods are available");
        }
        Ok(pods.iter().all(|p| !p.name_any().is_empty()))
    })
    .await?;
    for rule in tenant::rules() {
        fleet.rule(&actor.namespace, &rule).await?;
    }
    Ok(())
}

type Counts = BTreeMap<Kind, BTreeMap<Outcome, usize>>;

/// Carries out all operations, and restarts the API server in the middle.
async fn operate(fleet: &Fleet, actor: &Actor, plan: &Plan, counts: &Mutex<Counts>) -> Result<()> {
    let all = ops::sequence(plan.seed, plan.operations);
    let start = Instant::now();
    let known: Mutex<Vec<DynamicObject>> = Mutex::default();
    let done = AtomicUsize::new(0);
    let carry_out_all = async {
        let operations = all.iter().map(async |operation| {
            sleep(plan.pause).await;
            let pods = known.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let outcome = actor.carry_out(*operation, &pods).await;
            note(counts, *operation, outcome);
            if outcome == Outcome::Failed {
                // Clients back off. Without a pause, the restart of the API server would use up a hundred
                // operations.
                sleep(Duration::from_secs(1)).await;
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        futures::stream::iter(operations)
            .buffer_unordered(plan.concurrency)
            .collect::<()>()
            .await;
    };
    let restart = async {
        while done.load(Ordering::Relaxed) < all.len() / 2 {
            sleep(Duration::from_millis(200)).await;
        }
        faults::restart_apiserver(fleet).await
    };
    let operations_and_restart = async { futures::join!(carry_out_all, restart).1 };
    let refresh_pods = async {
        loop {
            if let Ok(pods) = list(&actor.admin, &actor.namespace).await {
                *known.lock().unwrap_or_else(PoisonError::into_inner) = pods;
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    let progress = async {
        loop {
            sleep(Duration::from_secs(15)).await;
            let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let total = |outcome| -> usize {
                let of = |outcomes: &BTreeMap<_, _>| outcomes.get(&outcome).copied();
                counts.values().filter_map(of).sum()
            };
            eprintln!(
                "{:>4} s: {} admitted, {} denied, {} void, {} failed, {} idle",
                start.elapsed().as_secs(),
                total(Outcome::Admitted),
                total(Outcome::Denied),
                total(Outcome::Void),
                total(Outcome::Failed),
                total(Outcome::Idle)
            );
        }
    };
    tokio::select! {
        result = operations_and_restart => result,
        () = refresh_pods => Ok(()),
        () = progress => Ok(()),
    }
}

fn note(counts: &Mutex<Counts>, operation: Operation, outcome: Outcome) {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    let outcomes = counts.entry(operation.kind).or_default();
    *outcomes.entry(outcome).or_default() += 1;
}
