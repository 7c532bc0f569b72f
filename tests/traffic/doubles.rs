//! The load balancers that the tests of this program share, and the configuration of the servers that names them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testbed::http_double::HttpDouble;
use testbed::slb_double::SlbDouble;

/// The only namespace whose Services may write to the load balancer `lb-1`.
pub const WRITER: &str = "slb-writer";

/// The doubles that the adapters call.
pub struct Doubles {
    /// Behind the adapters `edge` and `passing`.
    pub http: HttpDouble,
    /// Behind the adapters `slb` and `slb-write`.
    pub slb: SlbDouble,
    /// Behind the adapter `guarded`, whose token a test changes.
    pub guarded: HttpDouble,
    /// Behind the adapter `slb-rotating`, whose temporary key a test lets expire.
    pub rotating: SlbDouble,
    /// The directory of the configuration and of the credentials.
    dir: PathBuf,
}

impl Doubles {
    pub async fn start() -> Doubles {
        let doubles = Doubles {
            http: HttpDouble::start().await.unwrap(),
            slb: SlbDouble::start().await,
            guarded: HttpDouble::start().await.unwrap(),
            rotating: SlbDouble::start().await,
            dir: tempfile::tempdir().unwrap().keep(),
        };
        doubles.slb.state().add_load_balancer("lb-0");
        doubles.slb.state().add_load_balancer("lb-1");
        doubles.slb.state().add_load_balancer("lb-2");
        doubles.rotating.state().add_load_balancer("lb-0");
        doubles.write("id", "key-id");
        doubles.write("secret", "key-secret");
        doubles.guarded.state().token = Some("token-1".to_owned());
        doubles.write("token", "token-1");
        doubles.issue_key();
        doubles.configure(&[]);
        doubles
    }

    /// Writes a file with a credential.
    pub fn write(&self, file: &str, text: &str) {
        // A reader must not see half of the text.
        let new = self.dir.join(format!("{file}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.dir.join(file)).unwrap();
    }

    /// Writes a new temporary key of the adapter `slb-rotating`.
    pub fn issue_key(&self) {
        let (id, secret, token, _) = self.rotating.state().people.issue();
        self.write("sts-id", &id);
        self.write("sts-secret", &secret);
        self.write("sts-token", &token);
    }

    /// The file with the configuration of the servers.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("traffic.yaml")
    }

    /// Writes the configuration without these adapters. It has an effect when the servers start.
    pub fn configure(&self, without: &[&str]) {
        let mut adapters = self.adapters();
        adapters.retain(|adapter| !without.contains(&adapter["name"].as_str().unwrap()));
        self.write("traffic.yaml", &json!({ "adapters": adapters }).to_string());
    }

    fn adapters(&self) -> Vec<Value> {
        let files = |prefix: &str, token: bool| {
            let mut files = json!({
                "accessKeyIdFile": path(&self.dir, &format!("{prefix}id")),
                "accessKeySecretFile": path(&self.dir, &format!("{prefix}secret")),
            });
            if token {
                files["securityTokenFile"] = json!(path(&self.dir, &format!("{prefix}token")));
            }
            json!({ "files": files })
        };
        let slb = |double: &SlbDouble, mode: &str, credentials: Value| {
            json!({
                "mode": mode, "region": "cn-hangzhou", "endpoint": double.url(),
                "ecsEndpoint": double.url(), "stsEndpoint": double.url(), "callsPerSecond": 100,
                "loadBalancers": [], "credentials": credentials,
            })
        };
        let mut write = slb(&self.slb, "write", files("", false));
        write["loadBalancers"] = json!([{ "id": "lb-1", "namespaces": [WRITER] }]);
        let http = json!({ "url": self.http.url(), "drainSeconds": 2 });
        let guarded = json!({
            "url": self.guarded.url(), "drainSeconds": 2, "tokenFile": path(&self.dir, "token"),
        });
        vec![
            json!({ "name": "edge", "type": "http", "settings": http }),
            json!({ "name": "guarded", "type": "http", "settings": guarded }),
            json!({ "name": "passing", "type": "http", "settings": http }),
            json!({
                "name": "slb", "type": "alibaba-slb",
                "settings": slb(&self.slb, "observe", files("", false)),
            }),
            json!({
                "name": "slb-rotating", "type": "alibaba-slb",
                "settings": slb(&self.rotating, "observe", files("sts-", true)),
            }),
            json!({
                "name": "slb-write", "type": "alibaba-slb", "namespaces": [WRITER],
                "settings": write,
            }),
        ]
    }
}

fn path(dir: &Path, file: &str) -> String {
    dir.join(file).display().to_string()
}
