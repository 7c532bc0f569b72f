//! `cargo xtask matrix`: every kind of disruption to every kind of owner, under a rule of one.

mod cell;
mod controllers;
mod owners;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use kube::Api;
use kube::api::PostParams;
use kube::core::DynamicObject;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::build::build;
use cell::{Cell, LANE_NODES, ready_lane};
use testbed::fleet::{Fleet, Options, Proxied};
use testbed::observer::judge::{Judgement, Limit, Rule, judge};
use testbed::observer::{Observer, requests_for, resource, workload_kinds};
use testbed::plane;
use testbed::wait;

pub use cell::Verb;
pub use owners::Owner;

/// Duration of a cell whose end the rule forbids: nothing more happens after this time.
const HELD: Duration = Duration::from_secs(45);
/// Time for which the server may not know a changed number of replicas.
const LENIENCY: Duration = Duration::from_secs(5);
/// Maximum number of requests in a printed violation.
const REQUESTS: usize = 15;

/// Flags of `matrix`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these cells: `OWNER/VERB`, `OWNER` or `/VERB`; several with commas
    #[arg(long, value_delimiter = ',', value_name = "CELLS")]
    only: Vec<String>,
    /// Minutes after which no further cell begins; the most significant cells come first
    #[arg(long)]
    minutes: Option<u64>,
    /// Cells that run at the same time
    #[arg(long, default_value_t = 4)]
    lanes: usize,
    /// Seconds after which a cell counts as one that does not end
    #[arg(long, default_value_t = 240)]
    bound: u64,
    /// Use this binary of the server instead of building one
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The cells, in the order in which they begin.
    pub cells: Vec<(Owner, Verb)>,
    /// Number of parallel cells.
    pub lanes: usize,
    /// Time after which a cell counts as not ending.
    pub bound: Duration,
    /// Time after which no cell begins.
    pub until: Option<Duration>,
}

/// The result of a cell.
#[derive(Debug)]
pub struct Row {
    /// The kind of owner.
    pub owner: Owner,
    /// The verb.
    pub verb: Verb,
    /// The maximum number of missing Pods, the limit, and the violations.
    pub judgement: Judgement,
    /// Whether the verb's effects were complete in time.
    pub ended: bool,
    /// Requests that were refused with 429.
    pub denied: usize,
    /// Duration of the cell.
    pub took: Duration,
    /// The state of the Pods if the cell did not end, or an error.
    pub remark: String,
    /// The violations with the requests behind them.
    pub violations: Vec<String>,
}

impl Row {
    /// Whether the rule forbids that the cell ends: `Recreate` deletes all Pods before it creates one.
    #[must_use]
    pub fn is_held(&self) -> bool {
        held(self.owner, self.verb)
    }

    /// Whether the guarantee was broken.
    #[must_use]
    pub fn failed(&self) -> bool {
        let too_many = self.judgement.worst > self.judgement.limit && self.verb != Verb::ScaleUp;
        let stuck = !self.ended && !self.is_held();
        let unplayed = self.took.is_zero();
        too_many || stuck || unplayed || !self.judgement.violations.is_empty()
    }
}

fn held(owner: Owner, verb: Verb) -> bool {
    owner == Owner::DeploymentRecreate && verb.rolls_out()
}

/// The most significant cells, at least one for each owner.
#[must_use]
pub fn brief() -> Vec<(Owner, Verb)> {
    vec![
        (Owner::Deployment, Verb::Rollout),
        (Owner::DeploymentRecreate, Verb::Rollout),
        (Owner::DeploymentSurge0, Verb::Rollout),
        (Owner::Rollout, Verb::Rollout),
        (Owner::StatefulSetParallel, Verb::Both),
        (Owner::Scaled, Verb::DeleteStorm),
        (Owner::DaemonSet, Verb::DeleteStorm),
        (Owner::DeploymentSurge100, Verb::ScaleUp),
        (Owner::CollaSet, Verb::Rollout),
        (Owner::ReplicationController, Verb::EvictionStorm),
        (Owner::Bare, Verb::EvictionStorm),
        (Owner::Plain, Verb::DeleteStorm),
        (Owner::Job, Verb::EvictionStorm),
        (Owner::StatefulSetOrdered, Verb::Drain),
    ]
}

/// All cells, the most significant first.
#[must_use]
pub fn list_cells() -> Vec<(Owner, Verb)> {
    let mut cells = brief();
    for owner in Owner::ALL {
        for verb in Verb::ALL {
            if !cells.contains(&(owner, verb)) {
                cells.push((owner, verb));
            }
        }
    }
    cells
}

/// Plays the matrix and prints the table.
///
/// # Errors
/// If a cell broke the rule or did not end, or the environment could not be started.
pub async fn run(args: Args) -> Result<()> {
    let is_selected = |(owner, verb): &(Owner, Verb)| {
        args.only.is_empty()
            || args.only.iter().any(|only| {
                let (o, v) = only.split_once('/').unwrap_or((only, ""));
                (o.is_empty() || o == owner.name()) && (v.is_empty() || v == verb.name())
            })
    };
    let cells: Vec<_> = list_cells().into_iter().filter(is_selected).collect();
    if cells.is_empty() {
        let owners: Vec<_> = Owner::ALL.iter().map(|o| o.name()).collect();
        let verbs: Vec<_> = Verb::ALL.iter().map(|v| v.name()).collect();
        bail!(
            "--only fits no cell; the owners are {}; the verbs are {}",
            owners.join(", "),
            verbs.join(", ")
        );
    }
    let binary = match &args.bin {
        Some(path) => path.canonicalize()?,
        None => build(false).await?,
    };
    let plan = Plan {
        cells,
        lanes: args.lanes.max(1),
        bound: Duration::from_secs(args.bound),
        until: args
            .minutes
            .map(|minutes| Duration::from_secs(minutes * 60)),
    };
    let rows = play(binary, &plan).await?;
    print(&rows);
    let failed = rows.iter().filter(|row| row.failed()).count();
    if failed > 0 {
        bail!("{failed} of {} cells failed", rows.len());
    }
    Ok(())
}

/// Prints the violations, then the table.
pub fn print(rows: &[Row]) {
    for row in rows.iter().filter(|row| !row.violations.is_empty()) {
        println!("\n{}/{}", row.owner, row.verb.name());
        for violation in row.violations.iter().take(2) {
            println!("{violation}");
        }
        if row.violations.len() > 2 {
            println!("… and {} more violations", row.violations.len() - 2);
        }
    }
    println!(
        "\n{:<22} {:<15} {:>7} {:>11} {:>6} {:>7} {:>6}",
        "OWNER", "VERB", "WORST", "VIOLATIONS", "ENDED", "DENIED", "TOOK"
    );
    for row in rows {
        print_row(row);
    }
}

fn print_row(row: &Row) {
    let ended = match row.ended {
        true => "yes",
        false if row.is_held() => "held",
        false => "NO",
    };
    let worst = format!("{}/{}", row.judgement.worst, row.judgement.limit);
    println!(
        "{:<22} {:<15} {:>7} {:>11} {:>6} {:>7} {:>5}s {}",
        row.owner,
        row.verb.name(),
        worst,
        row.judgement.violations.len(),
        ended,
        row.denied,
        row.took.as_secs(),
        row.remark
    );
}

/// Plays the cells of a plan on a control plane of its own, with three replicas of the server.
///
/// # Errors
/// If the environment could not be started. The results of the cells are in the rows.
pub async fn play(binary: PathBuf, plan: &Plan) -> Result<Vec<Row>> {
    let lanes = plan.lanes.min(plan.cells.len());
    eprintln!("starting a control plane and three replicas");
    let fleet = Fleet::start(
        &Options {
            binary,
            other: None,
            request_timeout: Duration::from_secs(30),
            proxied: Proxied::None,
            flags: Vec::new(),
            serve_flags: Vec::new(),
            task_faults: false,
        },
        plane::Options {
            nodes: lanes * LANE_NODES,
            ..plane::Options::default()
        },
    )
    .await?;
    define(&fleet).await?;
    let start = Instant::now();
    let (free, lane) = mpsc::channel(lanes);
    for lane in 0..lanes {
        free.send(lane).await?;
    }
    let lane = Mutex::new(lane);
    let cells = plan.cells.iter().map(async |(owner, verb)| {
        // The channel is never closed, because this function holds a sender.
        let lane = lane.lock().await.recv().await.context("a lane")?;
        if plan.until.is_some_and(|until| start.elapsed() > until) {
            free.send(lane).await?;
            return anyhow::Ok(None);
        }
        let row = cell(&fleet, *owner, *verb, lane, plan.bound).await;
        free.send(lane).await?;
        let (namespace, row) = row.with_context(|| format!("{owner}/{}", verb.name()))?;
        eprintln!(
            "{}/{}: worst {}/{}, {} violations, {} after {}s {}",
            row.owner,
            row.verb.name(),
            row.judgement.worst,
            row.judgement.limit,
            row.judgement.violations.len(),
            if row.ended { "ended" } else { "did not end" },
            row.took.as_secs(),
            row.remark
        );
        Ok(Some((namespace, row)))
    });
    let outcomes: Vec<_> = futures::stream::iter(cells)
        .buffered(lanes.max(1) * 2)
        .collect()
        .await;
    let mut rows = Vec::new();
    let denied = denied(&fleet).await?;
    for outcome in outcomes {
        if let Some((namespace, mut row)) = outcome? {
            row.denied = denied.get(&namespace).copied().unwrap_or_default();
            rows.push(row);
        }
    }
    fleet.check().await?;
    fleet.stop().await;
    Ok(rows)
}

/// Refused requests by namespace.
async fn denied(fleet: &Fleet) -> Result<BTreeMap<String, usize>> {
    let mut denied = BTreeMap::new();
    for event in fleet.plane.audit_events().await? {
        let refused = event.response_status.is_some_and(|s| s.code == 429);
        if let Some(object) = event.object_ref.filter(|_| refused) {
            *denied.entry(object.namespace).or_default() += 1;
        }
    }
    Ok(denied)
}

async fn define(fleet: &Fleet) -> Result<()> {
    let kind = resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(fleet.client()?, &kind);
    for definition in owners::definitions() {
        let definition: DynamicObject = serde_json::from_value(definition)?;
        api.create(&PostParams::default(), &definition).await?;
        let name = definition.metadata.name.unwrap_or_default();
        wait::within("the matrix's kinds", Duration::from_secs(60), || async {
            let stored = api.get(&name).await?;
            let conditions = stored.data["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            Ok(conditions.any(|c| c["type"] == "Established" && c["status"] == "True"))
        })
        .await?;
    }
    Ok(())
}

async fn cell(
    fleet: &Fleet,
    owner: Owner,
    verb: Verb,
    lane: usize,
    bound: Duration,
) -> Result<(String, Row)> {
    let client = fleet.client()?;
    let prefix = format!("{owner}-{}", verb.name());
    let cell = Cell {
        namespace: fleet.plane.namespace(&prefix).await?,
        client: client.clone(),
        owner,
        lane,
        plane: &fleet.plane,
    };
    ready_lane(&client, lane).await?;
    let played = play_verb(fleet, &cell, verb, bound);
    let row = tokio::select! {
        row = played => row,
        () = play_controller(&cell) => bail!("a controller ended"),
    };
    // An error of a cell is a row, too, so that the other cells go on.
    let row = row.unwrap_or_else(|error| Row {
        owner,
        verb,
        judgement: Judgement::default(),
        ended: false,
        denied: 0,
        took: Duration::ZERO,
        remark: format!("{error:#}"),
        violations: Vec::new(),
    });
    clear(&cell).await?;
    Ok((cell.namespace, row))
}

/// Creates the owner and the rule, carries out the verb, and judges the changes.
async fn play_verb(fleet: &Fleet, cell: &Cell<'_>, verb: Verb, bound: Duration) -> Result<Row> {
    let owner = cell.owner;
    cell.begin().await?;
    let rule = Rule::over("one", "app", owners::NAME, Limit::Count(1));
    fleet.rule(&cell.namespace, &rule).await?;
    let mut kinds = workload_kinds();
    if let Some(own) = owner.kind().filter(|kind| kind.group == owners::GROUP) {
        kinds.push(own);
    }
    let observer = Observer::of_budgets(&cell.client, &cell.namespace, &kinds).await?;
    let start = Instant::now();
    let bound = if held(owner, verb) { HELD } else { bound };
    let work = async {
        cell.act(verb).await?;
        while fleet.claims(&cell.namespace).await.unwrap_or(1) > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::Ok(())
    };
    let (ended, remark) = match tokio::time::timeout(bound, work).await {
        Ok(Ok(())) => (true, String::new()),
        Ok(Err(error)) => (false, format!("{error:#}")),
        Err(_) => (false, cell.describe_pods().await),
    };
    let took = start.elapsed();
    let judgement = judge(&observer.changes().await?, &rule, LENIENCY);
    let mut violations = Vec::new();
    for violation in &judgement.violations {
        let log = fleet.plane.audit_log();
        let requests = requests_for(&log, &cell.namespace, &violation.pods, REQUESTS)?;
        violations.push(format!(
            "{violation}  requests:\n    {}",
            requests.join("\n    ")
        ));
    }
    Ok(Row {
        owner,
        verb,
        judgement,
        ended,
        denied: 0,
        took,
        remark,
        violations,
    })
}

async fn play_controller(cell: &Cell<'_>) {
    controllers::run(cell).await;
    std::future::pending().await
}

/// Deletes the namespace, so that its Pods and controllers do not disturb the next cell.
async fn clear(cell: &Cell<'_>) -> Result<()> {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cell.client.clone());
    namespaces
        .delete(&cell.namespace, &kube::api::DeleteParams::default())
        .await?;
    Ok(())
}
