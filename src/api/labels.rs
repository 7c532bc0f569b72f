//! Syntax of label keys and values in Kubernetes, and of names with similar limits.

const NAME_PROBLEM: &str = "must have at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit";
const PREFIX_PROBLEM: &str = "must have before '/' a DNS name of at most 253 lower-case letters, digits, '-' or '.', such as example.com";
const DNS_NAME_PROBLEM: &str = "must have at most 253 lower-case letters, digits, '-' or '.', and begin and end with a letter or digit";
const DNS_LABEL_PROBLEM: &str = "must have at most 63 lower-case letters, digits or '-', and begin and end with a letter or digit";

/// The problem of a label key; `None` if the key is well formed.
pub fn key_problem(key: &str) -> Option<&'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|p| !is_dns_name(p)) {
        return Some(PREFIX_PROBLEM);
    }
    (!is_name(name)).then_some(NAME_PROBLEM)
}

/// The problem of a label value; `None` if the value is well formed. An empty value is well formed.
pub fn value_problem(value: &str) -> Option<&'static str> {
    (!value.is_empty() && !is_name(value)).then_some(NAME_PROBLEM)
}

/// The problem of a name that becomes a hostname or the name of a volume; `None` if the name is well formed.
pub fn dns_label_problem(text: &str) -> Option<&'static str> {
    let good = text.len() <= 63
        && text.bytes().all(|b| is_lower(b) || b == b'-')
        && has_valid_ends(text, is_lower);
    (!good).then_some(DNS_LABEL_PROBLEM)
}

/// The problem of an object name that must be a DNS subdomain name; `None` if the name is well formed.
pub fn dns_name_problem(text: &str) -> Option<&'static str> {
    (!is_dns_name(text)).then_some(DNS_NAME_PROBLEM)
}

fn is_name(text: &str) -> bool {
    text.len() <= 63
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && has_valid_ends(text, |b| b.is_ascii_alphanumeric())
}

fn is_dns_name(text: &str) -> bool {
    let part = |part: &str| {
        part.bytes().all(|b| is_lower(b) || b == b'-') && has_valid_ends(part, is_lower)
    };
    text.len() <= 253 && text.split('.').all(part)
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn has_valid_ends(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    matches!((text.bytes().next(), text.bytes().last()), (Some(first), Some(last)) if allowed(first) && allowed(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_are_validated() {
        let long = "a".repeat(63);
        for good in [
            "app",
            "A",
            "a.b_c-d",
            "example.com/app",
            "a/b",
            "kusionstack.io/control",
            &long,
        ] {
            assert_eq!(key_problem(good), None, "{good}");
        }
        let (too_long, deep) = ("a".repeat(64), format!("{}.a/b", "a.".repeat(126)));
        for (bad, why) in [
            ("", NAME_PROBLEM),
            ("-a", NAME_PROBLEM),
            ("a-", NAME_PROBLEM),
            ("a b", NAME_PROBLEM),
            ("é", NAME_PROBLEM),
            ("a/", NAME_PROBLEM),
            ("a/b/c", NAME_PROBLEM),
            (&too_long, NAME_PROBLEM),
            ("/a", PREFIX_PROBLEM),
            ("Example.com/a", PREFIX_PROBLEM),
            ("a..b/c", PREFIX_PROBLEM),
            ("-a/b", PREFIX_PROBLEM),
            (&deep, PREFIX_PROBLEM),
        ] {
            assert_eq!(key_problem(bad), Some(why), "{bad}");
        }
    }

    #[test]
    fn label_values_are_validated() {
        for good in ["", "a", "1", "a.b-c_D"] {
            assert_eq!(value_problem(good), None, "{good}");
        }
        for bad in [" ", "a ", ".a", "a/b", "ü", &"a".repeat(64)] {
            assert_eq!(value_problem(bad), Some(NAME_PROBLEM), "{bad}");
        }
    }

    #[test]
    fn dns_labels_are_validated() {
        for good in ["a", "0", "a-b", &"a".repeat(63)] {
            assert_eq!(dns_label_problem(good), None, "{good}");
        }
        for bad in ["", "A", "a.b", "-a", "a-", "a_b", &"a".repeat(64)] {
            assert_eq!(dns_label_problem(bad), Some(DNS_LABEL_PROBLEM), "{bad}");
        }
    }
}
