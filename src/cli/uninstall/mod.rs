//! Removes everything from a cluster, in an order in which nothing waits for a server that is gone.

mod back_on_traffic;
mod crds;
mod finalizers;
pub mod leftovers;
mod running_server;
mod survey;
mod traffic_marks;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::args::UninstallArgs;
use super::install::rbac::{table, users};
use super::install::request::{retry_optional_request, retry_request};
use super::install::{WAIT_TIMEOUT, delete_object, names};
use super::{confirm, connect, output, target};
use crate::admission::policies;
use crate::admission::routes::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use crate::api::keys;

/// `operating uninstall`.
pub async fn command(args: UninstallArgs) -> anyhow::Result<()> {
    let namespace = &args.cluster.namespace;
    let target = target::describe_target(&args.cluster);
    let client = connect::connect_client(&args.cluster).await?;
    let found = survey::survey(&client, namespace).await?;
    output::write_stdout(&found.describe(&target, namespace, args.keep_crds))?;
    // Also with --dry-run, which answers whether the command would do it.
    found.server.refuse_elsewhere(namespace)?;
    if args.dry_run {
        return output::write_stdout("nothing was changed, because of --dry-run\n");
    }
    if !args.yes {
        confirm::confirm(&format!("Remove this from {target}?"))?;
    }
    output::write_stdout(&uninstall(&client, namespace, args.keep_crds).await?)
}

/// Removes everything, and returns a text for the user. Missing objects are no error, so an interrupted run can be
/// repeated.
pub async fn uninstall(
    client: &Client,
    namespace: &str,
    keep_crds: bool,
) -> anyhow::Result<String> {
    remove_admission(client).await?;
    let server = running_server::find_deployment(client, namespace).await?;
    if let Some(deployment) = server {
        running_server::stop_deployment(client, namespace, &deployment).await?;
        // The server may have written them again before it ended.
        remove_admission(client).await?;
    }
    finalizers::strip_all_finalizers(client).await?;
    if !keep_crds {
        crds::remove_crds(client).await?;
    }
    remove_own_objects(client, namespace).await?;
    // After the rights of the server: a server that still runs would write the labels and the marks again.
    unlabel_namespaces(client).await?;
    let released = traffic_marks::release_traffic(client).await?;
    let put_back = back_on_traffic::put_back(client).await?;
    let mut message = format!("uninstalled from namespace {namespace}\n");
    message += &released.describe();
    match put_back {
        0 => {}
        1 => message += "1 Pod was off traffic and may serve again\n",
        count => message += &format!("{count} Pods were off traffic and may serve again\n"),
    }
    message += &remove_namespace(client, namespace).await?;
    Ok(message)
}

/// Removes the policies and the webhook configurations.
async fn remove_admission(client: &Client) -> anyhow::Result<()> {
    // The policies go first, because they could deny the removal of the namespace enforcement labels.
    for name in policies::POLICY_NAMES {
        delete_object::<ValidatingAdmissionPolicyBinding>(&Api::all(client.clone()), name).await?;
        delete_object::<ValidatingAdmissionPolicy>(&Api::all(client.clone()), name).await?;
    }
    delete_object::<MutatingWebhookConfiguration>(
        &Api::all(client.clone()),
        MUTATING_CONFIGURATION,
    )
    .await?;
    delete_object::<ValidatingWebhookConfiguration>(
        &Api::all(client.clone()),
        VALIDATING_CONFIGURATION,
    )
    .await
}

/// Removes the namespace enforcement label.
async fn unlabel_namespaces(client: &Client) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let labelled = ListParams::default().labels(keys::NAMESPACE_ENFORCEMENT);
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"metadata": {
        "labels": {keys::NAMESPACE_ENFORCEMENT: null},
        "annotations": {keys::RULE_ADMITTED: null},
    }}));
    for namespace in retry_request("list namespaces", || api.list(&labelled)).await? {
        let name = namespace.name_any();
        let unlabel = || api.patch(&name, &params, &patch);
        retry_optional_request(
            &format!(
                "remove the label {} from namespace {name}",
                keys::NAMESPACE_ENFORCEMENT
            ),
            unlabel,
        )
        .await?;
    }
    Ok(())
}

/// Removes RBAC objects, certificates and the Lease.
async fn remove_own_objects(client: &Client, namespace: &str) -> anyhow::Result<()> {
    for grant in table::PERMISSION_SETS {
        let name = grant.name;
        delete_object::<ClusterRoleBinding>(&Api::all(client.clone()), name).await?;
        delete_object::<ClusterRole>(&Api::all(client.clone()), name).await?;
        delete_object::<RoleBinding>(&Api::namespaced(client.clone(), namespace), name).await?;
        delete_object::<Role>(&Api::namespaced(client.clone(), namespace), name).await?;
    }
    for (name, _) in users::ROLES {
        delete_object::<ClusterRole>(&Api::all(client.clone()), name).await?;
    }
    let account = names::SERVICE_ACCOUNT;
    delete_object::<ServiceAccount>(&Api::namespaced(client.clone(), namespace), account).await?;
    delete_object::<Secret>(&Api::namespaced(client.clone(), namespace), names::SECRET).await?;
    delete_object::<Lease>(&Api::namespaced(client.clone(), namespace), names::LEASE).await
}

/// Deletes the namespace if the installation created it. Returns a text about the namespace for the user.
async fn remove_namespace(client: &Client, name: &str) -> anyhow::Result<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let Some(found) =
        retry_optional_request(&format!("get namespace {name}"), || api.get(name)).await?
    else {
        return Ok(String::new());
    };
    if found.labels().get(names::MANAGED_BY).map(String::as_str) != Some(names::APP_NAME) {
        return Ok(format!(
            "namespace {name} was not created by installing and stays\n"
        ));
    }
    delete_object(&api, name).await?;
    eprintln!("waiting for namespace {name} to be deleted");
    let uid = found.uid().unwrap_or_default();
    let deletion = tokio::time::timeout(
        WAIT_TIMEOUT,
        await_condition(api, name, conditions::is_deleted(&uid)),
    )
    .await;
    Ok(if deletion.is_ok() {
        String::new()
    } else {
        format!("namespace {name} is still being deleted\n")
    })
}
