//! The servers that the tests of this program share, with adapters of doubles of load balancers.

use std::ops::Deref;

use serde_json::json;
use testbed::fleet::REPLICAS;
use testbed::{Bed, Scope};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::doubles::Doubles;

/// The servers, and the doubles that their adapters call.
pub struct TrafficBed {
    pub bed: Bed,
    doubles: Doubles,
}

impl Deref for TrafficBed {
    type Target = Doubles;

    fn deref(&self) -> &Doubles {
        &self.doubles
    }
}

/// The servers that tests share.
pub async fn shared() -> &'static TrafficBed {
    static BED: OnceCell<TrafficBed> = OnceCell::const_new();
    BED.get_or_init(start).await
}

/// The same servers for a test whose faults concern all tests. Such tests run one after the other.
pub async fn alone() -> (&'static TrafficBed, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::const_new(());
    let guard = ALONE.lock().await;
    let bed = shared().await;
    // The test before may have failed with its faults on, or have cut members off on purpose.
    bed.http.end_faults();
    bed.guarded.end_faults();
    (bed, guard)
}

async fn start() -> TrafficBed {
    // The doubles outlive the runtime of the test that is first.
    let doubles = std::thread::spawn(|| {
        let runtime = Box::leak(Box::new(tokio::runtime::Runtime::new().unwrap()));
        runtime.block_on(Doubles::start())
    });
    let doubles = doubles.join().unwrap();
    let config = doubles.config_file().display().to_string();
    let flags = vec!["--traffic-config", Box::leak(config.into_boxed_str())];
    let bed = Bed::own_serving(flags.leak()).await;
    TrafficBed { bed, doubles }
}

impl TrafficBed {
    /// A scope in a namespace of this name.
    pub async fn named_scope(&self, name: &str) -> Scope {
        let scope = self.bed.scope("unused").await;
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> =
            kube::Api::all(self.bed.admin());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        namespaces
            .create(&kube::api::PostParams::default(), &namespace)
            .await
            .unwrap();
        Scope {
            namespace: name.to_owned(),
            ..scope
        }
    }

    /// Kills each server and starts it again, one after the other.
    pub async fn crash_all(&self) {
        for index in 0..REPLICAS {
            self.bed.kill(index).await;
            self.bed.restart(index).await;
        }
    }

    /// Starts all servers again, one after the other, with a configuration without these adapters.
    pub async fn roll_out(&self, without: &[&str]) {
        self.configure(without);
        self.restart_all().await;
    }

    /// Starts all servers again, one after the other.
    pub async fn restart_all(&self) {
        for index in 0..REPLICAS {
            self.bed.terminate(index).await;
            self.bed.restart(index).await;
        }
    }
}
