//! How often the leader corrects: rarely, if another program changes the configurations again and again.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause after a correction, which doubles up to the longest.
const MIN_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(1_280);
/// After so long without a correction, the next one counts as the first.
const FORGETS_AFTER: Duration = Duration::from_secs(3_600);
/// From this correction on, another program is taken to work against the leader.
const FIGHT: u32 = 3;

/// The corrections of late.
#[derive(Debug, Default)]
pub struct Pace {
    corrections: u32,
    last: Option<Instant>,
}

impl Pace {
    /// The pause after a correction, and whether another program seems to work against it.
    pub fn after_correction(&mut self, now: Instant) -> (Duration, bool) {
        let is_old = |last: Instant| now.duration_since(last) > FORGETS_AFTER;
        if self.last.is_none_or(is_old) {
            self.corrections = 0;
        }
        self.last = Some(now);
        let doubled = MIN_PAUSE.saturating_mul(2_u32.saturating_pow(self.corrections));
        self.corrections = self.corrections.saturating_add(1);
        (doubled.min(MAX_PAUSE), self.corrections >= FIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_an_hour_without_corrections() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut seen = Vec::new();
        for _ in 0..10 {
            let (pause, is_fight) = pace.after_correction(now);
            seen.push((pause.as_secs(), is_fight));
            now += pause;
        }
        assert_eq!(
            seen[..4],
            [(10, false), (20, false), (40, true), (80, true)]
        );
        assert_eq!(seen[9], (1_280, true));
        now += FORGETS_AFTER;
        assert_eq!(pace.after_correction(now), (MIN_PAUSE, false));
    }
}
