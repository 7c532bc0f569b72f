use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::*;
use crate::api::keys;

fn workload(replicas: u32, version: u64) -> Workload {
    Workload::replica_set("web", version, replicas)
}

fn replica_set() -> Owner {
    Owner {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: "web-7f9".to_owned(),
        uid: "set".to_owned(),
        controller: true,
    }
}

fn pod(hash: &str, app: &str) -> Pod {
    let mut pod = Pod::default();
    let labels = [(keys::POD_TEMPLATE_HASH, hash), ("app", app)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    pod.metadata.labels = labels.into();
    *pod.metadata.owner_references = vec![replica_set()];
    pod
}

fn deployment(name: &str) -> Workload {
    let mut selector = LabelSelector::default();
    let labels = [("app".to_owned(), "web".to_owned())];
    selector.match_labels = Some(labels.into());
    Workload {
        kind: WatchedKind::Deployment,
        name: name.to_owned(),
        selector: Selector::compile(&selector).ok(),
        ..workload(10, 4)
    }
}

#[test]
fn pod_tells_the_deployment_behind_a_deleted_replica_set() {
    let cares = |deployment: Workload, pod: &Pod| {
        let mut known = Workloads::default();
        known.put_workload(&"deployment".into(), deployment);
        known.has_living_owner(&replica_set(), pod)
    };
    assert!(cares(deployment("web"), &pod("7f9", "web")));
    for (deployment, pod) in [
        (deployment("web"), pod("7f9", "other")),
        (deployment("other"), pod("7f9", "web")),
        (workload(10, 4), pod("7f9", "web")),
    ] {
        assert!(!cares(deployment.clone(), &pod), "{deployment:?} {pod:?}");
    }
}

#[test]
fn pods_of_deleted_deployment_have_no_living_owner() {
    let mut known = Workloads::default();
    let (set, pod) = (Uid::from("set"), pod("7f9", "web"));
    known.put_workload(&"deployment".into(), deployment("web"));
    assert!(known.remember_deployment(&pod));
    assert!(!known.remember_deployment(&pod));
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    let gone = ReadingBasis::Object(None);
    known.put_live_reading(&"deployment".into(), LiveReading::Gone, gone, |_| true);
    assert!(!known.has_living_owner(&replica_set(), &pod));
    // Another Deployment of this name did not create the Pods.
    known.put_workload(&"second".into(), deployment("web"));
    assert!(!known.has_living_owner(&replica_set(), &pod));
}

/// The ReplicaSet of [`pod`], which names `controller` as its controller.
fn made(controller: &Owner) -> Workload {
    Workload {
        controller: Some(Arc::new(controller.clone())),
        template_labels: Some(pod("7f9", "web").metadata.labels),
        template_labels_dropped: false,
        ..Workload {
            name: "web-7f9".to_owned(),
            ..workload(10, 5)
        }
    }
}

fn owner(kind: &str, uid: &str) -> Owner {
    let api_version = if kind == "Deployment" {
        "apps/v1"
    } else {
        "v1"
    };
    Owner {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: "web".to_owned(),
        uid: uid.to_owned(),
        controller: true,
    }
}

/// An object that, by its name, cannot have created the ReplicaSet.
fn thing() -> Owner {
    Owner {
        name: "thing".to_owned(),
        ..owner("ConfigMap", "there")
    }
}

#[test]
fn replica_set_stays_with_its_deployment_whatever_controller_it_names() {
    let set = Uid::from("set");
    for forged in [owner("Deployment", "invented"), thing()] {
        let mut known = Workloads::default();
        known.put_workload(&"deployment".into(), deployment("web"));
        known.put_workload(&set, made(&owner("Deployment", "deployment")));
        known.put_workload(&set, made(&forged));
        assert_eq!(
            known.root_owner(&set).uid(),
            "deployment".into(),
            "{forged:?}"
        );
        put_gone(&mut known, &set);
        assert_eq!(
            known.root_owner(&set).uid(),
            "deployment".into(),
            "{forged:?}"
        );
        assert!(known.has_living_owner(&replica_set(), &pod("7f9", "web")));
    }
}

#[test]
fn forged_controller_seen_before_deployment_is_ignored() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&set, made(&thing()));
    known.put_workload(&"deployment".into(), deployment("web"));
    put_gone(&mut known, &set);
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    assert!(known.has_living_owner(&replica_set(), &pod("7f9", "web")));
}

#[test]
fn forged_controller_of_deleted_replica_set_is_ignored() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&set, made(&thing()));
    put_gone(&mut known, &set);
    known.put_workload(&"deployment".into(), deployment("web"));
    assert!(known.has_living_owner(&replica_set(), &pod("7f9", "web")));
    assert!(known.remember_deployment(&pod("7f9", "web")));
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    assert!(!known.remember_deployment(&pod("7f9", "web")));
}

#[test]
fn replica_set_goes_with_a_deployment_that_has_ended() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&"first".into(), deployment("web"));
    known.put_workload(&set, made(&owner("Deployment", "first")));
    put_gone(&mut known, &"first".into());
    // The Deployment is created again under the same name, while the Kubernetes garbage collector deletes the
    // dependents of the first one.
    known.put_workload(&"second".into(), deployment("web"));
    known.put_workload(&set, made(&owner("Deployment", "first")));
    put_gone(&mut known, &set);
    assert!(!known.has_living_owner(&replica_set(), &pod("7f9", "web")));
    assert!(!known.remember_deployment(&pod("7f9", "web")));
}

/// Another Deployment: as [`deployment`], with the name `other`.
fn other() -> Owner {
    Owner {
        name: "other".to_owned(),
        ..owner("Deployment", "other")
    }
}

/// Records that an owner is gone.
fn put_gone(known: &mut Workloads, uid: &Uid) {
    known.put_live_reading(uid, LiveReading::Gone, ReadingBasis::Object(None), |_| true);
}

#[test]
fn adopted_replica_set_stays_with_its_maker() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&"deployment".into(), deployment("web"));
    known.put_workload(&"other".into(), deployment("other"));
    known.put_workload(&set, made(&other()));
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    // The other Deployment is deleted, and the Kubernetes garbage collector deletes the ReplicaSet with it.
    put_gone(&mut known, &"other".into());
    put_gone(&mut known, &set);
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    assert!(known.has_living_owner(&replica_set(), &pod("7f9", "web")));
}

#[test]
fn adopted_replica_set_moves_when_its_maker_is_gone() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&"other".into(), deployment("other"));
    known.put_workload(&set, made(&other()));
    assert_eq!(known.root_owner(&set).uid(), "other".into());
    put_gone(&mut known, &"other".into());
    put_gone(&mut known, &set);
    assert!(!known.has_living_owner(&replica_set(), &pod("7f9", "web")));
}

#[test]
fn same_named_controller_of_other_kind_outranks_deployment() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    known.put_workload(&"deployment".into(), deployment("web"));
    let thing = owner("Thing", "thing");
    known.put_workload(&set, made(&thing));
    assert_eq!(known.root_owner(&set).uid(), "thing".into());
    let found = ReadingBasis::Object(Some(Arc::new(thing.clone())));
    known.put_live_reading(&"thing".into(), LiveReading::Count(10), found, |_| true);
    known.put_workload(&set, made(&thing));
    assert_eq!(known.root_owner(&set).uid(), "thing".into());
    // An object without a number asks for no Pods.
    let without = ReadingBasis::References(vec![Arc::new(thing.clone())]);
    known.put_live_reading(&"thing".into(), LiveReading::NoScale, without, |_| true);
    known.put_workload(&set, made(&thing));
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
}

#[test]
fn older_version_does_not_overwrite_newer_reading() {
    let (mut known, uid) = (Workloads::default(), Uid::from("a"));
    assert!(known.put_workload(&uid, workload(10, 5)));
    assert!(known.put_workload(&uid, workload(100, 9)));
    assert!(!known.put_workload(&uid, workload(50, 7)));
    assert_eq!(known.owner_size("a"), OwnerSize::Count(100));
    assert!(!known.put_workload(&uid, workload(100, 11)));
    assert!(!known.put_workload(&uid, workload(10, 10)));
    assert_eq!(known.owner_size("a"), OwnerSize::Count(100));
}

#[test]
fn owner_that_the_watch_shows_is_not_gone() {
    let (mut known, uid) = (Workloads::default(), Uid::from("a"));
    known.put_workload(&uid, workload(10, 5));
    assert!(
        known.put_live_reading(&uid, LiveReading::Gone, ReadingBasis::Object(None), |_| {
            true
        })
    );
    assert_eq!(known.owner_size("a"), OwnerSize::Gone);
    assert!(known.put_workload(&uid, workload(10, 6)));
    assert_eq!(known.owner_size("a"), OwnerSize::Count(10));
}

#[test]
fn replica_set_that_is_gone_still_belongs_to_its_deployment() {
    let (mut known, set) = (Workloads::default(), Uid::from("set"));
    let deployment = Arc::new(Owner {
        uid: "deployment".to_owned(),
        ..Owner::default()
    });
    let controlled = Workload {
        controller: Some(Arc::clone(&deployment)),
        ..workload(10, 5)
    };
    known.put_workload(&set, controlled);
    known.put_workload(&"deployment".into(), workload(10, 4));
    put_gone(&mut known, &set);
    assert_eq!(known.root_owner(&set).uid(), "deployment".into());
    assert!(known.has_living_owner(&replica_set(), &Pod::default()));
    put_gone(&mut known, &"deployment".into());
    assert!(!known.has_living_owner(&replica_set(), &Pod::default()));
}

fn rollout(name: &str) -> Owner {
    Owner {
        api_version: "argoproj.io/v1alpha1".to_owned(),
        kind: "Rollout".to_owned(),
        name: name.to_owned(),
        uid: "a".to_owned(),
        controller: true,
    }
}

#[test]
fn reading_ends_with_a_reference_that_it_did_not_follow() {
    let (mut known, uid) = (Workloads::default(), Uid::from("a"));
    let followed = ReadingBasis::References(vec![Arc::new(rollout("forged"))]);
    known.put_live_reading(&uid, LiveReading::Gone, followed, |_| true);
    assert!(!known.add_reference(&rollout("forged")));
    assert_eq!(known.owner_size("a"), OwnerSize::Gone);
    assert!(known.add_reference(&rollout("web")));
    assert_eq!(known.owner_size("a"), OwnerSize::Unread);
}

#[test]
fn object_that_was_found_is_not_doubted_for_another_reference() {
    let (mut known, uid) = (Workloads::default(), Uid::from("a"));
    let web = Arc::new(rollout("web"));
    let found = ReadingBasis::Object(Some(Arc::clone(&web)));
    known.put_live_reading(&uid, LiveReading::Count(10), found, |_| true);
    assert!(!known.add_reference(&rollout("forged")));
    assert_eq!(known.owner_size("a"), OwnerSize::Count(10));
    assert_eq!(known.resolving_reference("a"), Some(web));
    assert!(!known.is_reference_valid("a", &rollout("forged")));
    let beta = Owner {
        api_version: "argoproj.io/v1beta1".to_owned(),
        ..rollout("web")
    };
    assert!(known.is_reference_valid("a", &beta));
}

#[test]
fn marks_of_deleted_owners_without_pods_are_forgotten() {
    let mut known = Workloads::default();
    for n in 0..1000 {
        let uid = Uid::from(format!("owner-{n}"));
        known.put_live_reading(&uid, LiveReading::Gone, ReadingBasis::Object(None), |uid| {
            uid == "owner-0"
        });
    }
    assert!(known.read.len() <= SWEEP_THRESHOLD, "{}", known.read.len());
    assert_eq!(known.owner_size("owner-0"), OwnerSize::Gone);
}

#[test]
fn change_of_seen_pods_alone_is_no_workload_change() {
    let (mut known, uid) = (Workloads::default(), Uid::from("a"));
    let mut put = |version, pods_seen| {
        let workload = Workload {
            pods_seen,
            ..workload(3, version)
        };
        known.put_workload(&uid, workload)
    };
    assert!(put(1, 3));
    assert!(!put(2, 5));
    assert_eq!(known.get("a").map(|known| known.pods_seen), Some(5));
}

#[test]
fn job_without_a_number_makes_no_pods_any_more() {
    for (kind, size) in [
        (WatchedKind::Job, OwnerSize::SelfCounted),
        (WatchedKind::DaemonSet, OwnerSize::Alive),
    ] {
        let (mut known, uid) = (Workloads::default(), Uid::from("a"));
        let workload = Workload {
            kind,
            replicas: None,
            ..workload(0, 1)
        };
        known.put_workload(&uid, workload);
        assert_eq!(known.owner_size("a"), size);
    }
}
