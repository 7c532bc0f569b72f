//! Another reference to the image that a container runs. The kubelet restarts a container when the text of
//! `spec.containers[].image` changes, also if the new text refers to the same image.
//!
//! The new reference always has the digest of the image. A tag alone may refer to a newer image by now, and a restart
//! must not change the version.

/// What can be done about a container that has no other reference.
pub const REMEDY: &str =
    "install OpenKruise, whose daemon can restart containers, or use the action Replace";
/// Tag of a reference without a tag and digest.
const DEFAULT_TAG: &str = "latest";
/// Tag that is added to a reference with a digest and no tag. The digest decides which image is meant, so no image needs
/// to have this tag.
const ADDED_TAG: &str = "restarted";
/// Name of the registry that a reference without a registry means.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The parts of a reference `repository[:tag][@digest]`, as they are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reference<'a> {
    repository: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    fn parse(image: &'a str) -> Reference<'a> {
        let (name, digest) = match image.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (image, None),
        };
        // A colon before the last slash precedes the port of the registry.
        let (repository, tag) = match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (name, None),
        };
        Reference {
            repository,
            tag,
            digest,
        }
    }

    /// The tag that the reference has, or that [`other_reference`] gives it.
    fn tag_or_added(&self) -> &'a str {
        let added = match self.digest {
            Some(_) => ADDED_TAG,
            None => DEFAULT_TAG,
        };
        self.tag.unwrap_or(added)
    }
}

/// Returns another reference to the image of a container. `image` is the image in the spec, `image_id` is the `imageID`
/// in the status of the container, such as `docker.io/library/nginx@sha256:…`.
///
/// Repository and tag stay as they are spelled in `image`. `R:T` becomes `R:T@sha256:d`, which becomes `R@sha256:d`. A
/// reference `R` gets the tag `latest`, and a reference `R@sha256:d` the tag `restarted`. If `image` has a digest, this
/// digest is kept. Otherwise the digest comes from `image_id`.
///
/// # Errors
///
/// A sentence with a remedy, if `image_id` has no SHA-256 digest, or is the ID of an image of another repository.
pub fn other_reference(image: &str, image_id: &str) -> Result<String, String> {
    let refuse = |problem: String| Err(format!("{problem}; {REMEDY}"));
    let reference = Reference::parse(image);
    let id = image_id.strip_prefix("docker-pullable://");
    let Some((id_repository, id_digest)) = id.unwrap_or(image_id).split_once('@') else {
        return refuse(format!(
            "the node reports no repository digest for image {image:?} (its imageID is {image_id:?}), \
             so no other reference to this image is known"
        ));
    };
    if reference.repository.is_empty()
        || normal_repository(id_repository) != normal_repository(reference.repository)
    {
        return refuse(format!(
            "the node reports the digest of image {image:?} for another repository ({id_repository:?})"
        ));
    }
    let digest = reference.digest.unwrap_or(id_digest);
    if let Some(unusable) = [digest, id_digest].into_iter().find(|d| !is_sha256(d)) {
        return refuse(format!(
            "the digest {unusable:?} of image {image:?} is not \"sha256:\" and 64 hexadecimal digits"
        ));
    }
    let repository = reference.repository;
    Ok(match (reference.tag, reference.digest) {
        (Some(_), Some(_)) => format!("{repository}@{digest}"),
        _ => format!("{repository}:{}@{digest}", reference.tag_or_added()),
    })
}

/// Whether [`other_reference`] can have made `image` of `before`, in one or several steps.
pub fn is_other_reference(before: &str, image: &str) -> bool {
    let (before, image) = (Reference::parse(before), Reference::parse(image));
    let tags = [None, Some(before.tag_or_added()), Some(ADDED_TAG)];
    before != image
        && before.repository == image.repository
        && image.digest.is_some_and(is_sha256)
        && (before.digest.is_none() || before.digest == image.digest)
        && tags.contains(&image.tag)
}

fn is_sha256(digest: &str) -> bool {
    let hex = digest.strip_prefix("sha256:");
    hex.is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Registry and path of a repository. Container runtimes complete short names in this way
/// (`github.com/distribution/reference`, `splitDockerDomain`): the first part is a registry if it contains a dot, a
/// colon or an upper-case letter, or is `localhost`.
fn normal_repository(repository: &str) -> (&str, String) {
    let is_registry = |part: &str| {
        part.contains(['.', ':']) || part == "localhost" || part.chars().any(char::is_uppercase)
    };
    let (registry, path) = match repository.split_once('/') {
        Some((registry, path)) if is_registry(registry) => (registry, path),
        _ => (DEFAULT_REGISTRY, repository),
    };
    let registry = match registry {
        "index.docker.io" => DEFAULT_REGISTRY,
        registry => registry,
    };
    let path = match (registry, path.contains('/')) {
        (DEFAULT_REGISTRY, false) => format!("library/{path}"),
        _ => path.to_owned(),
    };
    (registry, path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn references_alternate_and_keep_the_spelling() {
        let d = digest('a');
        for (image, id_repository, expected) in [
            ("nginx", "docker.io/library/nginx", "nginx:latest@D"),
            ("nginx:1.25", "docker.io/library/nginx", "nginx:1.25@D"),
            ("nginx:1.25@D", "docker.io/library/nginx", "nginx@D"),
            ("nginx@D", "docker.io/library/nginx", "nginx:restarted@D"),
            ("nginx:restarted@D", "docker.io/library/nginx", "nginx@D"),
            (
                "index.docker.io/a/b:1",
                "docker.io/a/b",
                "index.docker.io/a/b:1@D",
            ),
            (
                "docker.io/nginx:1",
                "index.docker.io/library/nginx",
                "docker.io/nginx:1@D",
            ),
            ("nginx:1", "docker-pullable://nginx", "nginx:1@D"),
            (
                "localhost:5000/a/b:1",
                "localhost:5000/a/b",
                "localhost:5000/a/b:1@D",
            ),
            (
                "localhost:5000/a/b",
                "localhost:5000/a/b",
                "localhost:5000/a/b:latest@D",
            ),
            ("localhost/a", "localhost/a", "localhost/a:latest@D"),
            (
                "Registry/team/app:V1",
                "Registry/team/app",
                "Registry/team/app:V1@D",
            ),
        ] {
            let (image, expected) = (image.replace('D', &d), expected.replace('D', &d));
            let other = other_reference(&image, &format!("{id_repository}@{d}"));
            assert_eq!(other.unwrap(), expected, "{image}");
        }
    }

    #[test]
    fn pinned_image_keeps_its_own_digest() {
        let (pinned, reported) = (digest('a'), digest('b'));
        let other = other_reference(&format!("a.io/b:1@{pinned}"), &format!("a.io/b@{reported}"));
        assert_eq!(other.unwrap(), format!("a.io/b@{pinned}"));
    }

    #[test]
    fn image_without_usable_digest_is_refused_with_remedy() {
        let d = digest('a');
        for (image, image_id, problem) in [
            ("nginx:1", String::new(), "no repository digest"),
            ("nginx:1", d.clone(), "no repository digest"),
            ("nginx:1", format!("docker://{d}"), "no repository digest"),
            (
                "nginx:1",
                format!("docker.io/library/apache@{d}"),
                "another repository",
            ),
            (
                "nginx:1",
                format!("example.com/library/nginx@{d}"),
                "another repository",
            ),
            (
                "nginx:1",
                format!("docker.io/library/nginx:1@{d}"),
                "another repository",
            ),
            ("a:5000/b:1", format!("a:5001/b@{d}"), "another repository"),
            (
                "localhost/a:1",
                format!("docker.io/localhost/a@{d}"),
                "another repository",
            ),
            ("", format!("@{d}"), "another repository"),
            (
                "nginx:1",
                "docker.io/library/nginx@sha512:00".into(),
                "is not \"sha256:\"",
            ),
            (
                "nginx:1",
                format!("nginx@{}", d.to_uppercase()),
                "is not \"sha256:\"",
            ),
            ("nginx:1", format!("nginx@{d}0"), "is not \"sha256:\""),
            (
                "nginx@sha512:00",
                format!("nginx@{d}"),
                "is not \"sha256:\"",
            ),
        ] {
            let refusal = other_reference(image, &image_id).unwrap_err();
            assert!(refusal.contains(problem), "{image} {image_id}: {refusal}");
            assert!(refusal.ends_with(REMEDY), "{refusal}");
        }
    }

    #[test]
    fn image_of_another_update_is_no_other_reference() {
        let (a, b) = (digest('a'), digest('b'));
        for (before, image, expected) in [
            ("nginx:1".to_owned(), format!("nginx:1@{a}"), true),
            ("nginx:1".to_owned(), format!("nginx@{a}"), true),
            ("nginx:1".to_owned(), "nginx:1".to_owned(), false),
            ("nginx:1".to_owned(), "nginx:2".to_owned(), false),
            ("nginx:1".to_owned(), format!("nginx:2@{a}"), false),
            (
                "nginx:1".to_owned(),
                format!("docker.io/nginx:1@{a}"),
                false,
            ),
            (format!("nginx@{a}"), format!("nginx:restarted@{a}"), true),
            (format!("nginx@{a}"), format!("nginx@{a}"), false),
            (format!("nginx@{a}"), format!("nginx@{b}"), false),
        ] {
            assert_eq!(
                is_other_reference(&before, &image),
                expected,
                "{before} {image}"
            );
        }
    }

    /// An image reference and its repository.
    fn images() -> impl Strategy<Value = (String, String)> {
        let registry =
            "(|docker\\.io/|index\\.docker\\.io/|localhost:5000/|Host/|a-b\\.example\\.com:1/)";
        let path = "[a-z0-9]{1,6}(/[a-z0-9]([a-z0-9._-]{0,4}[a-z0-9])?){0,2}";
        let tag = "(|:[A-Za-z0-9_][A-Za-z0-9_.-]{0,8})";
        (registry, path, tag).prop_map(|(registry, path, tag)| {
            let repository = format!("{registry}{path}");
            (format!("{repository}{tag}"), repository)
        })
    }

    proptest! {
        #[test]
        fn result_is_another_reference_to_the_same_image(
            (image, repository) in images(), is_pinned: bool, hex in "[0-9a-f]{64}",
        ) {
            let digest = format!("sha256:{hex}");
            let image = if is_pinned { format!("{image}@{digest}") } else { image };
            let image_id = format!("{repository}@{digest}");
            let steps: Vec<String> = std::iter::successors(Some(image.clone()), |image| {
                Some(other_reference(image, &image_id).unwrap())
            })
            .take(5)
            .collect();
            for pair in steps.windows(2) {
                prop_assert_ne!(&pair[0], &pair[1]);
            }
            for step in &steps[1..] {
                let reference = Reference::parse(step);
                prop_assert_eq!(reference.repository, &repository);
                prop_assert_eq!(reference.digest, Some(&*digest));
                prop_assert_eq!(is_other_reference(&image, step), *step != image, "{}", step);
            }
            prop_assert_eq!(&steps[2], &steps[4], "they alternate");
        }

        #[test]
        fn any_text_is_taken_without_panic(image: String, image_id: String) {
            if let Ok(other) = other_reference(&image, &image_id) {
                prop_assert!(is_other_reference(&image, &other), "{image} {other}");
            }
        }
    }
}
