//! Builds the two webhook configurations from the table of webhooks.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
    ServiceReference, ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};

use super::{
    GRACEFUL_DELETION_WEBHOOKS, MUTATING_CONFIGURATION, NamespaceScope, VALIDATING_CONFIGURATION,
    WEBHOOKS, Webhook, WebhookKind, WebhookMatchRule,
};
use crate::api::keys;

/// The annotation that names the Certificate whose CA cert-manager's injector writes into `caBundle`.
pub const INJECT_CA_FROM: &str = "cert-manager.io/inject-ca-from";

/// Revision of the webhooks in this build. Raise it with every change of a webhook: the leader corrects only webhooks of
/// its own revision.
pub const WEBHOOK_REVISION: u32 = 1;

/// The revision of a stored configuration; 0 for a configuration without one.
pub fn webhook_revision(annotations: &BTreeMap<String, String>) -> u32 {
    let revision = annotations.get(keys::WEBHOOK_REVISION);
    revision.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientConfig {
    /// `https://host:port`, without a path.
    Url(String),
    /// A Service of the cluster.
    Service {
        /// Name of the Service.
        name: String,
        /// Namespace of the Service.
        namespace: String,
        /// Port of the Service.
        port: i32,
    },
}

/// The settings of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationSettings {
    /// How the API server reaches the webhooks.
    pub client: ClientConfig,
    /// The namespace in which the server runs. It is excluded like the system namespaces, so that the Pods of the
    /// server can always start.
    pub namespace: String,
    /// PEM of the CA that signs the serving certificate; `None` leaves the field `caBundle` to another writer.
    pub ca_bundle: Option<Vec<u8>>,
    /// Whether deletions and evictions go through the lifecycle first (feature gate `GraceDeleteWebhook`). It adds
    /// [`GRACEFUL_DELETION_WEBHOOKS`].
    pub grace_delete: bool,
    /// Whether CollaSets are reviewed (feature gate `CollaSets`). Without it, the webhooks of
    /// [`Route::is_for_collasets`](super::Route::is_for_collasets) are left out.
    pub collasets: bool,
    /// `namespace/name` of the cert-manager Certificate whose CA is injected.
    pub cert_manager: Option<String>,
    /// The segment before every path; `None` for plain paths.
    pub segment: Option<String>,
}

/// Both webhook configurations.
pub fn webhook_configurations(
    settings: &ConfigurationSettings,
) -> (MutatingWebhookConfiguration, ValidatingWebhookConfiguration) {
    let gated = if settings.grace_delete {
        GRACEFUL_DELETION_WEBHOOKS
    } else {
        &[]
    };
    let is_on = |w: &&Webhook| settings.collasets || !w.route.is_for_collasets();
    let all = || WEBHOOKS.iter().chain(gated).filter(is_on);
    let of_kind = |kind| all().filter(move |w| w.route.kind() == kind);
    (
        MutatingWebhookConfiguration {
            metadata: metadata(MUTATING_CONFIGURATION, settings),
            webhooks: Some(
                of_kind(WebhookKind::Mutating)
                    .map(|w| mutating(w, settings))
                    .collect(),
            ),
        },
        ValidatingWebhookConfiguration {
            metadata: metadata(VALIDATING_CONFIGURATION, settings),
            webhooks: Some(
                of_kind(WebhookKind::Validating)
                    .map(|w| validating(w, settings))
                    .collect(),
            ),
        },
    )
}

fn metadata(name: &str, settings: &ConfigurationSettings) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([("app.kubernetes.io/name".to_owned(), "operating".to_owned())].into()),
        annotations: Some(annotations(settings)),
        ..ObjectMeta::default()
    }
}

fn annotations(settings: &ConfigurationSettings) -> BTreeMap<String, String> {
    let revision = (
        keys::WEBHOOK_REVISION.to_owned(),
        WEBHOOK_REVISION.to_string(),
    );
    let injected = settings.cert_manager.as_ref();
    let injected = injected.map(|from| (INJECT_CA_FROM.to_owned(), from.clone()));
    [revision].into_iter().chain(injected).collect()
}

fn mutating(w: &Webhook, settings: &ConfigurationSettings) -> MutatingWebhook {
    MutatingWebhook {
        name: w.name.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: client_config(w, settings),
        failure_policy: Some(failure_policy(w)),
        match_conditions: match_conditions(w),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespace_selector(w, settings)),
        object_selector: Some(object_selector(w)),
        reinvocation_policy: Some(if w.reinvoke { "IfNeeded" } else { "Never" }.to_owned()),
        rules: Some(rules(w)),
        side_effects: side_effects(w),
        timeout_seconds: Some(w.timeout_seconds),
    }
}

fn validating(w: &Webhook, settings: &ConfigurationSettings) -> ValidatingWebhook {
    ValidatingWebhook {
        name: w.name.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: client_config(w, settings),
        failure_policy: Some(failure_policy(w)),
        match_conditions: match_conditions(w),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(namespace_selector(w, settings)),
        object_selector: Some(object_selector(w)),
        rules: Some(rules(w)),
        side_effects: side_effects(w),
        timeout_seconds: Some(w.timeout_seconds),
    }
}

fn client_config(w: &Webhook, settings: &ConfigurationSettings) -> WebhookClientConfig {
    let path = match &settings.segment {
        Some(segment) => format!("/{segment}{}", w.route.path()),
        None => w.route.path().to_owned(),
    };
    let (url, service) = match &settings.client {
        ClientConfig::Url(base) => (Some(format!("{}{path}", base.trim_end_matches('/'))), None),
        ClientConfig::Service {
            name,
            namespace,
            port,
        } => {
            let service = ServiceReference {
                name: name.clone(),
                namespace: namespace.clone(),
                path: Some(path),
                port: Some(*port),
            };
            (None, Some(service))
        }
    };
    WebhookClientConfig {
        ca_bundle: settings.ca_bundle.clone().map(ByteString),
        service,
        url,
    }
}

fn failure_policy(w: &Webhook) -> String {
    if w.must_answer { "Fail" } else { "Ignore" }.to_owned()
}

fn side_effects(w: &Webhook) -> String {
    if w.writes { "NoneOnDryRun" } else { "None" }.to_owned()
}

fn match_conditions(w: &Webhook) -> Option<Vec<MatchCondition>> {
    (!w.conditions.is_empty()).then(|| {
        let to_entry = |c: &super::Condition| MatchCondition {
            name: c.name().to_owned(),
            expression: c.expression(),
        };
        w.conditions.iter().map(to_entry).collect()
    })
}

fn namespace_selector(w: &Webhook, settings: &ConfigurationSettings) -> LabelSelector {
    let mut excluded: Vec<String> = keys::EXCLUDED_NAMESPACES.map(str::to_owned).into();
    if !excluded.contains(&settings.namespace) {
        excluded.push(settings.namespace.clone());
    }
    let mut expressions = vec![
        requirement("kubernetes.io/metadata.name", "NotIn", Some(excluded)),
        requirement(keys::NAMESPACE_EXCLUDED, "DoesNotExist", None),
    ];
    match w.namespaces {
        NamespaceScope::All => {}
        NamespaceScope::WithRules => {
            expressions.push(requirement(keys::NAMESPACE_ENFORCEMENT, "Exists", None))
        }
        NamespaceScope::WithStrictRules => expressions.push(requirement(
            keys::NAMESPACE_ENFORCEMENT,
            "In",
            Some(vec![keys::NAMESPACE_ENFORCEMENT_STRICT.to_owned()]),
        )),
        NamespaceScope::WithoutRules => expressions.push(requirement(
            keys::NAMESPACE_ENFORCEMENT,
            "DoesNotExist",
            None,
        )),
    }
    LabelSelector {
        match_expressions: Some(expressions),
        match_labels: None,
    }
}

/// The selector of managed objects, or the empty selector, which matches every object. The empty selector is written,
/// so that it replaces a stricter selector of another version.
fn object_selector(w: &Webhook) -> LabelSelector {
    if !w.managed_only {
        return LabelSelector::default();
    }
    let managed = requirement(
        keys::CONTROL,
        "In",
        Some(vec![keys::CONTROL_VALUE.to_owned()]),
    );
    LabelSelector {
        match_expressions: Some(vec![managed]),
        match_labels: None,
    }
}

fn requirement(key: &str, operator: &str, values: Option<Vec<String>>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    }
}

fn rules(w: &Webhook) -> Vec<RuleWithOperations> {
    let owned = |list: &[&str]| Some(list.iter().map(|s| (*s).to_owned()).collect());
    let to_entry = |rule: &WebhookMatchRule| RuleWithOperations {
        api_groups: owned(&[rule.group]),
        api_versions: owned(&[rule.version]),
        operations: owned(rule.operations),
        resources: owned(&[rule.resource]),
        scope: Some("Namespaced".to_owned()),
    };
    w.rules.iter().map(to_entry).collect()
}
