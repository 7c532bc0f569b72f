//! Tests of several replicas with one API server.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::api::{Cluster, MUTATING, SECRET, VALIDATING};
use super::*;
use crate::telemetry::metrics::{Exposition, ServerMetrics};
use crate::tls::CertificateResolver;
use crate::tls::path_guard::PathGuard;
use crate::tls::selfmanaged::renewal::is_signed_by;

struct CertificateReplica {
    managed: SelfManaged,
    resolver: Arc<CertificateResolver>,
}

fn replica(api: &Cluster) -> CertificateReplica {
    replica_for(api, names())
}

fn replica_for(api: &Cluster, names: CertificateNames) -> CertificateReplica {
    let resolver = CertificateResolver::new(ServerMetrics::register(&Exposition::default()));
    let target = SyncTarget {
        namespace: "kusionstack-system".to_owned(),
        secret: "webhook-certs".to_owned(),
        mutating: "m".to_owned(),
        validating: "v".to_owned(),
    };
    let managed = SelfManaged::new(api.client(), target, names, policy(), resolver.clone());
    CertificateReplica { managed, resolver }
}

fn leaf(replica: &CertificateReplica) -> Vec<u8> {
    replica.resolver.served().unwrap().pair.leaf_der().to_vec()
}

/// Checks that every bundle that is published now trusts every leaf in service.
fn assert_trusted(api: &Cluster, replicas: &[CertificateReplica], now: Timestamp) {
    for served in replicas
        .iter()
        .filter_map(|replica| replica.resolver.served())
    {
        for bundle in api.bundles() {
            let published = Material {
                ca_crt: bundle,
                ..Material::default()
            };
            assert!(
                is_signed_by(&served.pair, &published.roots(now), now),
                "a leaf is not trusted at {now}"
            );
        }
    }
}

#[tokio::test]
async fn first_start_creates_publishes_and_serves_certificate() {
    let api = Cluster::new();
    api.configure();
    let replica = replica(&api);
    let bundle = replica.managed.ensure_certificates(start()).await.unwrap();
    let secret = api.get(SECRET);
    assert_eq!(secret["type"], "kubernetes.io/tls");
    let keys: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    assert_eq!(api.bundles(), vec![bundle; 4]);
    assert_eq!(api.get(MUTATING)["webhooks"][0]["timeoutSeconds"], 7);
    assert_trusted(&api, &[replica], start());
}

#[tokio::test]
async fn nothing_is_written_when_certificates_are_current() {
    let api = Cluster::new();
    api.configure();
    replica(&api)
        .managed
        .ensure_certificates(start())
        .await
        .unwrap();
    let writes = api.lock().writes.len();
    assert_eq!(writes, 3);
    for hour in 0..6 {
        replica(&api)
            .managed
            .ensure_certificates(start() + hours(hour))
            .await
            .unwrap();
    }
    assert_eq!(api.lock().writes.len(), writes);
}

#[tokio::test]
async fn lost_or_foreign_bundle_is_restored_in_its_webhook() {
    let api = Cluster::new();
    api.configure();
    let replica = replica(&api);
    replica.managed.ensure_certificates(start()).await.unwrap();
    api.lock().objects.get_mut(VALIDATING).unwrap()["webhooks"][1]["clientConfig"]["caBundle"] =
        "AAAA".into();
    api.lock().writes.clear();
    let bundle = replica.managed.ensure_certificates(start()).await.unwrap();
    assert_eq!(api.bundles(), vec![bundle; 4]);
    assert_eq!(api.lock().writes, [format!("PATCH {VALIDATING}")]);
}

#[tokio::test]
async fn without_configurations_the_secret_alone_is_made() {
    let api = Cluster::new();
    let replica = replica(&api);
    replica.managed.ensure_certificates(start()).await.unwrap();
    assert_eq!(api.lock().objects.len(), 1);
    assert!(replica.resolver.served().is_some());
}

#[tokio::test]
async fn three_replicas_at_once_converge_on_one_secret() {
    for _ in 0..20 {
        let api = Cluster::new();
        api.configure();
        let replicas: Vec<CertificateReplica> = (0..3).map(|_| replica(&api)).collect();
        let ensured = replicas
            .iter()
            .map(|replica| replica.managed.ensure_certificates(start()));
        let bundles = futures::future::try_join_all(ensured).await.unwrap();
        assert!(bundles.iter().all(|bundle| *bundle == bundles[0]));
        assert!(
            replicas
                .iter()
                .all(|replica| leaf(replica) == leaf(&replicas[0]))
        );
        assert_eq!(api.bundles(), vec![bundles[0].clone(); 4]);
        let posts = api
            .lock()
            .writes
            .iter()
            .filter(|write| write.starts_with("POST"))
            .count();
        assert_eq!(posts, 1);
    }
}

#[tokio::test]
async fn deleted_secret_is_made_anew_without_break() {
    let api = Cluster::new();
    api.configure();
    let replicas: Vec<CertificateReplica> = (0..3).map(|_| replica(&api)).collect();
    for replica in &replicas {
        replica.managed.ensure_certificates(start()).await.unwrap();
    }
    let before = leaf(&replicas[0]);
    api.lock().objects.remove(SECRET);
    for replica in &replicas {
        replica.managed.ensure_certificates(start()).await.unwrap();
        assert_trusted(&api, &replicas, start());
        assert_ne!(leaf(replica), before);
    }
}

/// Three replicas run at random times through several changes of authority. After each run, everything that is
/// published trusts every leaf in service, although some replicas have not run for a while.
#[tokio::test]
async fn served_certificate_is_trusted_through_every_rotation() {
    let api = Cluster::new();
    api.configure();
    let replicas: Vec<CertificateReplica> = (0..3).map(|_| replica(&api)).collect();
    let first = api.get(SECRET);
    for half_hour in 0..450 {
        let now = start() + SignedDuration::from_mins(30 * half_hour);
        let looks = replicas
            .iter()
            .enumerate()
            .filter(|(i, _)| half_hour % 2 == 0 || *i as i64 == half_hour % 3);
        let looks = looks.map(|(_, replica)| async {
            replica.managed.ensure_certificates(now).await.unwrap();
            assert_trusted(&api, &replicas, now);
        });
        futures::future::join_all(looks).await;
    }
    assert_ne!(api.get(SECRET), first);
}

/// One replica replaces the authority at once, because the leaf lacks a name and the Secret has no key that can sign.
/// Another replica accepts the Secret as it is and publishes its bundle. The later replica must not overwrite the
/// bundle of the other.
#[tokio::test]
async fn old_secret_never_overwrites_what_newer_one_published() {
    for _ in 0..100 {
        let api = Cluster::new();
        api.configure();
        let content = replica(&api);
        content.managed.ensure_certificates(start()).await.unwrap();
        api.lock().objects.get_mut(SECRET).unwrap()["data"]["ca.key"] = "AAAA".into();
        api.configure();
        let demanding = replica_for(&api, names().with_names(["new.example".to_owned()]));
        let (first, second) = futures::join!(
            demanding.managed.ensure_certificates(start()),
            content.managed.ensure_certificates(start())
        );
        first.and(second).unwrap();
        assert_trusted(&api, &[content, demanding], start());
    }
}

#[tokio::test]
async fn existing_secret_keeps_its_type_and_other_keys() {
    let api = Cluster::new();
    replica(&api)
        .managed
        .ensure_certificates(start())
        .await
        .unwrap();
    {
        let mut state = api.lock();
        let secret = state.objects.get_mut(SECRET).unwrap();
        secret["type"] = "Opaque".into();
        secret["data"]["extra"] = "AAAA".into();
        secret["data"]["tls.key"] = "AAAA".into();
    }
    replica(&api)
        .managed
        .ensure_certificates(start())
        .await
        .unwrap();
    let secret = api.get(SECRET);
    assert_eq!(
        (&secret["type"], &secret["data"]["extra"]),
        (&Value::from("Opaque"), &Value::from("AAAA"))
    );
}

#[tokio::test]
async fn refusal_keeps_old_leaf_and_names_remedy() {
    let api = Cluster::new();
    api.configure();
    let replica = replica(&api);
    replica.managed.ensure_certificates(start()).await.unwrap();
    let before = leaf(&replica);
    let late = start() + hours(7);

    api.refuse("P", 403);
    let error = replica
        .managed
        .ensure_certificates(late)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(
            "writing Secret kusionstack-system/webhook-certs: as asked; the service account needs"
        ),
        "{error}"
    );
    api.refuse("P", 500);
    let error = replica
        .managed
        .ensure_certificates(late)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "writing Secret kusionstack-system/webhook-certs: as asked"
    );
    assert_eq!(leaf(&replica), before);

    api.relent();
    replica.managed.ensure_certificates(late).await.unwrap();
    assert_ne!(leaf(&replica), before);
}

#[tokio::test]
async fn leaf_is_not_served_before_its_authority_is_published() {
    let api = Cluster::new();
    api.configure();
    let replicas = [replica(&api)];
    replicas[0]
        .managed
        .ensure_certificates(start())
        .await
        .unwrap();
    let before = leaf(&replicas[0]);
    api.lock().objects.remove(SECRET);
    api.refuse("PATCH", 500);
    replicas[0]
        .managed
        .ensure_certificates(start())
        .await
        .unwrap_err();
    assert!(!api.get(SECRET).is_null());
    assert_eq!(leaf(&replicas[0]), before);
    assert_trusted(&api, &replicas, start());

    api.relent();
    replicas[0]
        .managed
        .ensure_certificates(start())
        .await
        .unwrap();
    assert_ne!(leaf(&replicas[0]), before);
    assert_trusted(&api, &replicas, start());
}

#[tokio::test(start_paused = true)]
async fn endless_conflicts_end_in_an_error() {
    let api = Cluster::new();
    api.refuse("P", 409);
    let error = replica(&api)
        .managed
        .ensure_certificates(start())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "Secret or webhook configurations kept changing under 10 attempts; will retry"
    );
}

#[tokio::test(start_paused = true)]
async fn run_survives_failures_and_ends_on_stop() {
    let api = Cluster::new();
    api.refuse("P", 500);
    let CertificateReplica { managed, resolver } = replica(&api);
    let stop = CancellationToken::new();
    let running = tokio::spawn(managed.run(Duration::from_secs(30), Timestamp::now, stop.clone()));
    while resolver.problem().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    api.relent();
    while resolver.served().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(resolver.problem().is_none());
    stop.cancel();
    running.await.unwrap();
}

/// The segments of all published paths, without duplicates.
fn published(api: &Cluster) -> Vec<Option<String>> {
    let entries = [MUTATING, VALIDATING].map(|path| api.get(path)["webhooks"].clone());
    let entries = entries.iter().flat_map(|all| all.as_array().unwrap());
    let mut segments: Vec<_> = entries
        .map(|entry| {
            let url = entry["clientConfig"]["url"].as_str().unwrap();
            let path = url.strip_prefix("https://localhost").unwrap();
            segments::split_path(path).0.map(str::to_owned)
        })
        .collect();
    segments.dedup();
    segments
}

#[tokio::test(start_paused = true)]
async fn published_segment_is_accepted_during_segment_rotation() {
    let api = Cluster::new();
    api.configure();
    let replicas: Vec<_> = (0..3)
        .map(|_| {
            let doors = Arc::new(PathGuard::default());
            (replica(&api).managed.with_segments(doors.clone()), doors)
        })
        .collect();
    let minute = SignedDuration::from_mins(1);
    let (mut now, mut seen) = (start(), Vec::new());
    for minutes in 0..3 * 24 * 60 {
        if minutes % 60 < 25 {
            // Replicas run each minute. The others must know the segment that one of them publishes.
            for (managed, _) in &replicas {
                managed.ensure_certificates(now).await.unwrap();
                let segments = published(&api);
                let [segment] = &segments[..] else {
                    panic!("{segments:?}")
                };
                let path = segments::join_path(segment.as_deref(), "/a");
                for (_, doors) in &replicas {
                    assert!(
                        minutes == 0 || doors.strip_segment(&path).is_some(),
                        "minute {minutes}"
                    );
                }
                if !seen.contains(segment) {
                    seen.push(segment.clone());
                }
            }
        }
        now += minute;
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    assert_eq!(seen.len(), 4, "plain paths, and a segment for each day");
    for (managed, _) in &replicas {
        managed.ensure_certificates(now).await.unwrap();
    }
    let former = segments::join_path(seen[1].as_deref(), "/a");
    assert!(
        replicas
            .iter()
            .all(|(_, doors)| doors.strip_segment(&former).is_none())
    );
    assert!(
        replicas
            .iter()
            .all(|(_, doors)| doors.strip_segment("/a").is_none())
    );
}

#[tokio::test(start_paused = true)]
async fn restored_configuration_is_served_and_gets_segment() {
    let api = Cluster::new();
    api.configure();
    let doors = Arc::new(PathGuard::default());
    let managed = replica(&api).managed.with_segments(doors.clone());
    let hour = hours(1);
    managed.ensure_certificates(start()).await.unwrap();
    managed.ensure_certificates(start() + hour).await.unwrap();
    tokio::time::advance(Duration::from_secs(3600)).await;
    managed.ensure_certificates(start() + hour).await.unwrap();
    assert!(doors.strip_segment("/a").is_none());
    api.configure();
    managed.ensure_certificates(start() + hour).await.unwrap();
    assert!(doors.strip_segment("/a").is_some());
    assert!(matches!(&published(&api)[..], [Some(_)]));
}
