//! How old, how long-lived and how early a message may be. Pure arithmetic: never reads a clock.

/// The time window of messages, in whole seconds.
///
/// ```
/// use sealwire::auth::Window;
///
/// let window = Window::new(30, 5)?;
/// let (now, fence) = (1_790_000_002, 0);
/// assert!(window.holds(1_790_000_000, 1_790_000_030, now, fence));
/// assert!(!window.holds(1_790_000_000, 1_790_000_002, now, fence), "`exp` itself is too late");
/// # Ok::<(), sealwire::auth::WindowError>(())
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

    #[test]
    fn extreme_times_do_not_overflow() {
        assert!(!Window::default().holds(u64::MAX, u64::MAX, u64::MAX, 0));
        assert!(!Window { window_s: 300, skew_s: 30 }.holds(0, 0, 0, u64::MAX));
    }
}
