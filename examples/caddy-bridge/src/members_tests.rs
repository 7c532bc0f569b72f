//! Changes of members.
#![allow(clippy::unwrap_used)]

use super::*;

fn member(number: u8, weight: u32) -> MemberInfo {
    MemberInfo {
        group: "http".into(),
        address: [10, 0, 0, number].into(),
        port: 80,
        weight,
        pod_uid: format!("u-{number}"),
        pod_name: format!("web-{number}"),
    }
}

fn with(changes: &[(Change, MemberInfo)]) -> Members {
    let mut members = Members::default();
    for (change, member) in changes {
        members.change(*change, member, 7).unwrap();
    }
    members
}

#[test]
fn repeated_changes_have_no_effect() {
    let once = with(&[
        (Change::Register, member(1, 1)),
        (Change::Drain, member(1, 1)),
    ]);
    let mut twice = once.clone();
    let presence = twice.change(Change::Drain, &member(1, 1), 99).unwrap();
    assert_eq!((presence, &twice), (PresenceInfo::Draining, &once));
    twice.change(Change::Deregister, &member(1, 1), 99).unwrap();
    for change in [Change::Drain, Change::Deregister] {
        let presence = twice.change(change, &member(1, 1), 99).unwrap();
        assert_eq!(
            (presence, &twice),
            (PresenceInfo::Absent, &Members::default())
        );
    }
}

#[test]
fn registration_ends_a_drain_and_replaces_the_pod() {
    let mut members = with(&[
        (Change::Register, member(1, 1)),
        (Change::Drain, member(1, 1)),
    ]);
    let mut next = member(1, 5);
    next.pod_uid = "next".into();
    members.change(Change::Register, &next, 9).unwrap();
    let [entry] = &members.entries[..] else {
        unreachable!("{members:?}");
    };
    assert_eq!(
        (entry.drained_at, entry.weight, &entry.pod_uid[..]),
        (None, 5, "next")
    );
}

#[test]
fn members_that_would_break_the_configuration_are_refused() {
    let mut members = Members::default();
    let mut separator = member(1, 1);
    separator.pod_uid = "a|b".into();
    let mut quote = member(1, 1);
    quote.pod_name = "a\"b".into();
    let mut port = member(1, 1);
    port.port = 0;
    for (wrong, field) in [
        (separator, "podUid"),
        (quote, "podName"),
        (port, "port"),
        (member(1, 0), "weight"),
    ] {
        let error = members.change(Change::Register, &wrong, 7).unwrap_err();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    assert_eq!(members, Members::default());
}
