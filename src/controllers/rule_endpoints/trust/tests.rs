#![allow(clippy::unwrap_used)]
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const HOST: &str = "check.example.com";
const OTHER: &str = "hunter2.internal";

struct Identity {
    params: CertificateParams,
    key: KeyPair,
    certificate: Certificate,
}

impl Identity {
    fn pem(&self) -> String {
        self.certificate.pem()
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.der().clone()]
    }
}

fn params(host: &str) -> CertificateParams {
    let mut params = CertificateParams::new([host.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, host);
    params
}

/// The parameters of certificates that `openssl req -x509` makes: CA:TRUE and the host.
fn ca_params(host: &str) -> CertificateParams {
    let mut params = params(host);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn self_signed(params: CertificateParams) -> Identity {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Identity {
        params,
        key,
        certificate,
    }
}

fn issued(params: CertificateParams, by: &Identity) -> Identity {
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&by.params, &by.key);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Identity {
        params,
        key,
        certificate,
    }
}

fn authority() -> Identity {
    self_signed(ca_params("the authority"))
}

fn roots(of: &[&Identity]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for identity in of {
        roots.add(identity.certificate.der().clone()).unwrap();
    }
    roots
}

/// A TLS server and the client that calls it as `url_host`.
struct Call<'a> {
    chain: Vec<CertificateDer<'static>>,
    key: &'a KeyPair,
    bundle: &'a str,
    system: RootCertStore,
    url_host: &'a str,
    version: &'static SupportedProtocolVersion,
}

/// The endpoint has `served` and the rule `bundle`; the system has no root certificates.
fn call<'a>(served: &'a Identity, bundle: &'a str) -> Call<'a> {
    Call {
        chain: served.chain(),
        key: &served.key,
        bundle,
        system: RootCertStore::empty(),
        url_host: HOST,
        version: &TLS13,
    }
}

impl Call<'_> {
    /// The warning of a handshake that succeeds, or the refusal of one that fails.
    async fn outcome(self) -> Result<Option<String>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();

        // Unlike `with_single_cert`, these types accept a key that belongs to another certificate.
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let key = provider.key_provider.load_private_key(key).unwrap();
        let certified = SingleCertAndKey::from(CertifiedKey::new(self.chain, key));
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[self.version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certified));
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(Arc::new(server)).accept(stream).await
        });

        let trust = EndpointVerifier::new(self.bundle.as_bytes(), Arc::new(self.system), &provider);
        let trust = Arc::new(trust);
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<dyn ServerCertVerifier>)
            .with_no_client_auth();
        let name = ServerName::try_from(self.url_host.to_owned()).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let connected = TlsConnector::from(Arc::new(client))
            .connect(name, stream)
            .await;
        let _ = serving.await.unwrap();

        let refusal = trust.refusal().map(str::to_owned);
        match connected {
            Ok(_) => {
                assert_eq!(refusal, None);
                Ok(trust.warning().map(str::to_owned))
            }
            Err(_) => Err(refusal.unwrap()),
        }
    }
}

async fn assert_accepted(call: Call<'_>) {
    assert_eq!(call.outcome().await, Ok(None));
}

async fn assert_refused(call: Call<'_>, reason: &str) {
    assert_eq!(call.outcome().await, Err(reason.to_owned()));
}

#[tokio::test]
async fn self_signed_ca_certificate_served_as_leaf_is_accepted() {
    let served = self_signed(ca_params(HOST));
    for version in [&TLS12, &TLS13] {
        let bundle = served.pem();
        let call = Call {
            version,
            ..call(&served, &bundle)
        };
        assert_accepted(call).await;
    }
}

#[tokio::test]
async fn self_signed_leaf_without_ca_is_accepted() {
    let served = self_signed(params(HOST));
    assert_accepted(call(&served, &served.pem())).await;
}

#[tokio::test]
async fn pinned_leaf_of_unknown_authority_is_accepted() {
    let served = issued(params(HOST), &authority());
    assert_accepted(call(&served, &served.pem())).await;
}

#[tokio::test]
async fn pinned_leaf_for_ip_address_is_accepted() {
    let served = self_signed(ca_params("127.0.0.1"));
    let bundle = served.pem();
    let call = Call {
        url_host: "127.0.0.1",
        ..call(&served, &bundle)
    };
    assert_accepted(call).await;
}

#[tokio::test]
async fn pinned_leaf_for_any_usage_is_accepted() {
    for usage in [
        ExtendedKeyUsagePurpose::Any,
        ExtendedKeyUsagePurpose::ServerAuth,
    ] {
        let mut params = params(HOST);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, usage];
        let served = self_signed(params);
        assert_accepted(call(&served, &served.pem())).await;
    }
}

#[tokio::test]
async fn pinned_leaf_for_clients_only_is_refused() {
    let mut params = params(HOST);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let served = self_signed(params);
    assert_refused(call(&served, &served.pem()), NOT_FOR_SERVERS).await;
}

#[tokio::test]
async fn expired_pinned_leaf_is_refused() {
    let mut params = ca_params(HOST);
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    let served = self_signed(params);
    assert_refused(call(&served, &served.pem()), EXPIRED).await;
}

#[tokio::test]
async fn pinned_leaf_that_is_not_valid_yet_is_refused() {
    let mut params = ca_params(HOST);
    params.not_before = date_time_ymd(2190, 1, 1);
    params.not_after = date_time_ymd(2191, 1, 1);
    let served = self_signed(params);
    assert_refused(call(&served, &served.pem()), NOT_YET).await;
}

#[tokio::test]
async fn pinned_leaf_for_another_host_is_refused() {
    let served = self_signed(ca_params(OTHER));
    assert_refused(call(&served, &served.pem()), OTHER_HOST).await;
}

#[tokio::test]
async fn pinned_leaf_with_unknown_critical_extension_is_refused() {
    let mut unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    unknown.set_criticality(true);
    let mut params = params(HOST);
    params.custom_extensions = vec![unknown];
    let served = self_signed(params);
    assert_refused(call(&served, &served.pem()), UNUSABLE).await;
}

#[tokio::test]
async fn pinned_leaf_without_its_private_key_is_refused() {
    let served = self_signed(ca_params(HOST));
    let thief = KeyPair::generate().unwrap();
    for version in [&TLS12, &TLS13] {
        let bundle = served.pem();
        let call = Call {
            key: &thief,
            version,
            ..call(&served, &bundle)
        };
        assert_refused(call, NOT_THE_KEY).await;
    }
}

#[tokio::test]
async fn another_certificate_of_the_same_name_is_refused() {
    let pinned = self_signed(params(HOST));
    let other = self_signed(params(HOST));
    assert_refused(call(&other, &pinned.pem()), NOT_IN_BUNDLE).await;
    let pinned = self_signed(ca_params(HOST));
    let other = self_signed(ca_params(HOST));
    assert_refused(call(&other, &pinned.pem()), CA_SERVED).await;
}

#[tokio::test]
async fn pinned_leaf_does_not_issue_certificates() {
    let pinned = self_signed(params(OTHER));
    let served = issued(params(HOST), &pinned);
    let bundle = pinned.pem();
    assert_refused(call(&served, &bundle), NOT_IN_BUNDLE).await;
    let with_issuer = Call {
        chain: [served.chain(), pinned.chain()].concat(),
        ..call(&served, &bundle)
    };
    assert_refused(with_issuer, UNUSABLE).await;
}

#[tokio::test]
async fn pinned_certificate_among_the_intermediates_is_not_enough() {
    let mut pinned = params(HOST);
    pinned.distinguished_name.push(DnType::CommonName, "pinned");
    let pinned = self_signed(pinned);
    let served = self_signed(params(HOST));
    let bundle = pinned.pem();
    let call = Call {
        chain: [served.chain(), pinned.chain()].concat(),
        ..call(&served, &bundle)
    };
    assert_refused(call, NOT_IN_BUNDLE).await;
}

#[tokio::test]
async fn leaf_behind_intermediate_of_bundle_authority_is_accepted() {
    let authority = authority();
    let intermediate = issued(ca_params("the intermediate"), &authority);
    let served = issued(params(HOST), &intermediate);
    let bundle = authority.pem();
    let whole = Call {
        chain: [served.chain(), intermediate.chain()].concat(),
        ..call(&served, &bundle)
    };
    assert_accepted(whole).await;
    assert_refused(call(&served, &bundle), NOT_IN_BUNDLE).await;
}

#[tokio::test]
async fn leaf_of_bundle_authority_for_another_host_is_refused() {
    let authority = authority();
    let served = issued(params(OTHER), &authority);
    assert_refused(call(&served, &authority.pem()), OTHER_HOST).await;
}

#[tokio::test]
async fn unreadable_blocks_in_the_bundle_are_skipped() {
    let authority = authority();
    let served = issued(params(HOST), &authority);
    let garbage = "hello\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n\
        -----BEGIN CERTIFICATE-----\n***\n-----END CERTIFICATE-----\n\
        -----BEGIN WHATEVER-----\nAAAA\n-----END WHATEVER-----\n\
        -----BEGIN CERTIFICATE-----\nAAAA\n";
    let key = served.key.serialize_pem();
    for good in [authority.pem(), served.pem()] {
        let bundle = format!("{key}{garbage}{good}{garbage}");
        assert_accepted(call(&served, &bundle)).await;
    }
    assert_refused(call(&served, garbage), UNREADABLE).await;
}

#[tokio::test]
async fn empty_bundle_means_system_roots() {
    let authority = authority();
    let served = issued(params(HOST), &authority);
    for bundle in ["", "\n"] {
        let trusted = Call {
            system: roots(&[&authority]),
            ..call(&served, bundle)
        };
        assert_accepted(trusted).await;
        let untrusted = Call {
            system: roots(&[&self_signed(ca_params("another"))]),
            ..call(&served, bundle)
        };
        assert_refused(untrusted, NOT_BY_ROOTS).await;
        assert_refused(call(&served, bundle), NO_ROOTS).await;
    }
}

#[tokio::test]
async fn stale_bundle_with_good_system_roots_is_accepted_with_warning() {
    let authority = authority();
    let served = issued(params(HOST), &authority);
    let stale = self_signed(ca_params("former")).pem();
    for (bundle, reason) in [(&*stale, NOT_IN_BUNDLE), ("garbage", UNREADABLE)] {
        let call = Call {
            system: roots(&[&authority]),
            ..call(&served, bundle)
        };
        let warning = call.outcome().await.unwrap().unwrap();
        assert!(
            warning.contains("correct caBundle or remove it"),
            "{warning}"
        );
        assert!(warning.contains(reason), "{warning}");
    }
}

#[tokio::test]
async fn good_bundle_with_good_system_roots_gives_no_warning() {
    let authority = authority();
    let served = issued(params(HOST), &authority);
    let bundle = authority.pem();
    let call = Call {
        system: roots(&[&authority]),
        ..call(&served, &bundle)
    };
    assert_accepted(call).await;
}

#[tokio::test]
async fn system_roots_check_the_host_behind_stale_bundle() {
    let authority = authority();
    let served = issued(params(OTHER), &authority);
    let bundle = served.pem();
    let call = Call {
        system: roots(&[&authority]),
        ..call(&served, &bundle)
    };
    assert_refused(call, OTHER_HOST).await;
}

#[tokio::test]
async fn error_is_of_the_bundle_if_nothing_verifies() {
    let served = issued(params(HOST), &authority());
    let bundle = authority().pem();
    let call = Call {
        system: roots(&[&authority()]),
        ..call(&served, &bundle)
    };
    assert_refused(call, NOT_IN_BUNDLE).await;
}

#[tokio::test]
async fn key_of_another_certificate_is_refused_behind_stale_bundle() {
    let authority = authority();
    let served = issued(params(HOST), &authority);
    let stale = self_signed(ca_params("former")).pem();
    let thief = KeyPair::generate().unwrap();
    let call = Call {
        key: &thief,
        system: roots(&[&authority]),
        ..call(&served, &stale)
    };
    assert_refused(call, NOT_THE_KEY).await;
}
