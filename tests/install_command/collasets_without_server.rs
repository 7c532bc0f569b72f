//! Which requests for CollaSets and their objects the API server refuses while no server runs.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::resourcecontext::ResourceContext;
use operating::cli::install::{self, names};
use serde_json::{Value, json};
use testbed::wait;

use crate::cluster::Cluster;
use crate::{assert_called, everything, objects, url};

fn api<K: kube::Resource<DynamicType = ()>>(
    cluster: &Cluster,
    namespace: &str,
) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client(), namespace, &ApiResource::erase::<K>(&()))
}

#[tokio::test]
async fn dead_webhook_blocks_only_new_collaset_specs() {
    let cluster = Cluster::start().await;
    install::install_crds(&cluster.client(), names::NAMESPACE)
        .await
        .unwrap();
    let namespace = cluster.namespace("sets").await;
    for object in objects(&namespace) {
        if object.types.as_ref().unwrap().kind == "CollaSet" {
            cluster.create(object).await;
        }
    }
    let labels = json!({keys::CONTROL: keys::CONTROL_VALUE, keys::INSTANCE_ID: "0"});
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "pending", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), &namespace);
    claims.create(&PostParams::default(), &claim).await.unwrap();
    everything(cluster.client(), url()).await;

    let sets = &api::<CollaSet>(&cluster, &namespace);
    let params = &PatchParams::default();
    let change = async |change: Value| {
        let changed = sets.patch("s", params, &Patch::Merge(change)).await;
        changed.map(drop)
    };
    let mut limit = 0;
    wait::until("a new spec is denied", || {
        limit += 1;
        let denied = change(json!({"spec": {"historyLimit": limit}}));
        async { denied.await.is_err() }
    })
    .await;
    assert_called(
        change(json!({"spec": {"historyLimit": 0}})).await,
        "collaset.validate.apps.kusionstack.io",
    );

    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    sets.patch_scale("s", params, &scale).await.unwrap();
    let status = Patch::Merge(json!({"status": {"replicas": 2}}));
    sets.patch_status("s", params, &status).await.unwrap();
    change(json!({"metadata": {"annotations": {"note": "x"}}}))
        .await
        .unwrap();
    let pool = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "ResourceContext",
        "metadata": {"name": "pool"}, "spec": {"contexts": [{"id": 0}]},
    });
    api::<ResourceContext>(&cluster, &namespace)
        .create(
            &PostParams::default(),
            &serde_json::from_value(pool).unwrap(),
        )
        .await
        .unwrap();
    let now = DeleteParams::default();
    claims.delete("pending", &now).await.unwrap();
    sets.delete("s", &now).await.unwrap();
    change(json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    cluster.until_gone(sets, "s").await;
    assert_eq!(
        cluster
            .metric("apiserver_admission_match_condition_evaluation_errors_total")
            .await,
        0.0
    );
}
