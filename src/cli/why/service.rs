//! `operating why svc/NAME`.

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, PartialObjectMeta};

use super::Explaining;
use super::collect::services::observe_service;
use super::object::ExplainedObject;
use super::{api_reads, follow_mode, service_tree};
use crate::domain::diagnosis::traffic::{ObservedService, diagnose_service};

/// Explains the traffic of a Service, once or after each change of the Service until it is deleted.
pub async fn explain_service(explaining: &Explaining<'_>, name: &str) -> anyhow::Result<()> {
    let (client, namespace) = (explaining.client(), explaining.namespace());
    let services: Api<PartialObjectMeta<Service>> = Api::namespaced(client.clone(), namespace);
    let explained = ExplainedObject {
        title: format!("Service {name}"),
        missing: api_reads::no_such_object("Service", "services", namespace, name),
        uid: |observed: &ObservedService| observed.service.metadata.uid.as_deref(),
        diagnose: diagnose_service,
        render: service_tree::render_service,
        burst_window: follow_mode::BURST_WINDOW,
        changes: follow_mode::watch_changes(services, Some(name)),
    };
    let read = async || observe_service(client, namespace, name).await;
    explained.explain(explaining, read).await
}
