//! Ports that change, so that a Pod does not plan the member that it has.

use std::time::Duration;

use super::cases::world_of_one;
use crate::plan::*;
use crate::{AdapterError, Applied, Changes, Control, Observation, Presence, Registration};

/// The port of the employer changes to one that the Pod lacks, so that somebody else takes it off. It drains all the same.
#[test]
fn pod_without_the_port_drains_where_somebody_else_changes_members() {
    let (mut world, uid) = world_of_one(Control::Observes);
    world.pass();
    world.look();
    world.now += Duration::from_secs(1);
    world.look();
    assert!(world.protected.contains(&uid));
    world.now += Duration::from_secs(30);
    world.look();
    world.now += Duration::from_secs(1);
    // No member is planned any more.
    world.shape = Vec::new();
    world.begin_operation(&uid);
    world.pass();
    assert!(world.balancer.entries.is_empty());
    world.look();
    assert!(world.protected.contains(&uid), "requests may be open");
}

/// A Pod has the address of one that has ended and is still stored. With a named port, only the former one plans the
/// member that is registered.
#[test]
fn ended_pod_does_not_hide_the_member_of_the_pod_at_its_address() {
    use crate::{Member, MemberKey, Pod, PodId, Settings};
    struct Named;
    #[async_trait::async_trait]
    impl crate::Adapter for Named {
        fn settings(&self) -> Settings {
            Settings {
                drain_time: Duration::from_secs(10),
                ..Settings::default()
            }
        }
        fn members(&self, _: &crate::Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
            let port = pod.labels["port"].parse().unwrap();
            let key = |address: &std::net::IpAddr| MemberKey {
                group: "g".to_owned(),
                address: *address,
                port,
            };
            let member = |address| Member {
                key: key(address),
                pod: pod.id.clone(),
                weight: 1,
            };
            Ok(pod.addresses.iter().map(member).collect())
        }
        async fn observe(
            &self,
            _: &crate::Employer,
            _: &[Pod],
        ) -> Result<Observation, AdapterError> {
            Ok(Observation::default())
        }
        async fn apply(&self, _: &crate::Employer, _: &Changes) -> Applied {
            Applied::new()
        }
    }
    let input = |uid: &str, port: &str, on: bool, ended: bool| PodInput {
        pod: Pod {
            id: PodId {
                uid: uid.to_owned(),
                name: uid.to_owned(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
            labels: [("port".to_owned(), port.to_owned())].into(),
            on,
            ..Pod::default()
        },
        selected: true,
        protected: true,
        ended,
        ..PodInput::default()
    };
    // The load balancer has 10.0.0.1:80 of the time before the target port got a name, and names no Pod.
    let registration = Registration {
        member: Member {
            key: MemberKey {
                group: "g".to_owned(),
                address: "10.0.0.1".parse().unwrap(),
                port: 80,
            },
            pod: PodId::default(),
            weight: 1,
        },
        presence: Presence::Serving,
        connections: Some(3),
    };
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for on in [true, false] {
        let pods = vec![
            input("a-ended", "80", false, true),
            input("b-live", "81", on, false),
        ];
        let view = View::new(&Named, &crate::Employer::default(), None, pods);
        let mut memory = Memory::default();
        memory.begin_look(&view, now);
        let read = Observation {
            registrations: vec![registration.clone()],
            ..Observation::default()
        };
        memory.observed(&view, Ok(read), now, now);
        let mark = marks(&view, &memory, now).remove("b-live").unwrap();
        let next = next_call(&view, &memory, 1, true, now);
        if on {
            assert!(
                !matches!(&next, Next::Apply(changes) if !changes.deregister.is_empty()),
                "the only member of a live Pod is cut off: {next:?}"
            );
        } else {
            assert!(
                matches!(mark, Mark::Keep(_)),
                "{mark:?} while 10.0.0.1:80 serves"
            );
        }
    }
}
