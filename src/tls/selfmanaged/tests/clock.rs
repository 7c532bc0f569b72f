//! Tests of what a Secret needs as time passes.

use super::*;
use crate::tls::CertificatePair;
use crate::tls::selfmanaged::renewal::is_signed_by;

fn step_at(material: &Material, now: Timestamp) -> RenewalStep {
    next_step(Some(material), now, &names(), &policy())
}

fn issue_after(step: &RenewalStep, material: Option<&Material>, now: Timestamp) -> Material {
    apply_step(step, material, now, &names(), &policy()).unwrap()
}

fn new_material() -> Material {
    let first = next_step(None, start(), &names(), &policy());
    assert_eq!(
        first,
        RenewalStep::Everything("there is no Secret yet".to_owned())
    );
    issue_after(&first, None, start())
}

fn pair(material: &Material) -> CertificatePair {
    CertificatePair::from_pem(&material.tls_crt, &material.tls_key).unwrap()
}

#[test]
fn new_secret_is_kept_until_leaf_renewal_time() {
    let material = new_material();
    assert_eq!(step_at(&material, start()), RenewalStep::Keep);
    assert_eq!(step_at(&material, start() + hours(6)), RenewalStep::Keep);
    let due =
        RenewalStep::Leaf("two thirds of the lifetime of the certificate have passed".to_owned());
    assert_eq!(step_at(&material, start() + hours(7)), due);
    let renewed = issue_after(&due, Some(&material), start() + hours(7));
    assert_eq!(
        (&renewed.ca_crt, &renewed.ca_key),
        (&material.ca_crt, &material.ca_key)
    );
    assert_ne!(renewed.tls_crt, material.tls_crt);
    assert_eq!(pair(&renewed).not_after(), start() + hours(17));
    assert_eq!(step_at(&renewed, start() + hours(7)), RenewalStep::Keep);
}

#[test]
fn leaf_never_outlives_its_authority() {
    let material = new_material();
    let late = start() + hours(95);
    let renewed = issue_after(&RenewalStep::Leaf(String::new()), Some(&material), late);
    assert_eq!(pair(&renewed).not_after(), start() + hours(100));
}

/// Moves the clock by the hour through many rotations. At each hour, what is published now must trust the leaf that was
/// served an hour ago, and what was published an hour ago must trust the leaf that is served now.
#[test]
fn trust_is_never_interrupted_by_a_change_of_authority() {
    let mut material = new_material();
    let mut authorities = vec![material.ca_key.clone()];
    for hour in 1..400 {
        let now = start() + hours(hour);
        let before = material.clone();
        loop {
            let step = step_at(&material, now);
            assert!(
                !matches!(step, RenewalStep::Everything(_)),
                "hour {hour}: {step:?}"
            );
            if step == RenewalStep::Keep {
                break;
            }
            material = issue_after(&step, Some(&material), now);
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
fn missing_name_is_added_without_changing_authority() {
    let material = new_material();
    let more = CertificateNames::new(["localhost", "new.example"]).unwrap();
    let first = next_step(Some(&material), start(), &more, &policy());
    assert_eq!(
        first,
        RenewalStep::Leaf("the leaf lacks the name new.example".to_owned())
    );
    let renewed = apply_step(&first, Some(&material), start(), &more, &policy()).unwrap();
    assert_eq!(
        next_step(Some(&renewed), start(), &more, &policy()),
        RenewalStep::Keep
    );
    assert_eq!(renewed.ca_crt, material.ca_crt);
    // A replica that still wants the former names accepts the leaf too, so the two replicas do not replace it in turn.
    assert_eq!(step_at(&renewed, start()), RenewalStep::Keep);
    // The next renewal removes the former names.
    let next = RenewalStep::Leaf(String::new());
    let next = apply_step(&next, Some(&renewed), start(), &more, &policy()).unwrap();
    assert!(matches!(
        next_step(Some(&next), start(), &names(), &policy()),
        RenewalStep::Leaf(_)
    ));
}

#[test]
fn broken_parts_are_replaced_and_what_is_trusted_stays_trusted() {
    let good = new_material();
    let other = new_material();
    let without_leaf = Material {
        tls_crt: b"x".to_vec(),
        ..good.clone()
    };
    assert_eq!(
        step_at(&without_leaf, start()),
        RenewalStep::Leaf("tls.crt: no PEM block CERTIFICATE".to_owned())
    );
    let foreign_key = Material {
        tls_key: other.tls_key.clone(),
        ..good.clone()
    };
    assert!(
        matches!(step_at(&foreign_key, start()), RenewalStep::Leaf(why) if why.starts_with("tls.key: "))
    );
    let foreign_leaf = Material {
        tls_crt: other.tls_crt.clone(),
        tls_key: other.tls_key.clone(),
        ..good.clone()
    };
    assert_eq!(
        step_at(&foreign_leaf, start()),
        RenewalStep::Leaf("the leaf is of no authority in ca.crt".to_owned())
    );

    // Without the key of the authority, a valid leaf stays, and an invalid leaf is issued together with a new
    // authority.
    let keyless = Material {
        ca_key: Vec::new(),
        ..good.clone()
    };
    assert_eq!(step_at(&keyless, start()), RenewalStep::Keep);
    let keyless = Material {
        ca_key: other.ca_key.clone(),
        tls_crt: Vec::new(),
        ..good.clone()
    };
    let everything = step_at(&keyless, start());
    assert!(
        matches!(everything, RenewalStep::Everything(_)),
        "{everything:?}"
    );
    let replaced = issue_after(&everything, Some(&keyless), start());
    assert!(is_signed_by(
        &pair(&good),
        &replaced.roots(start()),
        start()
    ));
    assert_eq!(step_at(&replaced, start()), RenewalStep::Keep);

    let rootless = Material {
        ca_crt: b"-----BEGIN".to_vec(),
        ..good
    };
    assert_eq!(
        step_at(&rootless, start()),
        RenewalStep::Everything("ca.crt holds no valid certificate".to_owned())
    );
}

#[test]
fn expired_authority_and_leaf_are_reissued() {
    let material = new_material();
    let late = start() + hours(1000);
    assert_eq!(
        step_at(&material, late),
        RenewalStep::Everything("ca.crt holds no valid certificate".to_owned())
    );
    let renewed = issue_after(&step_at(&material, late), Some(&material), late);
    assert_eq!(renewed.roots(late).len(), 1);
    assert_eq!(step_at(&renewed, late), RenewalStep::Keep);
}

/// RSA keys in PKCS#1 and a single name, as in the Secret of Kuperator (contract 4.5).
#[test]
fn kuperator_secret_is_accepted_while_it_fits() {
    let material = Material {
        tls_crt: include_bytes!("rsa/tls.crt").to_vec(),
        tls_key: include_bytes!("rsa/tls.key").to_vec(),
        ca_crt: include_bytes!("rsa/ca.crt").to_vec(),
        ca_key: include_bytes!("rsa/ca.key").to_vec(),
        ..Material::default()
    };
    let only = CertificateNames::new(["controller-manager.kusionstack-system.svc"]).unwrap();
    let policy = RenewalPolicy::default();
    let begin = pair(&material).not_before();
    let early = begin + hours(24);
    assert_eq!(
        next_step(Some(&material), early, &only, &policy),
        RenewalStep::Keep
    );

    // Its key cannot sign here, so the renewal issues a new authority. The old authority stays trusted meanwhile.
    let late = begin + hours(8 * 365 * 24);
    let step = next_step(Some(&material), late, &only, &policy);
    assert!(matches!(step, RenewalStep::Authority(_)), "{step:?}");
    let next = apply_step(&step, Some(&material), late, &only, &policy).unwrap();
    assert_eq!(next.roots(late).len(), 2);
    assert_eq!(
        next_step(Some(&next), late, &only, &policy),
        RenewalStep::Keep
    );
    let step = next_step(Some(&next), late + hours(2), &only, &policy);
    assert_eq!(
        step,
        RenewalStep::Leaf("the new authority is known everywhere".to_owned())
    );

    // If more names are wanted, the leaf and the authority are replaced at once. The old authority stays trusted.
    let step = next_step(Some(&material), early, &names(), &policy);
    assert_eq!(
        step,
        RenewalStep::Everything("the leaf lacks the name 127.0.0.1".to_owned())
    );
    let next = apply_step(&step, Some(&material), early, &names(), &policy).unwrap();
    assert!(is_signed_by(&pair(&material), &next.roots(early), early));
    assert_eq!(
        next_step(Some(&next), early, &names(), &policy),
        RenewalStep::Keep
    );
}

#[test]
fn names_are_checked() {
    assert_eq!(
        CertificateNames::new(["b", "a", "b", "::1"])
            .unwrap()
            .to_strings(),
        ["::1", "a", "b"]
    );
    let error = CertificateNames::new(Vec::<String>::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the certificate needs at least one name"),
        "{error}"
    );
    let error = CertificateNames::new(["https://a:9443"])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(r#""https://a:9443" is neither a DNS name nor an IP address"#),
        "{error}"
    );
}

#[test]
fn step_is_a_sentence_with_its_reason() {
    let policy = RenewalPolicy::default();
    let first = next_step(None, start(), &names(), &policy);
    assert_eq!(
        first.to_string(),
        "issuing a new authority and a webhook certificate that it signs: there is no Secret yet"
    );
    for (step, text) in [
        (
            RenewalStep::Authority("due".to_owned()),
            "issuing a new authority, which will sign the next webhook certificate: due",
        ),
        (
            RenewalStep::Leaf("due".to_owned()),
            "issuing a new webhook certificate: due",
        ),
        (
            RenewalStep::Forget("unused".to_owned()),
            "removing the former authorities: unused",
        ),
        (RenewalStep::Keep, "the webhook certificate needs no change"),
    ] {
        assert_eq!(step.to_string(), text);
    }
}
