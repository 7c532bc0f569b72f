//! Removes everything from a cluster, in an order in which nothing waits for a server that is gone.

mod back_on_traffic;
mod confirm;
mod crds;
mod decoration_owners;
mod finalizers;
pub mod leftovers;
mod own_namespace;
mod rights;
mod running_server;
mod survey;
mod target;
mod traffic_marks;

use anyhow::{Context as _, bail};
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

use self::own_namespace::NamespaceFate;
use super::args::UninstallArgs;
use super::install::rbac::{table, users};
use super::install::request::{retry_optional_request, retry_request};
use super::install::{WAIT_TIMEOUT, delete_object, names};
use super::{connect, output};
use crate::admission::policies;
use crate::admission::routes::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use crate::api::keys;
use crate::domain::messages;

/// `operating uninstall`.
pub async fn command(args: UninstallArgs) -> anyhow::Result<()> {
    let namespace = &args.cluster.namespace;
    let config = connect::client_config(&args.cluster).await?;
    let target = target::describe_target(&args.cluster, &config);
    let client = connect::new_client(config)?;
    own_namespace::check_namespace(&client, namespace).await?;
    let found = survey::survey(&client, namespace).await?;
    output::write_stdout(&found.describe(&target, namespace, args.keep_crds))?;
    // Also with --dry-run, which answers whether the command would do it.
    found.server.refuse_elsewhere(namespace)?;
    rights::check_rights(&client, namespace, args.keep_crds).await?;
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
    remove_the_rest(client, namespace, keep_crds).await.context(
        "the webhooks are gone, so no rule is enforced any more; correct what the error names, and run this again, or \
         install again",
    )
}

/// Removes everything but the policies and the webhook configurations.
async fn remove_the_rest(
    client: &Client,
    namespace: &str,
    keep_crds: bool,
) -> anyhow::Result<String> {
    let stopped = running_server::stop_deployments(client, namespace).await?;
    if stopped {
        // The server may have written them again before it ended.
        remove_admission(client).await?;
        if let Some(sign) = running_server::find_holder(client, namespace).await? {
            bail!("another server runs, which is not stopped: {sign}; stop it");
        }
    }
    // As soon as no server works against it. What follows may wait for finalizers of others.
    let put_back = back_on_traffic::put_back(client).await?;
    if !keep_crds {
        // Before the finalizers of PodDecorations that are being deleted.
        decoration_owners::release_decorated_pods(client).await?;
    }
    finalizers::strip_all_finalizers(client).await?;
    if !keep_crds {
        crds::remove_crds(client).await?;
    }
    remove_own_objects(client, namespace).await?;
    // After the rights of the server: a server that still runs would write the labels and the marks again.
    unlabel_namespaces(client).await?;
    let released = traffic_marks::release_traffic(client).await?;
    let mut message = format!("uninstalled from namespace {namespace}\n");
    message += &released.describe();
    if put_back > 0 {
        let pods = messages::count_pods_with_verb(put_back, "was", "were");
        message += &format!("{pods} off traffic and may serve again\n");
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

/// Deletes the namespace if the installation created it and nothing else is in it. Returns a text about the namespace
/// for the user.
async fn remove_namespace(client: &Client, name: &str) -> anyhow::Result<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let uid = match own_namespace::find_fate(client, name).await? {
        NamespaceFate::Absent => return Ok(String::new()),
        NamespaceFate::Stays(reason) => return Ok(format!("namespace {name} stays: {reason}\n")),
        NamespaceFate::Goes { uid } => uid,
    };
    delete_object(&api, name).await?;
    eprintln!("waiting for namespace {name} to be deleted");
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
