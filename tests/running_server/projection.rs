//! Projects a Secret into files as the kubelet does for a mounted Secret: each version is in a directory of its own,
//! and a rename moves the link `..data` to it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tempfile::TempDir;
use testbed::wait;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

pub struct Projection {
    directory: TempDir,
    _following: AbortOnDropHandle<()>,
}

impl Projection {
    /// Follows a Secret. Returns when its first version is written.
    pub async fn start(secrets: Api<Secret>, name: &str) -> Projection {
        let projection = Projection::begin(secrets, name);
        wait::until("the Secret is projected", async || projection.is_written()).await;
        projection
    }

    /// Follows a Secret, which may not exist yet.
    pub fn begin(secrets: Api<Secret>, name: &str) -> Projection {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let name = name.to_owned();
        let following: JoinHandle<()> = tokio::spawn(async move {
            let mut last = BTreeMap::new();
            for version in 0.. {
                // The kubelet keeps the files of a deleted Secret.
                let secret = secrets.get_opt(&name).await.ok().flatten();
                let data = secret.and_then(|secret| secret.data);
                if let Some(data) = data.filter(|data| *data != last) {
                    write(&path, version, &data);
                    last = data;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        Projection {
            directory,
            _following: AbortOnDropHandle::new(following),
        }
    }

    /// Whether the first version is written.
    pub fn is_written(&self) -> bool {
        self.path().join("..data").exists()
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn write(directory: &Path, version: u32, data: &BTreeMap<String, ByteString>) {
    let generation = format!("..2026_01_01_00_00_00.{version}");
    let target = directory.join(&generation);
    fs::create_dir(&target).unwrap();
    for (key, value) in data {
        fs::write(target.join(key), &value.0).unwrap();
    }
    let former = fs::read_link(directory.join("..data"));
    symlink(&generation, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for key in data.keys().filter(|key| !directory.join(key).exists()) {
        symlink(Path::new("..data").join(key), directory.join(key)).unwrap();
    }
    if let Ok(former) = former {
        fs::remove_dir_all(directory.join(former)).unwrap();
    }
}
