//! What kind of failure a report names. A report has one text for all of them, so the text tells.

use crate::api::keys;
use crate::domain::traffic::report::EmployerReport;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<'a> {
    /// The annotation or the default of the servers names no adapter.
    NoAdapter,
    /// No adapter is asked, for another reason. For example, one has panicked.
    NotAsked,
    /// A call of this adapter, which managed the traffic before.
    FormerCall(&'a str),
    /// This adapter, which managed the traffic before, is not configured any more.
    FormerGone(&'a str),
    /// The load balancer accepts a change again and again, and does not make it. No call has failed.
    Fruitless,
    /// A call has failed and is repeated.
    Call,
    /// Something else.
    Other,
}

impl<'a> Failure<'a> {
    /// The failure of a report whose Service had the adapters `formers` before. `None` if there is none.
    pub fn of(report: &EmployerReport, formers: &'a [String]) -> Option<Failure<'a>> {
        let error = report.last_error.as_ref()?;
        if report.adapter.is_empty() {
            return Some(match is_about_choice(error) {
                true => Failure::NoAdapter,
                false => Failure::NotAsked,
            });
        }
        let about = |former: &'a String| {
            let rest = error.strip_prefix(&format!("adapter {former}"))?;
            match rest {
                _ if rest.starts_with(", which managed it before") => {
                    Some(Failure::FormerCall(former))
                }
                _ if rest.starts_with(" may have registered members") => {
                    Some(Failure::FormerGone(former))
                }
                _ => None,
            }
        };
        let former = formers.iter().find_map(about);
        Some(former.unwrap_or(match report.next_try {
            Some(_) if error.starts_with("the load balancer has accepted ") => Failure::Fruitless,
            Some(_) => Failure::Call,
            None => Failure::Other,
        }))
    }
}

/// Whether another value of the annotation, or of the default of the servers, mends this.
fn is_about_choice(error: &str) -> bool {
    error.starts_with(&format!("annotation {}:", keys::CONSIST_ADAPTER))
        || error.starts_with("no adapter manages this ")
}
