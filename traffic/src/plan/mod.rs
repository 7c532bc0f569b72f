//! The next step of an employer, without I/O.
//!
//! The caller looks at an employer whenever it, one of its Pods or an open state may have changed. A look makes a
//! [`View`] of what should be, and repeats [`next_call`] until nothing is to be called now. The result of each call goes
//! into the [`Memory`] of the employer. Then [`marks()`] says which Pods may be changed or count as available, and
//! [`Summary`] is for the user.
//!
//! | File | What it has |
//! |---|---|
//! | `view` | what should be: the wanted members, and to whom a member belongs |
//! | `known` | what is known of one member or Pod, and of a failure |
//! | `memory` | all that is known of an employer |
//! | `turned` | begins a look: which Pods have turned on or off; and which have no member any more |
//! | `observed` | takes the result of a read |
//! | `applied` | takes what became of changes |
//! | `accepted` | changes that were accepted and have no effect |
//! | `late` | changes without an answer, which may still be made |
//! | `backoff` | pauses after failures and between reads |
//! | `next` | the next call, or how long to wait |
//! | `reach` | which registered members may send requests to a Pod |
//! | `step` | what is to be done next with a member |
//! | `arrival` | the next step of a member that should serve |
//! | `departure` | the next step of a member that should go |
//! | `succession` | whether Pods that are not selected any more stay until others serve |
//! | `open` | the members that are not as they should be, each with its next step: `next`, `marks` and `summary` follow it |
//! | `marks` | what each Pod's state permits: protect, release or keep |
//! | `settled` | whether the present load balancer of a move serves in place of the former ones |
//! | `places` | what several load balancers do with a Pod during a move |
//! | `drained` | whether the Pods that are off have drained at an adapter that only observes |
//! | `waiting` | an open member in words |
//! | `summary` | counts and waiting members, for the status of the employer |

mod accepted;
mod applied;
mod arrival;
mod backoff;
mod departure;
mod drained;
mod known;
mod late;
mod marks;
mod memory;
mod next;
mod observed;
mod open;
mod places;
mod reach;
mod settled;
mod step;
mod succession;
mod summary;
#[cfg(test)]
mod tests;
mod turned;
mod view;
mod waiting;

pub use drained::{all_drained, refused_drain};
pub use marks::{Mark, marks};
pub use memory::Memory;
pub use next::{Next, next_call};
pub use places::{Place, PodPlace, mark_in_move, places};
pub use settled::unproven;
pub use step::Stay;
pub use summary::{LISTED, Summary};
pub use view::{PodInput, View};
pub use waiting::Waiting;
