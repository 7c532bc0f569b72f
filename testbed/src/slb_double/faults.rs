//! Faults of calls.

use std::time::Duration;

/// The effect of a fault on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The double asks for fewer calls.
    Throttle,
    /// The double answers with this status and code, and the call has no effect.
    Refuse(u16, String),
    /// The double closes the connection before the call takes effect.
    CutBefore,
    /// The double closes the connection after the call has taken effect.
    LoseReply,
    /// The call takes effect, and the double answers with this status and code.
    LieAfter(u16, String),
    /// The double takes all servers of the call but this one, and does not list it in the answer.
    Skip(usize),
    /// The double answers late.
    Slow(Duration),
    /// The double answers with a body that is no JSON.
    Garble,
    /// The call takes effect, and the double answers with this body.
    Answer(String),
    /// The double answers with a body of this size in bytes.
    Huge(usize),
    /// The double sends the caller to another URL.
    Redirect(String),
}

/// An effect and the affected calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    effect: Effect,
    action: Option<String>,
    containing: Option<String>,
    left: usize,
}

impl Fault {
    /// Affects all calls, until it is ended.
    pub fn new(effect: Effect) -> Fault {
        Fault {
            effect,
            action: None,
            containing: None,
            left: usize::MAX,
        }
    }

    /// Affects calls of this action only.
    #[must_use]
    pub fn on(self, action: &str) -> Fault {
        Fault {
            action: Some(action.to_owned()),
            ..self
        }
    }

    /// Affects calls only that have this text in a parameter, for example the address of a server.
    #[must_use]
    pub fn containing(self, text: &str) -> Fault {
        Fault {
            containing: Some(text.to_owned()),
            ..self
        }
    }

    /// Affects the next calls only.
    #[must_use]
    pub fn times(self, times: usize) -> Fault {
        Fault {
            left: times,
            ..self
        }
    }

    /// The effect on this call, if any. Counts the call.
    pub(super) fn strike(
        &mut self,
        action: &str,
        parameters: &[(String, String)],
    ) -> Option<Effect> {
        let has = |text: &String| parameters.iter().any(|(_, value)| value.contains(text));
        let applies = self.left > 0
            && self.action.as_ref().is_none_or(|a| a == action)
            && self.containing.as_ref().is_none_or(has);
        if !applies {
            return None;
        }
        self.left -= 1;
        Some(self.effect.clone())
    }
}
