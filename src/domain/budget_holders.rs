//! The order in which messages name the Pods that use up a budget.

use std::collections::BTreeSet;

use jiff::Timestamp;

/// Puts the Pod first that has held its place longest, and the Pods last of which the time is unknown. Of several
/// entries for a Pod, the first remains. `describe` returns the time and the name of the Pod.
pub fn order_holders<T>(
    holders: &mut Vec<T>,
    describe: impl Fn(&T) -> (Option<Timestamp>, &String),
) {
    holders.sort_by_cached_key(|holder| {
        let (since, pod) = describe(holder);
        (since.is_none(), since, pod.clone())
    });
    let mut named = BTreeSet::new();
    holders.retain(|holder| named.insert(describe(holder).1.clone()));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn longest_holder_comes_first_and_each_pod_once() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let mut holders = vec![
            (None, "a".to_owned()),
            (at(30), "b".to_owned()),
            (at(20), "d".to_owned()),
            (at(20), "c".to_owned()),
            (at(10), "b".to_owned()),
        ];
        order_holders(&mut holders, |(since, pod)| (*since, pod));
        let names: Vec<&str> = holders.iter().map(|(_, pod)| pod.as_str()).collect();
        assert_eq!(names, ["b", "c", "d", "a"]);
        assert_eq!(holders[0].0, at(10));
    }
}
