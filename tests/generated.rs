//! Generated files equal what the code generates. `UPDATE=1 cargo test --test generated` rewrites them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use operating::admission::routes::{
    ClientConfig, ConfigurationSettings, WEBHOOK_REVISION, webhook_configurations,
};

#[test]
fn generated_files_are_up_to_date() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut stale = Vec::new();
    for file in operating::cli::generated::generated_files().unwrap() {
        let path = top.join(file.path);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &file.text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != file.text {
            stale.push(file.path);
        }
    }
    assert!(
        stale.is_empty(),
        "out of date: {stale:?}; run UPDATE=1 cargo test --test generated"
    );
}

/// Otherwise the leader of an older version would replace the new webhooks. `UPDATE=1` writes the digest once the
/// revision has been raised.
#[test]
fn changed_webhooks_have_a_new_revision() {
    let (mutating, validating) = webhook_configurations(&ConfigurationSettings {
        client: ClientConfig::Url(String::new()),
        namespace: "home".to_owned(),
        ca_bundle: None,
        grace_delete: true,
        collasets: true,
        cert_manager: None,
        segment: None,
    });
    let mut digest = operating::domain::digest::Digest::default();
    digest.add_text(&serde_json::to_string(&mutating.webhooks).unwrap());
    digest.add_text(&serde_json::to_string(&validating.webhooks).unwrap());
    let now = format!("{WEBHOOK_REVISION} {:016x}\n", digest.value());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("webhook-config/revision.txt");
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    if now == recorded {
        return;
    }
    let (revision, _) = recorded.split_once(' ').unwrap_or(("0", ""));
    assert!(
        WEBHOOK_REVISION > revision.parse::<u32>().unwrap(),
        "the webhooks changed: raise WEBHOOK_REVISION above {revision} in src/admission/routes/configurations.rs, then run \
         UPDATE=1 cargo test --test generated"
    );
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "run UPDATE=1 cargo test --test generated"
    );
    std::fs::write(&file, now).unwrap();
}

#[test]
fn kustomization_lists_every_crd() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_to_string(top.join("manifests/kustomization.yaml")).unwrap();
    for crd in operating::api::crd::all_crds() {
        let line = format!("  - crds/{}.yaml\n", crd.spec.names.plural);
        assert!(listed.contains(&line), "add {line}");
    }
}
