//! Generated files equal what the code generates. `UPDATE=1 cargo test --test generated` rewrites them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

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

#[test]
fn kustomization_lists_every_crd() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_to_string(top.join("manifests/kustomization.yaml")).unwrap();
    for crd in operating::api::crd::all_crds() {
        let line = format!("  - crds/{}.yaml\n", crd.spec.names.plural);
        assert!(listed.contains(&line), "add {line}");
    }
}
