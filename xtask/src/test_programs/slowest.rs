//! Reads the times of tests from the output of libtest, and names the slowest tests.

/// Number of tests that are named.
const NAMED: usize = 10;

/// The seconds and the name in a line such as `test counting::counts ... ok <1.234s>`.
pub fn time(line: &str) -> Option<(f64, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = rest.split_once('<')?;
    Some((time.strip_suffix("s>")?.parse().ok()?, name))
}

/// The slowest of these tests, the slowest first.
pub fn slowest(mut times: Vec<(f64, String)>) -> Vec<(f64, String)> {
    times.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    times.truncate(NAMED);
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_from_the_lines_of_tests_that_ran() {
        assert_eq!(
            time("test a::quick ... ok <0.001s>"),
            Some((0.001, "a::quick"))
        );
        assert_eq!(
            time("test c::failed ... FAILED <3s>"),
            Some((3.0, "c::failed"))
        );
        for line in [
            "running 3 tests",
            "test d::ignored ... ignored",
            "test result: ok. 3 passed; finished in 12.50s",
        ] {
            assert_eq!(time(line), None, "{line}");
        }
    }

    #[test]
    fn ten_slowest_tests_are_named() {
        let named = slowest((0..20).map(|n| (f64::from(n), n.to_string())).collect());
        let names: Vec<_> = named.iter().map(|(_, name)| &**name).collect();
        assert_eq!(
            names,
            ["19", "18", "17", "16", "15", "14", "13", "12", "11", "10"]
        );
    }
}
