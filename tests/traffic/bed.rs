//! Servers with adapters of doubles of load balancers, which the tests of this file's users share.

use serde_json::{Value, json};
use testbed::http_double::HttpDouble;
use testbed::slb_double::SlbDouble;
use testbed::{Bed, Scope};
use tokio::sync::OnceCell;

/// The only namespace whose Services may write to the load balancer `lb-1`.
pub const WRITER: &str = "slb-writer";

/// The servers, and the doubles that their adapters call.
pub struct TrafficBed {
    pub bed: Bed,
    pub http: HttpDouble,
    pub slb: SlbDouble,
}

/// The servers that tests share.
pub async fn shared() -> &'static TrafficBed {
    static BED: OnceCell<TrafficBed> = OnceCell::const_new();
    BED.get_or_init(start).await
}

async fn start() -> TrafficBed {
    // The doubles outlive the runtime of the test that is first.
    let doubles = std::thread::spawn(|| {
        let runtime = Box::leak(Box::new(tokio::runtime::Runtime::new().unwrap()));
        runtime.block_on(async { (HttpDouble::start().await.unwrap(), SlbDouble::start().await) })
    });
    let (http, slb) = doubles.join().unwrap();
    slb.state().add_load_balancer("lb-0");
    slb.state().add_load_balancer("lb-1");
    let dir = tempfile::tempdir().unwrap().keep();
    for (file, secret) in [("id", "key-id"), ("secret", "key-secret")] {
        std::fs::write(dir.join(file), secret).unwrap();
    }
    let config = dir.join("traffic.yaml");
    let text = config_text(&http, &slb, &dir.display().to_string());
    std::fs::write(&config, text.to_string()).unwrap();
    let config: &str = Box::leak(config.to_str().unwrap().to_owned().into_boxed_str());
    let bed = Bed::own_serving(vec!["--traffic-config", config].leak()).await;
    TrafficBed { bed, http, slb }
}

fn config_text(http: &HttpDouble, slb: &SlbDouble, dir: &str) -> Value {
    let slb = |mode: &str, load_balancers: Value| {
        json!({
            "mode": mode, "region": "cn-hangzhou", "endpoint": slb.url(), "ecsEndpoint": slb.url(),
            "stsEndpoint": slb.url(), "callsPerSecond": 100, "loadBalancers": load_balancers,
            "credentials": { "files": {
                "accessKeyIdFile": format!("{dir}/id"), "accessKeySecretFile": format!("{dir}/secret"),
            } },
        })
    };
    let writers = json!([{ "id": "lb-1", "namespaces": [WRITER] }]);
    json!({ "adapters": [
        { "name": "edge", "type": "http", "settings": { "url": http.url(), "drainSeconds": 2 } },
        { "name": "slb", "type": "alibaba-slb", "settings": slb("observe", json!([])) },
        {
            "name": "slb-write", "type": "alibaba-slb", "namespaces": [WRITER],
            "settings": slb("write", writers),
        },
    ] })
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
}
