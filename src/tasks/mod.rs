//! Supervises long-lived tasks. A replica whose Pod watch has ended would decide by an old state forever. So the
//! process ends with the reason, and is restarted.

#[cfg(debug_assertions)]
pub(crate) mod faults;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Starts the tasks that live as long as the process. Clones share the state.
#[derive(Clone, Debug)]
pub struct Supervisor {
    stop: CancellationToken,
    fault: Arc<watch::Sender<Option<Fault>>>,
}

/// Why the process must end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the task, a noun with its article.
    pub task: Cow<'static, str>,
    /// What happened to the task: a clause that begins with a verb, such as `panicked`.
    pub description: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.task, self.description)
    }
}

impl std::error::Error for Fault {}

impl Supervisor {
    /// A supervisor whose tasks may end only after `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Supervisor {
        Supervisor {
            stop,
            fault: Arc::new(watch::Sender::new(None)),
        }
    }

    /// The token that tells the tasks to end.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task that ends after [`Supervisor::stop`] is cancelled. A panic or an earlier end is a fault. `task` is
    /// a noun with its article, for messages.
    pub fn spawn_supervised<F>(&self, task: impl Into<Cow<'static, str>>, work: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.spawn_supervised_until(task, move || stop.is_cancelled(), work)
    }

    /// The same as [`Supervisor::spawn_supervised`], for a task that may end once `is_over` returns `true`.
    pub fn spawn_supervised_until<F>(
        &self,
        task: impl Into<Cow<'static, str>>,
        is_over: impl Fn() -> bool + Send + 'static,
        work: F,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (supervisor, task) = (self.clone(), task.into());
        #[cfg(debug_assertions)]
        let work = faults::run_with_faults(task.clone(), work);
        tokio::spawn(async move {
            // A panic may leave an inconsistent state. Nothing uses the state any more, because the process ends.
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) if is_over() => {}
                Ok(()) => supervisor.report_fault(task, "ended although nothing has stopped it"),
                Err(panic) => supervisor.report_fault(task, describe_panic(&*panic)),
            }
        })
    }

    /// Reports a fault. Later faults are only logged.
    pub fn report_fault(&self, task: impl Into<Cow<'static, str>>, description: impl Into<String>) {
        let (task, description) = (task.into(), description.into());
        error!(%task, description, "the process can't go on, and ends");
        self.fault.send_if_modified(|fault| {
            let first = fault.is_none();
            fault.get_or_insert(Fault { task, description });
            first
        });
    }

    /// The first fault, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        self.fault.borrow().clone()
    }

    /// Waits for the first fault.
    pub async fn wait_for_fault(&self) -> Fault {
        let mut fault = self.fault.subscribe();
        loop {
            if let Some(fault) = fault.borrow_and_update().clone() {
                return fault;
            }
            if fault.changed().await.is_err() {
                std::future::pending::<()>().await; // the sender lives as long as self
            }
        }
    }
}

/// What happened to a task that panicked. The message is included only if it is a literal of the source code, because a
/// formatted message may quote an object.
pub fn describe_panic(message: &(dyn Any + Send)) -> String {
    match message.downcast_ref::<&'static str>() {
        Some(message) => format!("panicked: {message}"),
        None => "panicked; the log says where".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use tokio_util::sync::CancellationToken;

    use crate::tasks::Supervisor;

    fn supervisor() -> Supervisor {
        Supervisor::new(CancellationToken::new())
    }

    #[tokio::test]
    async fn panic_of_supervised_task_is_a_fault() {
        let supervisor = supervisor();
        let task = supervisor.spawn_supervised("the watch of Pods", async { panic!("as asked") });
        let fault = supervisor.wait_for_fault().await;
        assert_eq!(fault.to_string(), "the watch of Pods panicked: as asked");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn formatted_message_of_a_panic_is_not_repeated() {
        let supervisor = supervisor();
        let secret = std::hint::black_box("s3cret").to_owned();
        supervisor.spawn_supervised("the watch of Pods", async move { panic!("{secret}") });
        let fault = supervisor.wait_for_fault().await;
        assert_eq!(
            fault.to_string(),
            "the watch of Pods panicked; the log says where"
        );
    }

    #[tokio::test]
    async fn end_before_the_stop_is_a_fault() {
        let supervisor = supervisor();
        supervisor
            .spawn_supervised("the election", async {})
            .await
            .unwrap();
        let fault = supervisor.fault().unwrap().to_string();
        assert_eq!(fault, "the election ended although nothing has stopped it");
    }

    #[tokio::test]
    async fn end_after_the_stop_is_no_fault() {
        let supervisor = supervisor();
        let stop = supervisor.stop().clone();
        let task =
            supervisor.spawn_supervised("the election", async move { stop.cancelled().await });
        supervisor.stop().cancel();
        task.await.unwrap();
        assert_eq!(supervisor.fault(), None);
    }

    #[tokio::test]
    async fn panic_after_the_stop_is_a_fault() {
        let supervisor = supervisor();
        supervisor.stop().cancel();
        let task = supervisor.spawn_supervised("the election", async { panic!("as asked") });
        task.await.unwrap();
        assert!(supervisor.fault().is_some());
    }

    #[tokio::test]
    async fn first_fault_is_kept() {
        let supervisor = supervisor();
        supervisor.report_fault("the first", "panicked");
        supervisor.report_fault("the second", "panicked");
        assert_eq!(supervisor.wait_for_fault().await.task, "the first");
    }
}
