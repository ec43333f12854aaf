//! How many dead letters a collector is handed at a time: many while they are small, few while they are large.
//!
//! A broker counts what it hands out, not its bytes, and all of that is in memory at once: as many letters of a megabyte as of a kilobyte
//! would be more than a small machine has, and after a restart they would be handed out again. So it begins with few, and goes by
//! what they weigh.

use crate::store::DeadLetter;

/// What is handed out should weigh no more than this, all together.
const ALL: usize = 64 << 20;
/// So many at first. What so many weigh tells of the others.
const FIRST: usize = 32;
/// Never fewer than these.
const FEWEST: usize = 8;

/// What the letters weighed so far, and how many of that weight there may be.
pub(super) struct Share {
    /// Never more than these.
    most: usize,
    now: usize,
    /// Those that stay unsettled, because the store refuses them: others come beside them.
    refused: usize,
    letters: usize,
    bytes: usize,
}

impl Share {
    pub(super) fn new(most: usize) -> Self {
        Self { most, now: FIRST.min(most), refused: 0, letters: 0, bytes: 0 }
    }

    /// How many there may be.
    pub(super) fn prefetch(&self) -> u16 {
        u16::try_from(self.now + self.refused).unwrap_or(u16::MAX)
    }

    /// Makes room beside letters that were refused. Says whether there were any.
    pub(super) fn refuse(&mut self, letters: usize) -> bool {
        self.refused += letters;
        letters > 0
    }

    /// Weighs letters. Says whether there may be far more from now on, or should be far fewer.
    pub(super) fn weigh(&mut self, letters: &[DeadLetter]) -> bool {
        let weight = |letter: &DeadLetter| letter.body.len() + letter.error.len();
        self.add(letters.len(), letters.iter().map(weight).sum())
    }

    fn add(&mut self, letters: usize, bytes: usize) -> bool {
        self.letters += letters;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.letters < FIRST && self.bytes < ALL {
            return false;
        }
        let fits = (ALL / (self.bytes / self.letters.max(1)).max(1)).clamp(FEWEST, self.most);
        (self.letters, self.bytes) = (0, 0);
        // Another number costs a few round trips.
        let changes =
            fits == self.most && self.now < self.most || fits >= self.now * 2 || fits * 2 <= self.now;
        if changes {
            self.now = fits;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn small_letters_come_in_large_numbers_and_large_ones_in_small_numbers() {
        let mut share = Share::new(1_500);
        assert_eq!(share.prefetch(), 32);
        assert!(!share.add(31, 31 * KIB), "too few to tell");
        assert!(share.add(1, KIB));
        assert_eq!(share.prefetch(), 1_500);
        assert!(!share.add(500, 500 * 2 * KIB), "there is room for those");
        assert!(share.add(100, 100 << 20));
        assert_eq!(share.prefetch(), 64);
        assert!(!share.add(32, 32 * 1_500 * KIB), "not so much more");
        assert!(share.add(5, 80 << 20), "five of 16 MiB say enough");
        assert_eq!(share.prefetch(), 8);
        assert!(!share.refuse(0));
        assert!(share.refuse(8), "the others are collected all the same");
        assert_eq!(share.prefetch(), 16);
        assert!(share.add(32, 0));
        assert_eq!(share.prefetch(), 1_508);
    }

    #[test]
    fn never_more_than_was_said() {
        let mut share = Share::new(10);
        assert_eq!(share.prefetch(), 10);
        assert!(!share.add(1_000, 0));
        assert_eq!(share.prefetch(), 10);
    }
}
