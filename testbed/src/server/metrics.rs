//! Reads the server's metrics.

/// The samples of one scrape: name, labels and value.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<(String, String, f64)>);

impl Metrics {
    /// Parses an OpenMetrics text. Ignores comments and other lines without a sample.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}');
            Some((name.to_owned(), labels.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(sample).collect())
    }

    /// The sum over all series of a name whose labels contain `part`; 0 if there is no such series.
    #[must_use]
    pub fn sum_where(&self, name: &str, part: &str) -> f64 {
        let fitting = self
            .0
            .iter()
            .filter(|(n, l, _)| n == name && l.contains(part));
        fitting.map(|(_, _, value)| value).sum()
    }

    /// The sum over all series of a name; 0 if there is no such series.
    #[must_use]
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_label() {
        let metrics = Metrics::parse(
            "# TYPE a counter\na_total{route=\"/x\",code=\"2xx\"} 2\na_total{route=\"/y\"} 3\nb 1.5\n# EOF\n",
        );
        assert_eq!(metrics.sum("a_total"), 5.0);
        assert_eq!(metrics.sum_where("a_total", "route=\"/x\""), 2.0);
        assert_eq!(metrics.sum("b"), 1.5);
        assert_eq!(metrics.sum("c"), 0.0);
    }
}
