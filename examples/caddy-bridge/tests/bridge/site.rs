//! A Caddy, a bridge that drives it, an adapter that calls the bridge, and servers in the place of Pods.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caddy_bridge::{Options, router};
use clap::Parser;
use serde_json::json;
use testbed::caddy::Caddy;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use traffic::{
    Adapter, Applied, Changes, Employer, Member, MemberKey, PodId, Presence, Registration,
};
use traffic_http::HttpAdapter;

pub const DRAINING: Presence = Presence::Draining { until: None };

/// A task that ends with its owner.
pub struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A bridge, and an adapter that calls it.
pub struct Bridge {
    pub url: String,
    pub adapter: HttpAdapter,
    _task: Task,
}

impl Bridge {
    /// A bridge of the Service `demo/web` with the group `http`.
    pub async fn start(caddy: &Caddy, more: &[&str]) -> Bridge {
        Bridge::of(caddy, "demo/web/http", more).await
    }

    /// A bridge with another only group.
    pub async fn of(caddy: &Caddy, group: &str, more: &[&str]) -> Bridge {
        let (_, address) = caddy.fronts().next().unwrap();
        Bridge::at(&caddy.admin(), &format!("{group}={address}"), more).await
    }

    /// A bridge of a Caddy with this admin API.
    pub async fn at(admin: &str, frontend: &str, more: &[&str]) -> Bridge {
        let mut args = vec!["bridge", "--admin", admin, "--frontend", frontend];
        args.extend([
            "--map",
            "10.244.0.0/16=127.244.0.0/16",
            "--settle-milliseconds",
            "100",
        ]);
        args.extend(more);
        let router = router(Options::try_parse_from(args).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move { axum::serve(listener, router).await.unwrap() };
        let config = serde_json::from_value(json!({ "url": url })).unwrap();
        Bridge {
            url,
            adapter: HttpAdapter::new(config).unwrap(),
            _task: Task(tokio::spawn(serve)),
        }
    }

    pub async fn register(&self, members: &[Member]) -> Applied {
        let register = members.to_vec();
        self.apply(Changes {
            register,
            ..Changes::default()
        })
        .await
    }

    pub async fn drain(&self, members: &[Member]) -> Applied {
        let drain = members.to_vec();
        self.apply(Changes {
            drain,
            ..Changes::default()
        })
        .await
    }

    pub async fn deregister(&self, members: &[Member]) -> Applied {
        let deregister = members.to_vec();
        self.apply(Changes {
            deregister,
            ..Changes::default()
        })
        .await
    }

    pub async fn apply(&self, changes: Changes) -> Applied {
        self.adapter.apply(&employer(), &changes).await
    }

    /// The registered members, in the order of their addresses.
    pub async fn observe(&self) -> Vec<Registration> {
        let observed = self.adapter.observe(&employer(), &[]).await.unwrap();
        assert_eq!(observed.unreadable_groups, []);
        let mut found = observed.registrations;
        found.sort_by_key(|registration| registration.member.key.address);
        found
    }
}

/// Where the bridge keeps the members.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// In the configuration of Caddy.
    Config,
    /// In the module `operating_members`, where they change without a new configuration.
    Module,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Config => &[],
            Mode::Module => &["--members-module"],
        }
    }
}

/// A Caddy and a bridge.
pub struct Site {
    mode: Mode,
    pub caddy: Caddy,
    pub front: u16,
    pub bridge: Bridge,
}

impl Site {
    pub async fn start(mode: Mode) -> Site {
        let caddy = Caddy::start::<2>().await.unwrap();
        let (front, _) = caddy.fronts().next().unwrap();
        let bridge = Bridge::start(&caddy, mode.flags()).await;
        Site {
            mode,
            caddy,
            front,
            bridge,
        }
    }

    /// Another bridge of the same Caddy.
    pub async fn another_bridge(&self) -> Bridge {
        Bridge::start(&self.caddy, self.mode.flags()).await
    }

    /// Another bridge of the same Caddy, with another only group.
    pub async fn bridge_of(&self, group: &str) -> Bridge {
        Bridge::of(&self.caddy, group, self.mode.flags()).await
    }

    /// Drains, removes and registers a member again and again.
    pub async fn change_often(&self, member: &Member) {
        let members = std::slice::from_ref(member);
        for _ in 0..10 {
            all(&self.bridge.drain(members).await, &DRAINING);
            all(&self.bridge.deregister(members).await, &Presence::Absent);
            all(&self.bridge.register(members).await, &Presence::Serving);
        }
    }

    /// The answer to a request on a connection of its own.
    pub async fn get(&self, path: &str) -> Result<(u16, String), String> {
        let url = format!("http://127.0.0.1:{}{path}", self.front);
        let answer = client()
            .get(url)
            .send()
            .await
            .map_err(|e| format!("{e:?}"))?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await.map_err(|e| format!("{e:?}"))?))
    }

    /// Who answers `count` requests, and how often. All are answered.
    pub async fn answers(&self, count: usize) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for _ in 0..count {
            let (status, name) = self.get("/").await.unwrap();
            assert_eq!(status, 200, "{name}");
            *found.entry(name).or_default() += 1;
        }
        found
    }
}

/// A client that makes a connection for each request.
pub fn client() -> reqwest::Client {
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy();
    builder.pool_max_idle_per_host(0).build().unwrap()
}

/// A server in the place of a Pod. It answers with its name; a request of `/slow` waits until it is released.
pub struct Server {
    pub name: String,
    pub member: Member,
    pub slow: Arc<Semaphore>,
    started: Arc<AtomicUsize>,
    _task: Task,
}

impl Server {
    /// A server whose Pod has the address 10.244.0.NUMBER; the server has 127.244.0.NUMBER.
    pub async fn start(number: u8) -> Server {
        let name = format!("web-{number}");
        let listener = TcpListener::bind(SocketAddr::from(([127, 244, 0, number], 0)));
        let listener = listener.await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let slow = Arc::new(Semaphore::new(0));
        let started = Arc::new(AtomicUsize::new(0));
        let (quick, answer, begun, gate) =
            (name.clone(), name.clone(), started.clone(), slow.clone());
        let router = axum::Router::new()
            .route("/", axum::routing::get(async move || quick.clone()))
            .route(
                "/slow",
                axum::routing::get(async move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    answer.clone()
                }),
            );
        let serve = async move { axum::serve(listener, router).await.unwrap() };
        Server {
            member: member(number, port),
            name,
            slow,
            started,
            _task: Task(tokio::spawn(serve)),
        }
    }

    /// Number of slow requests that have begun.
    pub fn slow_requests(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }
}

pub fn member(number: u8, port: u16) -> Member {
    Member {
        key: MemberKey {
            group: "http".into(),
            address: IpAddr::from([10, 244, 0, number]),
            port,
        },
        pod: PodId {
            uid: format!("uid-{number}"),
            name: format!("web-{number}"),
        },
        weight: 100,
    }
}

pub fn employer() -> Employer {
    Employer {
        kind: "Service".into(),
        namespace: "demo".into(),
        name: "web".into(),
        uid: "service-uid".into(),
        spec: json!({"ports": [{"name": "http", "port": 80}]}),
        ..Employer::default()
    }
}

/// Asserts that each change had this effect.
pub fn all(applied: &Applied, expected: &Presence) {
    assert!(!applied.is_empty());
    for (member, found) in applied {
        assert_eq!(found.as_ref(), Ok(expected), "{member}");
    }
}
