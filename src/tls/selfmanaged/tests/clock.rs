//! What a Secret needs as time goes by.

use super::*;
use crate::tls::Pair;
use crate::tls::selfmanaged::assess::is_signed_by;

fn step(material: &Material, now: Timestamp) -> Step {
    assess(Some(material), now, &names(), &policy())
}

fn made(step: &Step, material: Option<&Material>, now: Timestamp) -> Material {
    issue(step, material, now, &names(), &policy()).unwrap()
}

fn fresh() -> Material {
    let first = assess(None, start(), &names(), &policy());
    assert_eq!(first, Step::Everything("there is no Secret yet".to_owned()));
    made(&first, None, start())
}

fn pair(material: &Material) -> Pair {
    Pair::from_pem(&material.tls_crt, &material.tls_key).unwrap()
}

#[test]
fn a_fresh_secret_is_kept_until_two_thirds_of_the_leaf() {
    let material = fresh();
    assert_eq!(step(&material, start()), Step::Keep);
    assert_eq!(step(&material, start() + hours(6)), Step::Keep);
    let due = Step::Leaf("two thirds of its life have passed".to_owned());
    assert_eq!(step(&material, start() + hours(7)), due);
    let renewed = made(&due, Some(&material), start() + hours(7));
    assert_eq!(
        (&renewed.ca_crt, &renewed.ca_key),
        (&material.ca_crt, &material.ca_key)
    );
    assert_ne!(renewed.tls_crt, material.tls_crt);
    assert_eq!(pair(&renewed).not_after(), start() + hours(17));
    assert_eq!(step(&renewed, start() + hours(7)), Step::Keep);
}

#[test]
fn a_leaf_never_outlives_its_authority() {
    let material = fresh();
    let late = start() + hours(95);
    let renewed = made(&Step::Leaf(String::new()), Some(&material), late);
    assert_eq!(pair(&renewed).not_after(), start() + hours(100));
}

/// Walks through years by the hour and checks at each that the leaf served an hour ago is trusted by what is
/// published now, and the one served now by what was published an hour ago.
#[test]
fn trust_is_never_interrupted_by_a_change_of_authority() {
    let mut material = fresh();
    let mut authorities = vec![material.ca_key.clone()];
    for hour in 1..400 {
        let now = start() + hours(hour);
        let before = material.clone();
        loop {
            let step = step(&material, now);
            assert!(
                !matches!(step, Step::Everything(_)),
                "hour {hour}: {step:?}"
            );
            if step == Step::Keep {
                break;
            }
            material = made(&step, Some(&material), now);
        }
        if *authorities.last().unwrap() != material.ca_key {
            authorities.push(material.ca_key.clone());
        }
        assert!(
            is_signed_by(&pair(&before), &material.roots(now), now),
            "hour {hour}: former leaf"
        );
        assert!(
            is_signed_by(&pair(&material), &before.roots(now), now),
            "hour {hour}: next leaf"
        );
        assert!(material.roots(now).len() <= 2, "hour {hour}");
    }
    assert!(authorities.len() >= 5, "{} authorities", authorities.len());
    assert_eq!(material.roots(start() + hours(399)).len(), 1);
}

#[test]
fn a_missing_name_is_added_at_once_under_the_same_authority() {
    let material = fresh();
    let more = Names::new(["localhost", "new.example"]).unwrap();
    let first = assess(Some(&material), start(), &more, &policy());
    assert_eq!(
        first,
        Step::Leaf("the leaf lacks the name new.example".to_owned())
    );
    let renewed = issue(&first, Some(&material), start(), &more, &policy()).unwrap();
    assert_eq!(
        assess(Some(&renewed), start(), &more, &policy()),
        Step::Keep
    );
    assert_eq!(renewed.ca_crt, material.ca_crt);
    // A replica that still wants the former names is content too, so that the two do not take turns.
    assert_eq!(step(&renewed, start()), Step::Keep);
    // With the next renewal they are gone.
    let next = Step::Leaf(String::new());
    let next = issue(&next, Some(&renewed), start(), &more, &policy()).unwrap();
    assert!(matches!(
        assess(Some(&next), start(), &names(), &policy()),
        Step::Leaf(_)
    ));
}

#[test]
fn broken_parts_are_replaced_and_what_is_trusted_stays_trusted() {
    let good = fresh();
    let other = fresh();
    let without_leaf = Material {
        tls_crt: b"x".to_vec(),
        ..good.clone()
    };
    assert_eq!(
        step(&without_leaf, start()),
        Step::Leaf("tls.crt: no PEM block CERTIFICATE".to_owned())
    );
    let foreign_key = Material {
        tls_key: other.tls_key.clone(),
        ..good.clone()
    };
    assert!(matches!(step(&foreign_key, start()), Step::Leaf(why) if why.starts_with("tls.key: ")));
    let foreign_leaf = Material {
        tls_crt: other.tls_crt.clone(),
        tls_key: other.tls_key.clone(),
        ..good.clone()
    };
    assert_eq!(
        step(&foreign_leaf, start()),
        Step::Leaf("the leaf is of no authority in ca.crt".to_owned())
    );

    // Without the authority's key, a leaf that is good stays; a bad one takes a new authority along.
    let keyless = Material {
        ca_key: Vec::new(),
        ..good.clone()
    };
    assert_eq!(step(&keyless, start()), Step::Keep);
    let keyless = Material {
        ca_key: other.ca_key.clone(),
        tls_crt: Vec::new(),
        ..good.clone()
    };
    let everything = step(&keyless, start());
    assert!(matches!(everything, Step::Everything(_)), "{everything:?}");
    let replaced = made(&everything, Some(&keyless), start());
    assert!(is_signed_by(
        &pair(&good),
        &replaced.roots(start()),
        start()
    ));
    assert_eq!(step(&replaced, start()), Step::Keep);

    let rootless = Material {
        ca_crt: b"-----BEGIN".to_vec(),
        ..good
    };
    assert_eq!(
        step(&rootless, start()),
        Step::Everything("ca.crt holds no valid certificate".to_owned())
    );
}

#[test]
fn everything_expired_is_made_anew() {
    let material = fresh();
    let late = start() + hours(1000);
    assert_eq!(
        step(&material, late),
        Step::Everything("ca.crt holds no valid certificate".to_owned())
    );
    let renewed = made(&step(&material, late), Some(&material), late);
    assert_eq!(renewed.roots(late).len(), 1);
    assert_eq!(step(&renewed, late), Step::Keep);
}

/// RSA keys in PKCS#1 and a single name, as Kuperator's Secret has them (contract 4.5).
#[test]
fn a_kuperator_secret_is_accepted_while_it_fits() {
    let material = Material {
        tls_crt: include_bytes!("rsa/tls.crt").to_vec(),
        tls_key: include_bytes!("rsa/tls.key").to_vec(),
        ca_crt: include_bytes!("rsa/ca.crt").to_vec(),
        ca_key: include_bytes!("rsa/ca.key").to_vec(),
        ..Material::default()
    };
    let only = Names::new(["controller-manager.kusionstack-system.svc"]).unwrap();
    let policy = Policy::default();
    let begin = pair(&material).not_before();
    let early = begin + hours(24);
    assert_eq!(assess(Some(&material), early, &only, &policy), Step::Keep);

    // Its key cannot sign here: renewal goes through a new authority, the old one trusted meanwhile.
    let late = begin + hours(8 * 365 * 24);
    let step = assess(Some(&material), late, &only, &policy);
    assert!(matches!(step, Step::Authority(_)), "{step:?}");
    let next = issue(&step, Some(&material), late, &only, &policy).unwrap();
    assert_eq!(next.roots(late).len(), 2);
    assert_eq!(assess(Some(&next), late, &only, &policy), Step::Keep);
    let step = assess(Some(&next), late + hours(2), &only, &policy);
    assert_eq!(
        step,
        Step::Leaf("the new authority is known everywhere".to_owned())
    );

    // With more names wanted it is superseded at once; what it signed stays trusted.
    let step = assess(Some(&material), early, &names(), &policy);
    assert_eq!(
        step,
        Step::Everything("the leaf lacks the name 127.0.0.1".to_owned())
    );
    let next = issue(&step, Some(&material), early, &names(), &policy).unwrap();
    assert!(is_signed_by(&pair(&material), &next.roots(early), early));
    assert_eq!(assess(Some(&next), early, &names(), &policy), Step::Keep);
}

#[test]
fn names_are_checked() {
    assert_eq!(
        Names::new(["b", "a", "b", "::1"]).unwrap().to_strings(),
        ["::1", "a", "b"]
    );
    let error = Names::new(Vec::<String>::new()).unwrap_err().to_string();
    assert!(
        error.starts_with("the certificate needs at least one name"),
        "{error}"
    );
    let error = Names::new(["https://a:9443"]).unwrap_err().to_string();
    assert!(
        error.starts_with(r#""https://a:9443" is neither a DNS name nor an IP address"#),
        "{error}"
    );
}
