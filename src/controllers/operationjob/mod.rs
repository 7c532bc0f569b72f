//! Reconciles OperationJobs (contract 1.5).

use std::sync::Arc;

use super::{ControllerContext, JobName};
use crate::cluster::work_queue::ReconcileOutcome;

pub struct OperationJobController {
    #[expect(dead_code, reason = "reconcile does nothing yet")]
    context: Arc<ControllerContext>,
}

impl OperationJobController {
    /// Creates the controller of one term.
    pub fn new(context: Arc<ControllerContext>) -> Arc<Self> {
        Arc::new(OperationJobController { context })
    }

    #[expect(clippy::unused_async, reason = "reconcile does nothing yet")]
    pub async fn reconcile(&self, _: JobName) -> ReconcileOutcome {
        ReconcileOutcome::Done
    }
}
