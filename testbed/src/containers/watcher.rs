//! Follows the Pods of a namespace, and starts and ends their processes.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, Error, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::wanted::{Wanted, is_running, wanted};
use super::{Answering, PodProcess, Running};

/// Time between two attempts to report that the containers are ready, while the API server does not answer.
const RETRY: Duration = Duration::from_millis(200);

/// The task that runs the process of a Pod. Dropping it kills the process.
struct PodTask {
    wanted: watch::Sender<Wanted>,
    _task: AbortOnDropHandle<()>,
}

/// Follows the Pods of a namespace for ever.
pub(super) async fn watch(client: Client, namespace: String, logs: PathBuf, answering: Answering) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut tasks = Tasks {
        pods: pods.clone(),
        logs,
        answering,
        by_uid: HashMap::new(),
    };
    let mut listed = HashSet::new();
    let events = watch_objects(pods, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.uid());
                tasks.apply(&pod);
            }
            Ok(Event::InitDone) => tasks.retain(|uid| listed.contains(uid)),
            Ok(Event::Apply(pod)) => tasks.apply(&pod),
            Ok(Event::Delete(pod)) => tasks.retain(|uid| Some(uid) != pod.uid().as_ref()),
            // The API server may be stopped by the test. The stream goes on after a pause.
            Err(_) => {}
        }
    }
}

/// The processes of a namespace, by the UID of their Pods.
struct Tasks {
    pods: Api<Pod>,
    logs: PathBuf,
    answering: Answering,
    by_uid: HashMap<String, PodTask>,
}

impl Tasks {
    fn apply(&mut self, pod: &Pod) {
        let name = pod.name_any();
        let (wanted, uid) = match (wanted(pod), pod.uid()) {
            (Ok(Some(wanted)), Some(uid)) => (wanted, uid),
            (Ok(_), _) => return,
            (Err(error), _) => return eprintln!("Pod {name} has no process: {error}"),
        };
        let task = self.by_uid.entry(uid.clone()).or_insert_with(|| {
            let (sender, receiver) = watch::channel(Wanted::default());
            let lifetime = Lifetime {
                pods: self.pods.clone(),
                name,
                uid,
                logs: self.logs.clone(),
                answering: self.answering.clone(),
                process: None,
            };
            PodTask {
                wanted: sender,
                _task: AbortOnDropHandle::new(tokio::spawn(lifetime.run(receiver))),
            }
        });
        task.wanted.send_if_modified(|former| {
            let is_new = *former != wanted;
            *former = wanted;
            is_new
        });
    }

    /// Kills the processes of all other Pods.
    fn retain(&mut self, stays: impl Fn(&String) -> bool) {
        self.by_uid.retain(|uid, _| stays(uid));
    }
}

/// The life of one Pod.
struct Lifetime {
    pods: Api<Pod>,
    name: String,
    uid: String,
    logs: PathBuf,
    answering: Answering,
    process: Option<Held>,
}

/// A process that was started and has not been waited for.
struct Held {
    /// ID of its container.
    container: String,
    process: PodProcess,
    /// Whether it got SIGTERM.
    is_signalled: bool,
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Lifetime {
    async fn run(mut self, mut receiver: watch::Receiver<Wanted>) {
        loop {
            let wanted = receiver.borrow_and_update().clone();
            // A change of the Pod, above all its deletion, interrupts the wait for an answer.
            tokio::select! {
                () = self.pursue(wanted) => {}
                changed = receiver.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
            if receiver.changed().await.is_err() {
                return;
            }
        }
    }

    /// Does what the Pod asks for. It may be dropped and called again at any time.
    async fn pursue(&mut self, wanted: Wanted) {
        match wanted {
            Wanted::NoProcess => self.terminate(),
            Wanted::Serve {
                container,
                address,
                warm_up,
                is_unreported,
            } => {
                self.end_process_of_other_container(&container).await;
                if self.process.is_none() {
                    match PodProcess::start(&self.name, address, warm_up, &self.logs) {
                        Ok(process) => {
                            self.process = Some(Held {
                                container: container.clone(),
                                process,
                                is_signalled: false,
                            });
                        }
                        Err(error) => return eprintln!("{error:#}"),
                    }
                }
                let Some(Held { process, .. }) = &mut self.process else {
                    return;
                };
                if let Err(error) = process.answers().await {
                    return eprintln!("{error:#}");
                }
                let running = Running {
                    pod: self.name.clone(),
                    address,
                    process: process.id(),
                    container: container.clone(),
                };
                self.lock().insert(self.uid.clone(), running);
                if is_unreported {
                    self.report(&container).await;
                }
            }
        }
    }

    /// An interrupted call has sent SIGTERM, and the next call waits again.
    async fn end_process_of_other_container(&mut self, container: &str) {
        let stays = |held: &Held| held.container == container && !held.is_signalled;
        if self.process.as_ref().is_none_or(stays) {
            return;
        }
        self.terminate();
        if let Some(old) = &mut self.process {
            old.process.ended().await;
        }
        self.process = None;
    }

    fn terminate(&mut self) {
        self.forget();
        if let Some(held) = &mut self.process
            && !held.is_signalled
        {
            held.is_signalled = true;
            // The process may have been killed by the test.
            let _ = held.process.terminate();
        }
    }

    /// Reports that the containers of the Pod are ready, unless the container was restarted meanwhile.
    async fn report(&self, container: &str) {
        loop {
            match self.pods.get(&self.name).await {
                Ok(pod) => match self.report_in(&pod, container).await {
                    Ok(()) => return,
                    Err(Error::Api(status)) if status.code == 409 => continue,
                    Err(_) => {}
                },
                Err(Error::Api(status)) if status.code == 404 => return,
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    async fn report_in(&self, pod: &Pod, container: &str) -> Result<(), Error> {
        let statuses = pod.status.clone().unwrap_or_default().container_statuses;
        let mut statuses = statuses.unwrap_or_default();
        let is_same = |id: &Option<String>| id.as_deref() == Some(container);
        if pod.uid().as_ref() != Some(&self.uid)
            || !statuses.iter().any(|s| is_same(&s.container_id))
        {
            return Ok(());
        }
        for status in &mut statuses {
            status.ready = is_running(status);
        }
        if !statuses.iter().all(|status| status.ready) {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = Patch::Strategic(json!({
            "metadata": {"resourceVersion": pod.metadata.resource_version},
            "status": {
                "containerStatuses": statuses,
                "conditions": [{
                    "type": "ContainersReady", "status": "True", "reason": null, "message": null,
                    "lastTransitionTime": now,
                }],
            },
        }));
        let params = PatchParams::default();
        let written = self.pods.patch_status(&self.name, &params, &patch).await;
        written.map(drop)
    }

    /// The process is not offered to the test any more.
    fn forget(&self) {
        self.lock().remove(&self.uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<String, Running>> {
        self.answering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
