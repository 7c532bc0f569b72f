//! The configuration of the adapter. It comes from the configuration of the server, never from tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use traffic::AdapterError;

use crate::credentials::Source;
use crate::endpoint::Endpoint;
use crate::http::Http;
use crate::oidc::Oidc;
use crate::secret::{Credentials, Secret};

/// Who registers Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// The cloud controller of the cluster does. The adapter only reads.
    #[default]
    Observe,
    /// The adapter does.
    Write,
}

/// The kind of servers that the adapter registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerType {
    /// The network interface that has the address of the Pod. The only kind so far: Pods need addresses of the VPC, as
    /// the network plugin Terway gives them.
    #[default]
    Eni,
}

/// The configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// Who registers Pods.
    #[serde(default)]
    pub mode: Mode,
    /// Region of the load balancers, for example `eu-central-1`.
    pub region: String,
    /// Host or URL of the API of SLB. Default: `ALIYUN_SLB_ENDPOINT`, or the public host of the region.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Host or URL of the API of ECS. Default: the public host of the region.
    #[serde(default)]
    pub ecs_endpoint: Option<String>,
    /// Host or URL of the API of STS. Default: the central host. In a VPC: `sts-vpc.<region>.aliyuncs.com`.
    #[serde(default)]
    pub sts_endpoint: Option<String>,
    /// PEM file with authorities of certificates that are trusted in addition to those of the system, for an endpoint in
    /// a private cloud.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Who calls.
    #[serde(default)]
    pub credentials: CredentialSettings,
    /// The load balancers that Services may name, each with the namespaces of these Services. Required in the mode
    /// `write`. In the mode `observe` an empty list allows all load balancers of the account.
    #[serde(default)]
    pub load_balancers: Vec<LoadBalancer>,
    /// The kind of servers that the adapter registers.
    #[serde(default)]
    pub server_type: ServerType,
    /// Name of this cluster. It is part of the mark of each registered server, so it must not change, and clusters that
    /// write to the same load balancer need different names.
    #[serde(default)]
    pub cluster: String,
    /// ID of the VPC of the Pods. Needed if several VPCs of the account have the same addresses.
    #[serde(default)]
    pub vpc_id: Option<String>,
    /// Most calls of the APIs in each second, 1 to 100.
    #[serde(default = "ten")]
    pub calls_per_second: u32,
    /// Timeout of a call in seconds, 1 to 60.
    #[serde(default = "eight")]
    pub call_timeout_seconds: u32,
}

fn ten() -> u32 {
    10
}

fn eight() -> u32 {
    8
}

/// A load balancer that the Services of some namespaces may name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LoadBalancer {
    /// ID of the load balancer.
    pub id: String,
    /// Namespaces.
    pub namespaces: Vec<String>,
    /// The groups to which the Services of each namespace may add servers: IDs of VServer groups, and the ID of the load
    /// balancer for its default group. Required in the mode `write` if there are several namespaces; if it is absent, the
    /// only namespace may use all groups. Has no effect in the mode `observe`, where it is refused.
    #[serde(default)]
    pub groups: Option<BTreeMap<String, Vec<String>>>,
}

/// Who calls: one of the fields. Without any field: OIDC if the environment has its three variables, or else the key
/// in the environment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CredentialSettings {
    /// A key in files.
    #[serde(default)]
    pub files: Option<FileCredentials>,
    /// The key in the environment: `ALIYUN_SLB_AK_KEY` and `ALIYUN_SLB_AK_SECRET`.
    #[serde(default)]
    pub environment: bool,
    /// A role that the holder of an OIDC token assumes.
    #[serde(default)]
    pub oidc: Option<OidcCredentials>,
}

/// A key in files. The adapter reads the files again when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FileCredentials {
    /// File with the ID of the key.
    pub access_key_id_file: PathBuf,
    /// File with the secret of the key.
    pub access_key_secret_file: PathBuf,
    /// File with the token of a temporary key.
    #[serde(default)]
    pub security_token_file: Option<PathBuf>,
}

/// A role that the holder of an OIDC token assumes. Fields that are missing come from the environment, as "RAM roles
/// for service accounts" sets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OidcCredentials {
    /// ARN of the role. Default: `ALIBABA_CLOUD_ROLE_ARN`.
    #[serde(default)]
    pub role_arn: Option<String>,
    /// ARN of the issuer of tokens. Default: `ALIBABA_CLOUD_OIDC_PROVIDER_ARN`.
    #[serde(default)]
    pub oidc_provider_arn: Option<String>,
    /// File with the token. Default: `ALIBABA_CLOUD_OIDC_TOKEN_FILE`.
    #[serde(default)]
    pub oidc_token_file: Option<PathBuf>,
    /// Name of the session in the audit log of the account, 2 to 64 letters, digits and `.@-_`. Default: `operating`.
    #[serde(default)]
    pub session_name: Option<String>,
}

/// What the environment says about a variable. Empty variables count as missing.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

const ROLE: &str = "ALIBABA_CLOUD_ROLE_ARN";
const PROVIDER: &str = "ALIBABA_CLOUD_OIDC_PROVIDER_ARN";
const TOKEN_FILE: &str = "ALIBABA_CLOUD_OIDC_TOKEN_FILE";
const KEY_ID: &str = "ALIYUN_SLB_AK_KEY";
const KEY_SECRET: &str = "ALIYUN_SLB_AK_SECRET";
const ENDPOINT: &str = "ALIYUN_SLB_ENDPOINT";

impl Settings {
    /// Says which field is wrong, if any.
    pub(crate) fn check(&self) -> Result<(), AdapterError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.region.is_empty() || !self.region.chars().all(plain) {
            return Err(wrong(format!(
                "region must be the ID of a region, for example `eu-central-1`; got {:?}",
                self.region
            )));
        }
        if !(1..=100).contains(&self.calls_per_second) {
            return Err(wrong("callsPerSecond must be 1 to 100".to_owned()));
        }
        if !(1..=60).contains(&self.call_timeout_seconds) {
            return Err(wrong("callTimeoutSeconds must be 1 to 60".to_owned()));
        }
        if self.mode == Mode::Write && self.load_balancers.is_empty() {
            return Err(wrong(
                "loadBalancers must list the load balancers that Services may name, since the \
                 mode is `write`"
                    .to_owned(),
            ));
        }
        for (index, load_balancer) in self.load_balancers.iter().enumerate() {
            if !is_id(&load_balancer.id) {
                return Err(wrong(format!(
                    "loadBalancers[{index}].id must be the ID of a load balancer, for example \
                     `lb-bp1abc`"
                )));
            }
            if load_balancer.namespaces.is_empty() {
                return Err(wrong(format!(
                    "loadBalancers[{index}].namespaces must have at least one namespace"
                )));
            }
            self.check_groups(load_balancer)
                .map_err(|(field, text)| wrong(format!("loadBalancers[{index}].{field} {text}")))?;
            let earlier = &self.load_balancers[..index];
            if earlier.iter().any(|other| other.id == load_balancer.id) {
                return Err(wrong(format!(
                    "loadBalancers[{index}].id is there twice; list all namespaces in one entry"
                )));
            }
        }
        Ok(())
    }

    /// Says which field of the groups of a load balancer is wrong, if any, and why.
    fn check_groups(&self, load_balancer: &LoadBalancer) -> Result<(), (String, String)> {
        let namespaces: BTreeSet<&String> = load_balancer.namespaces.iter().collect();
        let Some(groups) = &load_balancer.groups else {
            return match self.mode == Mode::Write && namespaces.len() > 1 {
                // Services could add their Pods to the groups of other namespaces, and get their requests.
                true => Err((
                    "groups".to_owned(),
                    "must list the groups of each namespace, since there are several namespaces, and the mode is `write`"
                        .to_owned(),
                )),
                false => Ok(()),
            };
        };
        if self.mode == Mode::Observe {
            let text = "has no effect in the mode `observe`; remove it";
            return Err(("groups".to_owned(), text.to_owned()));
        }
        if let Some(namespace) = namespaces.iter().find(|name| !groups.contains_key(**name)) {
            let text = format!("must list the groups of the namespace {namespace:?}");
            return Err(("groups".to_owned(), text));
        }
        for (namespace, ids) in groups {
            let field = format!("groups.{namespace}");
            if !namespaces.contains(namespace) {
                let text = "is not in `namespaces`; add it there, or remove it here";
                return Err((field, text.to_owned()));
            }
            if ids.is_empty() || !ids.iter().all(|id| is_id(id)) {
                let text = format!(
                    "must list IDs of VServer groups, or {:?} for the default group",
                    load_balancer.id
                );
                return Err((field, text));
            }
        }
        Ok(())
    }

    /// The timeout of a call.
    pub(crate) fn call_timeout(&self) -> Duration {
        Duration::from_secs(self.call_timeout_seconds.into())
    }

    /// The endpoint of SLB.
    pub(crate) fn slb_endpoint(&self, env: Environment<'_>) -> Result<Endpoint, AdapterError> {
        match (&self.endpoint, env(ENDPOINT)) {
            (Some(text), _) => Endpoint::parse("endpoint", text),
            (None, Some(text)) => Endpoint::parse(ENDPOINT, &text),
            (None, None) => Ok(Endpoint::slb(&self.region)),
        }
    }

    /// The endpoint of ECS.
    pub(crate) fn ecs_endpoint(&self) -> Result<Endpoint, AdapterError> {
        match &self.ecs_endpoint {
            Some(text) => Endpoint::parse("ecsEndpoint", text),
            None => Ok(Endpoint::ecs(&self.region)),
        }
    }

    /// Where credentials come from.
    pub(crate) fn source(&self, http: &Http, env: Environment<'_>) -> Result<Source, AdapterError> {
        let settings = &self.credentials;
        let has_oidc_variables = [ROLE, PROVIDER, TOKEN_FILE]
            .iter()
            .all(|name| env(name).is_some());
        match (&settings.files, settings.environment, &settings.oidc) {
            (Some(files), false, None) => Ok(Source::Files {
                key_id: files.access_key_id_file.clone(),
                key_secret: files.access_key_secret_file.clone(),
                token: files.security_token_file.clone(),
            }),
            (None, false, Some(oidc)) => self.oidc(oidc, http, env),
            (None, false, None) if has_oidc_variables => {
                self.oidc(&OidcCredentials::default(), http, env)
            }
            (None, _, None) => from_environment(env),
            _ => Err(wrong(
                "credentials must have only one of files, environment and oidc".to_owned(),
            )),
        }
    }

    fn oidc(
        &self,
        oidc: &OidcCredentials,
        http: &Http,
        env: Environment<'_>,
    ) -> Result<Source, AdapterError> {
        let missing = |field: &str, variable: &str| {
            wrong(format!(
                "credentials.oidc.{field} is missing, and so is the variable {variable}"
            ))
        };
        let session_name = oidc.session_name.as_deref().unwrap_or("operating");
        let plain = |c: char| c.is_ascii_alphanumeric() || ".@-_".contains(c);
        if !(2..=64).contains(&session_name.len()) || !session_name.chars().all(plain) {
            return Err(wrong(
                "credentials.oidc.sessionName must have 2 to 64 letters, digits or `.@-_`"
                    .to_owned(),
            ));
        }
        let endpoint = match &self.sts_endpoint {
            Some(text) => Endpoint::parse("stsEndpoint", text)?,
            None => Endpoint::sts(),
        };
        Ok(Source::Oidc(Box::new(Oidc {
            http: http.clone(),
            endpoint,
            role_arn: oidc
                .role_arn
                .clone()
                .or_else(|| env(ROLE))
                .ok_or_else(|| missing("roleArn", ROLE))?,
            provider_arn: oidc
                .oidc_provider_arn
                .clone()
                .or_else(|| env(PROVIDER))
                .ok_or_else(|| missing("oidcProviderArn", PROVIDER))?,
            token_file: oidc
                .oidc_token_file
                .clone()
                .or_else(|| env(TOKEN_FILE).map(PathBuf::from))
                .ok_or_else(|| missing("oidcTokenFile", TOKEN_FILE))?,
            session_name: session_name.to_owned(),
        })))
    }

    /// Whether Services of this namespace may name this load balancer.
    pub(crate) fn allows(&self, namespace: &str, id: &str) -> bool {
        if self.load_balancers.is_empty() {
            return self.mode == Mode::Observe;
        }
        self.of_namespace(namespace).any(|allowed| allowed == id)
    }

    /// The load balancers that Services of this namespace may name, if they are listed.
    pub(crate) fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &str> {
        let listed = self.listed(namespace);
        listed.map(|load_balancer| load_balancer.id.as_str())
    }

    fn listed(&self, namespace: &str) -> impl Iterator<Item = &LoadBalancer> {
        let all = self.load_balancers.iter();
        all.filter(move |lb| lb.namespaces.iter().any(|allowed| allowed == namespace))
    }

    /// Checks that Services of this namespace may add servers to a group of one of their load balancers, or of this one.
    /// Servers that are there may always be removed.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`], which names the groups that are allowed.
    pub(crate) fn may_fill(
        &self,
        namespace: &str,
        load_balancer: Option<&str>,
        group: &str,
    ) -> Result<(), AdapterError> {
        let listed = self.listed(namespace);
        let of_load_balancer =
            listed.filter(|listed| load_balancer.is_none_or(|id| listed.id == id));
        let mut allowed = Vec::new();
        for listed in of_load_balancer {
            let Some(groups) = &listed.groups else {
                return Ok(()); // all groups
            };
            allowed.extend(groups.get(namespace).into_iter().flatten());
        }
        if allowed.iter().any(|id| *id == group) {
            return Ok(());
        }
        let allowed: Vec<_> = allowed.into_iter().map(String::as_str).collect();
        Err(wrong(format!(
            "the group {group} is not listed for the namespace {namespace} in `loadBalancers[].groups` of the \
             configuration of the adapter, which lists {}",
            match allowed.is_empty() {
                true => "no group".to_owned(),
                false => allowed.join(", "),
            }
        )))
    }
}

fn from_environment(env: Environment<'_>) -> Result<Source, AdapterError> {
    match (env(KEY_ID), env(KEY_SECRET)) {
        (Some(id), Some(secret)) => Ok(Source::Fixed(Credentials {
            key_id: Secret::new(id.trim().to_owned()),
            key_secret: Secret::new(secret.trim().to_owned()),
            token: None,
        })),
        _ => Err(wrong(format!(
            "credentials must have files or oidc, or the variables {KEY_ID} and {KEY_SECRET} must \
             be set"
        ))),
    }
}

/// Whether a text can be the ID of a load balancer or a group.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=80).contains(&text.len()) && text.chars().all(plain)
}

fn wrong(text: String) -> AdapterError {
    AdapterError::Permanent(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Result<Settings, serde_json::Error> {
        serde_json::from_value(value)
    }

    fn error_of(value: Value) -> String {
        let settings = parse(value).unwrap();
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_field() {
        for (value, field) in [
            (json!({ "region": "" }), "region must"),
            (json!({ "region": "a/b" }), "region must"),
            (
                json!({ "region": "r", "callsPerSecond": 0 }),
                "callsPerSecond must",
            ),
            (
                json!({ "region": "r", "callTimeoutSeconds": 99 }),
                "callTimeoutSeconds must",
            ),
            (
                json!({ "region": "r", "mode": "write" }),
                "loadBalancers must",
            ),
            (
                json!({ "region": "r", "loadBalancers": [{ "id": "a b", "namespaces": ["x"] }] }),
                "loadBalancers[0].id must",
            ),
            (
                json!({ "region": "r", "loadBalancers": [{ "id": "lb-1", "namespaces": [] }] }),
                "loadBalancers[0].namespaces must",
            ),
            (
                json!({ "region": "r", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a"] }, { "id": "lb-1", "namespaces": ["b"] }] }),
                "loadBalancers[1].id is there twice",
            ),
            (
                json!({ "region": "r", "mode": "write", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a", "b"] }] }),
                "loadBalancers[0].groups must list the groups of each namespace",
            ),
            (
                json!({ "region": "r", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a"], "groups": { "a": ["rsp-1"] } }] }),
                "loadBalancers[0].groups has no effect",
            ),
            (
                json!({ "region": "r", "mode": "write", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a", "b"], "groups": { "a": ["rsp-1"] } }] }),
                "loadBalancers[0].groups must list the groups of the namespace \"b\"",
            ),
            (
                json!({ "region": "r", "mode": "write", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a"], "groups": { "a": ["rsp-1"], "b": ["rsp-2"] } }] }),
                "loadBalancers[0].groups.b is not in `namespaces`",
            ),
            (
                json!({ "region": "r", "mode": "write", "loadBalancers": [
                    { "id": "lb-1", "namespaces": ["a"], "groups": { "a": [] } }] }),
                "loadBalancers[0].groups.a must list IDs",
            ),
        ] {
            let error = error_of(value.clone());
            assert!(error.starts_with(field), "{value}: {error}");
        }
    }

    #[test]
    fn unknown_fields_and_values_are_refused() {
        for (value, named) in [
            (json!({ "region": "r", "colour": 1 }), "colour"),
            (json!({ "region": "r", "serverType": "ecs" }), "ecs"),
            (json!({ "region": "r", "mode": "both" }), "both"),
            (
                json!({ "region": "r", "credentials": { "key": "x" } }),
                "key",
            ),
        ] {
            let error = parse(value).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    fn source(credentials: Value, env: Environment<'_>) -> Result<Source, String> {
        let settings = parse(json!({ "region": "r", "credentials": credentials })).unwrap();
        let http = Http::new(Duration::from_secs(1), None).unwrap();
        settings
            .source(&http, env)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn source_of_credentials_is_chosen() {
        let files = json!({ "files": { "accessKeyIdFile": "/a", "accessKeySecretFile": "/b" } });
        let none = |_: &str| None;
        let keys = |name: &str| name.starts_with("ALIYUN").then(|| "x".to_owned());
        let all = |_: &str| Some("x".to_owned());
        assert!(matches!(source(files, &none), Ok(Source::Files { .. })));
        assert!(matches!(source(json!({}), &keys), Ok(Source::Fixed(_))));
        assert!(matches!(source(json!({}), &all), Ok(Source::Oidc(_))));
        let environment = json!({ "environment": true });
        assert!(matches!(source(environment, &all), Ok(Source::Fixed(_))));

        let error = source(json!({}), &none).err().unwrap();
        assert!(error.contains("ALIYUN_SLB_AK_KEY"), "{error}");
        let error = source(json!({ "oidc": {} }), &none).err().unwrap();
        assert!(error.contains("credentials.oidc.roleArn"), "{error}");
        let both = json!({ "environment": true, "oidc": {} });
        let error = source(both, &all).err().unwrap();
        assert!(error.contains("only one of"), "{error}");
    }

    #[test]
    fn endpoint_comes_from_field_environment_or_region() {
        let with = |value: Value, env: Environment<'_>| {
            let endpoint = parse(value).unwrap().slb_endpoint(env).unwrap();
            endpoint.host().to_owned()
        };
        let set = |_: &str| Some("slb.example".to_owned());
        let none = |_: &str| None;
        let region = json!({ "region": "eu-central-1" });
        assert_eq!(with(region.clone(), &none), "slb.eu-central-1.aliyuncs.com");
        assert_eq!(with(region, &set), "slb.example");
        let explicit = json!({ "region": "r", "endpoint": "https://other.example" });
        assert_eq!(with(explicit, &set), "other.example");
    }

    #[test]
    fn only_listed_namespaces_may_name_a_load_balancer() {
        let list = json!([{ "id": "lb-1", "namespaces": ["a"] }]);
        for mode in ["observe", "write"] {
            let settings = json!({ "region": "r", "mode": mode, "loadBalancers": list });
            let settings = parse(settings).unwrap();
            assert!(settings.allows("a", "lb-1"));
            assert!(!settings.allows("b", "lb-1"));
            assert!(!settings.allows("a", "lb-2"));
        }
        let open = parse(json!({ "region": "r" })).unwrap();
        assert!(open.allows("b", "lb-2"));
    }

    #[test]
    fn only_listed_groups_may_be_filled() {
        let list = json!([
            { "id": "lb-1", "namespaces": ["a", "b"], "groups": { "a": ["lb-1", "rsp-a"], "b": ["rsp-b"] } },
            { "id": "lb-2", "namespaces": ["b"] },
        ]);
        let settings = json!({ "region": "r", "mode": "write", "loadBalancers": list });
        let settings = parse(settings).unwrap();
        settings.check().unwrap();
        for (namespace, load_balancer, group, allowed) in [
            ("a", None, "rsp-a", true),
            ("a", Some("lb-1"), "lb-1", true),
            ("a", None, "rsp-b", false),
            ("a", Some("lb-2"), "rsp-a", false),
            ("b", Some("lb-1"), "rsp-b", true),
            ("b", Some("lb-1"), "rsp-a", false),
            ("b", Some("lb-1"), "lb-1", false),
            ("b", Some("lb-2"), "rsp-a", true),
            // Until it is read whose group it is, it may be one of the second load balancer.
            ("b", None, "rsp-a", true),
            ("c", None, "rsp-a", false),
        ] {
            let result = settings.may_fill(namespace, load_balancer, group);
            assert_eq!(
                result.is_ok(),
                allowed,
                "{namespace} {load_balancer:?} {group}"
            );
        }
    }
}
