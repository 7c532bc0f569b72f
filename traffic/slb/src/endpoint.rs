//! Where the API is.

use traffic::AdapterError;

/// Scheme and host of an API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    scheme: &'static str,
    host: String,
}

/// The regions that the central host serves. All later regions have a host of their own. Source: the map of endpoints
/// in the SDKs of the vendor.
const CENTRAL: [&str; 12] = [
    "ap-southeast-1",
    "cn-beijing",
    "cn-hangzhou",
    "cn-hangzhou-finance",
    "cn-hongkong",
    "cn-north-2-gov-1",
    "cn-qingdao",
    "cn-shanghai",
    "cn-shanghai-finance-1",
    "cn-shenzhen",
    "us-east-1",
    "us-west-1",
];

impl Endpoint {
    /// The API of SLB in a region.
    pub(crate) fn slb(region: &str) -> Endpoint {
        match CENTRAL.contains(&region) {
            true => Endpoint::https("slb.aliyuncs.com".to_owned()),
            false => Endpoint::https(format!("slb.{region}.aliyuncs.com")),
        }
    }

    /// The API of ECS in a region.
    pub(crate) fn ecs(region: &str) -> Endpoint {
        Endpoint::https(format!("ecs.{region}.aliyuncs.com"))
    }

    /// The central API of STS.
    pub(crate) fn sts() -> Endpoint {
        Endpoint::https("sts.aliyuncs.com".to_owned())
    }

    fn https(host: String) -> Endpoint {
        Endpoint {
            scheme: "https",
            host,
        }
    }

    /// Reads a configured endpoint: a host, or a URL that has a host and perhaps a port, and nothing else.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`], which names the field.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Endpoint, AdapterError> {
        let (scheme, host) = match text.split_once("://") {
            Some(("https", host)) => ("https", host),
            Some(("http", host)) => ("http", host),
            None => ("https", text),
            Some(_) => ("", ""),
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        let url = reqwest::Url::parse(&format!("{scheme}://{host}/"));
        if scheme.is_empty() || host.is_empty() || !host.chars().all(allowed) || url.is_err() {
            return Err(AdapterError::Permanent(format!(
                "{field} must be a host, or an https or http URL of a host, without a path or user \
                 information; for example `slb.eu-central-1.aliyuncs.com`"
            )));
        }
        Ok(Endpoint {
            scheme,
            host: host.to_ascii_lowercase(),
        })
    }

    /// The host with its port, as the header `host` has it.
    pub(crate) fn host(&self) -> &str {
        match (self.scheme, self.host.rsplit_once(':')) {
            ("https", Some((host, "443"))) | ("http", Some((host, "80"))) => host,
            _ => &self.host,
        }
    }

    /// The URL of a call.
    pub(crate) fn url(&self, query: &str) -> String {
        format!("{}://{}/?{query}", self.scheme, self.host)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn old_regions_share_the_central_host() {
        assert_eq!(Endpoint::slb("cn-hangzhou").host(), "slb.aliyuncs.com");
        assert_eq!(
            Endpoint::slb("eu-central-1").url("a=b"),
            "https://slb.eu-central-1.aliyuncs.com/?a=b"
        );
        assert_eq!(
            Endpoint::ecs("cn-hangzhou").host(),
            "ecs.cn-hangzhou.aliyuncs.com"
        );
    }

    #[test]
    fn hosts_and_urls_are_read() {
        for (text, url, host) in [
            ("slb.example", "https://slb.example/?", "slb.example"),
            (
                "https://slb.example:443/",
                "https://slb.example:443/?",
                "slb.example",
            ),
            (
                "http://127.0.0.1:8080",
                "http://127.0.0.1:8080/?",
                "127.0.0.1:8080",
            ),
        ] {
            let endpoint = Endpoint::parse("endpoint", text).unwrap();
            assert_eq!(endpoint.url(""), url);
            assert_eq!(endpoint.host(), host);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_field() {
        for text in [
            "",
            "ftp://a",
            "https://a/b",
            "https://u:p@a",
            "a b",
            "https://a?x",
            "https://a:x",
        ] {
            let error = Endpoint::parse("endpoint", text).unwrap_err().to_string();
            assert!(error.starts_with("endpoint must be"), "{text}: {error}");
            assert!(!error.contains("u:p"));
        }
    }
}
