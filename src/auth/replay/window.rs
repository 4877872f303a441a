//! How old, how long-lived and how early a message may be. Pure arithmetic: never reads a clock.

/// The time window of messages, in whole seconds.
///
/// ```
/// use sealwire::internal::auth::Window;
///
/// let window = Window::new(30, 5)?;
/// let (now, fence) = (1_790_000_002, 0);
/// assert!(window.holds(1_790_000_000, 1_790_000_030, now, fence));
/// assert!(!window.holds(1_790_000_000, 1_790_000_002, now, fence), "`exp` itself is too late");
/// # Ok::<(), sealwire::errors::WindowError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The longest life of a message, `exp - iat`: 1 to 300 seconds.
    pub window_s: u64,
    /// How far a caller's clock may be ahead: 0 to 30 seconds.
    pub skew_s: u64,
}

/// A window or skew out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// `window_s`.
    #[error("a window of {0} s is not allowed: take 1 to {MAX_WINDOW_S}")]
    Window(u64),
    /// `skew_s`.
    #[error("a clock skew of {0} s is not allowed: take 0 to {MAX_SKEW_S}")]
    Skew(u64),
}

impl Window {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`WindowError`] names the value that is out of range; it comes from the configuration.
    pub fn new(window_s: u64, skew_s: u64) -> Result<Self, WindowError> {
        if !(1..=MAX_WINDOW_S).contains(&window_s) {
            Err(WindowError::Window(window_s))
        } else if skew_s > MAX_SKEW_S {
            Err(WindowError::Skew(skew_s))
        } else {
            Ok(Self { window_s, skew_s })
        }
    }

    /// Whether a message issued at `iat` and expiring at `exp` is valid at `now`, all in seconds since the Unix epoch.
    #[must_use]
    pub fn holds(&self, iat: u64, exp: u64, now: u64, fence: u64) -> bool {
        iat > fence
            && iat <= now.saturating_add(self.skew_s)
            && now < exp
            && exp <= now.saturating_add(self.window_s + self.skew_s)
            && exp > iat
            && exp - iat <= self.window_s
    }

    /// Whether the fence, and not this message, is to blame if a message issued at `iat` is behind it at `now`: in how many seconds what
    /// its caller signs passes. `None` if the message is not behind the fence, or so long after it that only an old copy can be.
    ///
    /// Until the fence is past, nothing can pass it; for the skew after that, neither can the messages of a caller whose clock is behind.
    #[must_use]
    pub(crate) fn fenced_s(&self, iat: u64, now: u64, fence: u64) -> Option<u64> {
        let is_behind = iat <= fence || now <= fence;
        let is_recent = now <= fence.saturating_add(self.skew_s);
        let signs_at = iat.clamp(now.saturating_sub(self.skew_s), now);
        (is_behind && is_recent).then(|| fence.saturating_add(1).saturating_sub(signs_at).max(1))
    }
}

impl Default for Window {
    /// 30 seconds, and a skew of 5: memory is proportional to their sum, so they are as short as honest clocks allow.
    fn default() -> Self {
        Self { window_s: 30, skew_s: 5 }
    }
}

/// A guard holds every nonce of the last window: 300 s at 20,000 messages a second are 6.6 million of them.
const MAX_WINDOW_S: u64 = 300;

/// Ten times the error that an unattended NTP client allows.
const MAX_SKEW_S: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §8.
    #[test]
    fn the_window_is_checked_when_it_is_made() {
        assert!(Window::new(1, 0).is_ok() && Window::new(300, 30).is_ok());
        assert_eq!(Window::new(0, 5), Err(WindowError::Window(0)));
        assert_eq!(Window::new(301, 5), Err(WindowError::Window(301)));
        assert_eq!(Window::new(30, 31), Err(WindowError::Skew(31)));
    }

    /// SPEC.md §8.
    #[test]
    fn every_edge_of_the_window_is_where_the_protocol_puts_it() {
        let window = Window::default();
        let (now, fence) = (1000, 990);
        for (iat, exp, expected) in [
            (1000, 1030, true),
            (1000, 1001, true),
            (1000, 1000, false),
            (1005, 1035, true),
            (1006, 1035, false),
            (991, 1001, true),
            (990, 1001, false),
            (1000, 1031, false),
            (1001, 1001, false),
            (1002, 1001, false),
            (0, u64::MAX, false),
            (u64::MAX, u64::MAX, false),
        ] {
            assert_eq!(window.holds(iat, exp, now, fence), expected, "{iat}..{exp}");
        }
    }

    /// SPEC.md §9.
    #[test]
    fn a_fence_is_to_blame_until_every_caller_can_have_passed_it() {
        let window = Window::default();
        let fence = 1000;
        for (iat, now, expected) in [
            // It lies ahead: whatever is signed.
            (990, 990, Some(11)),
            (990, 993, Some(11)),
            (1000, 1000, Some(1)),
            (1003, 1000, Some(1)),
            (970, 1000, Some(6)),
            // It is past: what a clock behind by up to the skew signs.
            (1000, 1001, Some(1)),
            (996, 1001, Some(5)),
            (990, 1001, Some(5)),
            (1000, 1005, Some(1)),
            (1001, 1001, None),
            (1001, 1005, None),
            // Only a copy that was kept.
            (1000, 1006, None),
            (980, 1006, None),
        ] {
            assert_eq!(window.fenced_s(iat, now, fence), expected, "{iat} at {now}");
        }
        assert_eq!(window.fenced_s(5, 7, 0), None, "there is no fence");
        assert_eq!(Window { window_s: 30, skew_s: 0 }.fenced_s(999, 1000, 999), None);
        assert_eq!(window.fenced_s(1, 2, u64::MAX), Some(u64::MAX - 1));
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        assert!(!Window::default().holds(u64::MAX, u64::MAX, u64::MAX, 0));
        assert!(!Window { window_s: 300, skew_s: 30 }.holds(0, 0, 0, u64::MAX));
    }
}
